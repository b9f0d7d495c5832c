// The terminal under the view, and nothing else: what it can do, its size, entering and leaving the
// second screen, writing what has changed. A terminal that does not take text (Ctrl-S, a dead
// connection) makes frames be left out, never waited for; one that has gone (closed window) is not
// written to any more. Leaves it as it was at every orderly end, and at a crash of this process as
// far as a signal handler can. One thread; one Screen that shows at a time in a process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/view/styled.h"

namespace holdfast::view {

// What the environment says of the terminal or file `fd`: size (80 x 24 where it is not known),
// UTF-8 by LC_ALL, LC_CTYPE, LANG, colours unless NO_COLOR is set (no-color.org) or TERM is "dumb".
Capabilities CapabilitiesOf(int fd);
// A terminal that understands cursor movement: TERM is set and not "dumb".
bool UnderstandsMovement(int fd);

class Screen {
 public:
  // `fd` stays the caller's. Nothing is written before Show.
  explicit Screen(int fd);
  ~Screen();  // leaves
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // A terminal that can show the view, is still there, and belongs to this process group now (a job
  // in the background writes plain lines and does not paint over the shell).
  bool usable() const;
  bool shown() const { return shown_; }
  Capabilities capabilities() const { return CapabilitiesOf(fd_); }
  // Paints the lines at the top left, each within the window. Enters the second screen when it is
  // not shown yet.
  void Show(const std::vector<std::string>& lines);
  // Back to the ordinary screen. Waits up to 300 ms for a terminal that does not take text.
  void Leave();

 private:
  void Flush();

  const int fd_;
  int own_fd_ = -1;  // the same terminal, opened anew without blocking
  bool movement_, gone_ = false, shown_ = false;
  int width_ = 0, height_ = 0;
  int64_t frames_ = 0;
  std::vector<std::string> painted_;
  std::string pending_;  // the rest of one frame that was not taken yet
};

}  // namespace holdfast::view
