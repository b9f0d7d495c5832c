// What a person sees: plain lines, or on a terminal the live view over the whole window. Losing the
// reader (closed pipe, full disk, a pager that does not read, a terminal that has gone) never ends
// or blocks the run: lines are dropped and counted. While the view is shown, lines for the terminal
// are kept and printed when it is left; the view shows the newest events itself. One thread, but
// for the log lines of other threads that it takes in (log_sink.h).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/log.h"
#include "runtime/view/screen.h"
#include "runtime/view/snapshot.h"

namespace holdfast {

class Console {
 public:
  Console(int out_fd, int err_fd);
  ~Console();

  // Whether the view is what this terminal gets now (see Screen::usable); else plain lines.
  bool live() const { return screen_.usable(); }
  void Line(std::string_view text);                 // standard output
  void Log(LogLevel level, std::string_view text);  // standard error, with time and level
  void Raw(std::string_view line);                  // standard error, as it is
  void Draw(const view::Snapshot& snapshot);        // redraws the live view; nothing elsewhere
  void Redraw();                                    // the same again: the window has another size
  // Leaves the view and prints the lines that were kept. `final`: and the last picture, as text.
  void Leave(bool final);
  int64_t dropped() const { return dropped_; }

 private:
  void Write(int fd, std::string_view text);
  void Keep(std::string_view line);

  static constexpr size_t kKeptMax = 100;
  const int out_fd_, err_fd_;
  const bool err_is_terminal_;
  view::Screen screen_;
  std::optional<view::Snapshot> last_;
  int64_t dropped_ = 0;
  std::mutex mutex_;
  bool keeping_ = false;          // guarded by mutex_
  std::deque<std::string> kept_;  // guarded by mutex_
  int64_t kept_before_ = 0;       // guarded by mutex_: lines that kept_ had no room for
};

}  // namespace holdfast
