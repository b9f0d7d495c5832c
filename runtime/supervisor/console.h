// What a person sees: plain lines, or on a terminal a live view of two lines below them. Losing the
// reader (closed pipe, full disk, a pager that does not read) never ends or blocks the run: lines
// are dropped and counted. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/log.h"

namespace holdfast {

struct LiveStatus {
  int64_t step = 0, steps = 0;
  double loss = 0, tokens_per_s = 0;
  int world_size = 0;
  int64_t generation = 0, saved_step = -1, seconds_left = -1;
  std::string last_event;
};

class Console {
 public:
  // Live when `out_fd` is a terminal that understands cursor movement (TERM is set and not "dumb").
  Console(int out_fd, int err_fd);
  ~Console();

  bool live() const { return live_; }
  void Line(std::string_view text);                 // standard output
  void Log(LogLevel level, std::string_view text);  // standard error, with time and level
  void Raw(std::string_view line);                  // standard error, as it is
  void Draw(const LiveStatus& status);              // redraws the live view; nothing elsewhere
  int64_t dropped() const { return dropped_; }

 private:
  void Erase();
  void Write(int fd, std::string_view text);

  int out_fd_, err_fd_;
  bool live_;
  bool drawn_ = false;
  int64_t dropped_ = 0;
};

// "41.2k", "3.8G"
std::string ShortNumber(double value);
// "2d 3h", "2m 10s"; "?" below zero
std::string ShortTime(int64_t seconds);
// The two lines of the view, none longer than `width`.
std::string LiveText(const LiveStatus& status, int width);

}  // namespace holdfast
