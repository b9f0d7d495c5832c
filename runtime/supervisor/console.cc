#include "runtime/supervisor/console.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "runtime/base/log_sink.h"
#include "runtime/view/draw.h"
#include "runtime/view/text.h"

namespace holdfast {

Console::Console(int out_fd, int err_fd)
    : out_fd_(out_fd), err_fd_(err_fd), err_is_terminal_(isatty(err_fd) == 1), screen_(out_fd) {
  SetLogSink([this](std::string_view line) {
    {
      std::lock_guard lock(mutex_);
      if (!keeping_) return false;
    }
    Keep(line);
    return true;
  });
}

Console::~Console() {
  Leave(false);
  SetLogSink({});
}

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

void Console::Keep(std::string_view line) {
  std::lock_guard lock(mutex_);
  kept_.emplace_back(line);
  if (kept_.size() > kKeptMax) {
    kept_.pop_front();
    ++kept_before_;
  }
}

void Console::Line(std::string_view text) {
  if (screen_.shown()) return Keep(text);
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
  if (screen_.shown() && err_is_terminal_) return Keep(line);
  Write(err_fd_, Cat(line, "\n"));
}

void Console::Draw(const view::Snapshot& snapshot) {
  if (!live()) return Leave(false);  // sent to the background: the shell has the terminal now
  screen_.Show(view::Draw(snapshot, screen_.capabilities()));
  last_ = snapshot;
  std::lock_guard lock(mutex_);
  keeping_ = screen_.shown() && err_is_terminal_;
}

void Console::Redraw() {
  if (screen_.shown() && last_) screen_.Show(view::Draw(*last_, screen_.capabilities()));
}

void Console::Leave(bool final) {
  if (!screen_.shown()) return;
  view::Capabilities caps = screen_.capabilities();
  screen_.Leave();
  std::deque<std::string> lines;
  int64_t before = 0;
  {
    std::lock_guard lock(mutex_);
    keeping_ = false;
    lines.swap(kept_);
    before = std::exchange(kept_before_, 0);
  }
  if (before > 0) {
    Write(out_fd_, Cat("(", view::Counted(before, "earlier line"),
                       " not repeated here; every event is in events.jsonl)\n"));
  }
  for (const std::string& line : lines)
    Write(err_is_terminal_ ? err_fd_ : out_fd_, Cat(line, "\n"));
  if (!final || !last_) return;
  view::Snapshot last = *last_;
  last.events.clear();  // they stand above, as lines
  caps.height = std::min(caps.height, 24);
  for (const std::string& line : view::Draw(last, caps)) Write(out_fd_, Cat(line, "\n"));
}

}  // namespace holdfast
