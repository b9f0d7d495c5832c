#include "runtime/view/screen.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "runtime/base/clock.h"
#include "runtime/base/text.h"

namespace holdfast::view {
namespace {

// xterm's control sequences: second screen, hidden cursor, no wrapping at the right edge.
constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
// A terminal without a second screen stays where it is: the cursor goes to the last row first.
constexpr char kLeave[] = "\x1b[0m\x1b[999;1H\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr int64_t kLeaveMs = 300, kWholeFrameEvery = 60;
constexpr std::array<int, 5> kCrashes = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

std::atomic<int> crash_fd{-1};
std::array<struct sigaction, kCrashes.size()> former_actions;

// Restores the terminal and lets the crash happen as it would have.
void OnCrash(int number) {
  const int fd = crash_fd.load();
  if (fd >= 0) (void)!write(fd, kLeave, sizeof kLeave - 1);
  for (size_t i = 0; i < kCrashes.size(); ++i) {
    if (kCrashes[i] == number) (void)sigaction(number, &former_actions[i], nullptr);
  }
  (void)raise(number);
}

void GuardCrashes(int fd) {
  if (crash_fd.exchange(fd) >= 0) return;
  struct sigaction action = {};
  action.sa_handler = OnCrash;
  action.sa_flags = SA_NODEFER;
  for (size_t i = 0; i < kCrashes.size(); ++i)
    (void)sigaction(kCrashes[i], &action, &former_actions[i]);
}

void UnguardCrashes() {
  if (crash_fd.exchange(-1) < 0) return;
  for (size_t i = 0; i < kCrashes.size(); ++i)
    (void)sigaction(kCrashes[i], &former_actions[i], nullptr);
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The first of the three that is set decides, as setlocale(3) has it. The console of Linux speaks
// UTF-8, but its fonts have none of the characters for bars and curves.
bool Utf8() {
  if (Environment("TERM") == "linux") return false;
  std::string locale;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    locale = Environment(name);
    if (!locale.empty()) break;
  }
  std::transform(locale.begin(), locale.end(), locale.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
}

}  // namespace

bool UnderstandsMovement(int fd) {
  const std::string term = Environment("TERM");
  return isatty(fd) == 1 && !term.empty() && term != "dumb";
}

Capabilities CapabilitiesOf(int fd) {
  Capabilities caps;
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    caps.width = size.ws_col;
    caps.height = size.ws_row;
  }
  caps.utf8 = Utf8();
  caps.colour = UnderstandsMovement(fd) && Environment("NO_COLOR").empty();
  return caps;
}

Screen::Screen(int fd) : fd_(fd), movement_(UnderstandsMovement(fd)) {}

Screen::~Screen() {
  Leave();
  if (own_fd_ >= 0) close(own_fd_);
}

bool Screen::usable() const {
  if (!movement_ || gone_) return false;
  const pid_t front = tcgetpgrp(fd_);
  return front < 0 || front == getpgrp();  // below 0: not the terminal of this session
}

// One try. What is left stays pending; a terminal that has gone takes nothing any more.
void Screen::Flush() {
  while (!pending_.empty()) {
    const ssize_t n = write(own_fd_, pending_.data(), pending_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      gone_ = true;
      pending_.clear();
      return;
    }
    pending_.erase(0, static_cast<size_t>(n));
  }
}

void Screen::Show(const std::vector<std::string>& lines) {
  if (!usable()) return;
  if (own_fd_ < 0) {
    // Not O_NONBLOCK on `fd` itself: the shell and everybody else has the same open file.
    own_fd_ =
        open(Cat("/proc/self/fd/", fd_).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (own_fd_ < 0) {
      movement_ = false;  // plain lines then
      return;
    }
  }
  Flush();
  if (!pending_.empty() || gone_) return;
  const Capabilities caps = capabilities();
  const bool resized = caps.width != width_ || caps.height != height_;
  // Now and then everything, over what was typed into the window or written by others.
  const bool whole = !shown_ || resized || ++frames_ % kWholeFrameEvery == 0;
  if (!shown_) pending_ += kEnter;
  if (resized && shown_) pending_ += "\x1b[2J";
  const size_t rows = std::min(lines.size(), static_cast<size_t>(caps.height));
  for (size_t i = 0; i < std::max(rows, painted_.size()); ++i) {
    const std::string line = i < rows ? lines[i] : "";
    if (!whole && i < painted_.size() && painted_[i] == line) continue;
    // Erased first: after a line as wide as the window the cursor stands on its last character.
    pending_ += Cat("\x1b[", i + 1, ";1H\x1b[2K", line);
  }
  painted_.assign(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(rows));
  width_ = caps.width;
  height_ = caps.height;
  shown_ = true;
  GuardCrashes(own_fd_);
  Flush();
}

void Screen::Leave() {
  if (!shown_) return;
  shown_ = false;
  painted_.clear();
  UnguardCrashes();
  if (gone_) return;
  pending_ += kLeave;
  const Deadline deadline = Deadline::After(kLeaveMs);
  for (Flush(); !pending_.empty() && !deadline.passed(); Flush()) {
    pollfd ready{own_fd_, POLLOUT, 0};
    (void)poll(&ready, 1, static_cast<int>(deadline.left_ms()) + 1);
  }
  pending_.clear();
}

}  // namespace holdfast::view
