#include "runtime/supervisor/console.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace holdfast {
namespace {

bool IsLiveTerminal(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) == 1 && term != nullptr && *term != '\0' && std::strcmp(term, "dumb") != 0;
}

int TerminalWidth(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::string Cut(std::string text, int width) {
  if (width < 1) width = 1;
  if (static_cast<int>(text.size()) > width) text.resize(static_cast<size_t>(width));
  return text;
}

template <typename... Args>
std::string Format(const char* format, Args... args) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, args...);
  return buffer;
}

}  // namespace

std::string ShortNumber(double value) {
  if (!std::isfinite(value)) return "?";
  const char* units[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  while (std::abs(value) >= 1000 && unit + 1 < std::size(units)) {
    value /= 1000;
    ++unit;
  }
  return Format(value >= 100 || unit == 0 ? "%.0f%s" : "%.1f%s", value, units[unit]);
}

std::string ShortTime(int64_t s) {
  if (s < 0) return "?";
  if (s < 60) return Cat(s, "s");
  if (s < 3600) return Cat(s / 60, "m ", s % 60, "s");
  if (s < 86'400) return Cat(s / 3600, "h ", s % 3600 / 60, "m");
  return Cat(s / 86'400, "d ", s % 86'400 / 3600, "h");
}

std::string LiveText(const LiveStatus& s, int width) {
  const double share =
      s.steps > 0 ? std::clamp(static_cast<double>(s.step) / static_cast<double>(s.steps), 0.0, 1.0)
                  : 0;
  const int cells = std::clamp(width / 4, 8, 32);
  const int full = static_cast<int>(share * cells);
  std::string bar = "[";
  bar += std::string(static_cast<size_t>(full), '#') +
         std::string(static_cast<size_t>(cells - full), '.') + "] ";
  std::string line =
      Cat(bar, Format("%3.0f%%", std::floor(share * 100)), " step ", s.step, "/", s.steps,
          "  loss ", Format("%.4f", s.loss), "  ", ShortNumber(s.tokens_per_s), " tokens/s  ",
          s.world_size, s.world_size == 1 ? " worker" : " workers", "  generation ", s.generation,
          "  ", s.seconds_left >= 0 ? Cat(ShortTime(s.seconds_left), " left") : "");
  const std::string below =
      Cat(s.saved_step >= 0 ? Cat("saved: step ", s.saved_step) : "nothing saved yet",
          s.last_event.empty() ? "" : Cat("  |  ", s.last_event));
  return Cat(Cut(std::move(line), width), "\n", Cut(below, width));
}

Console::Console(int out_fd, int err_fd)
    : out_fd_(out_fd), err_fd_(err_fd), live_(IsLiveTerminal(out_fd)) {}

Console::~Console() { Erase(); }

void Console::Write(int fd, std::string_view text) {
  while (!text.empty()) {
    pollfd ready{fd, POLLOUT, 0};
    if (poll(&ready, 1, 50) <= 0)
      break;  // a reader that does not read must not hold the supervisor
    const ssize_t n = write(fd, text.data(), std::min<size_t>(text.size(), 4096));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.remove_prefix(static_cast<size_t>(n));
  }
  if (!text.empty()) ++dropped_;
}

void Console::Erase() {
  if (drawn_) Write(out_fd_, "\r\x1b[1A\x1b[J");
  drawn_ = false;
}

void Console::Line(std::string_view text) {
  Erase();
  Write(out_fd_, Cat(text, "\n"));
}

void Console::Log(LogLevel level, std::string_view text) {
  if (level == LogLevel::kDebug) return;  // in events.jsonl only
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  tm parts;
  localtime_r(&t.tv_sec, &parts);
  char stamp[32];
  std::snprintf(stamp, sizeof stamp, "%02d:%02d:%02d.%03ld %c ", parts.tm_hour, parts.tm_min,
                parts.tm_sec, t.tv_nsec / 1'000'000, "DIWE"[static_cast<int>(level)]);
  Raw(Cat(stamp, text));
}

void Console::Raw(std::string_view line) {
  Erase();
  Write(err_fd_, Cat(line, "\n"));
}

void Console::Draw(const LiveStatus& status) {
  if (!live_) return;
  Erase();
  // One column less than the width: a full line would wrap on some terminals.
  Write(out_fd_, LiveText(status, TerminalWidth(out_fd_) - 1));
  drawn_ = true;
}

}  // namespace holdfast
