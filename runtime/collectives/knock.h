// Asks whether a peer that is to dial this member still listens. Each member listens before a
// roster can name it, and until its process ends: a connection that is refused again and again
// means that the process has gone, long before the build's deadline.
//
// Threads: one.
#pragma once

#include <cstdint>

#include "runtime/collectives/socket.h"

namespace holdfast {

// Refusals in a row after which a peer is given up. The pauses between them add up to about 0.15 s.
inline constexpr int kRefusalsOfTheDead = 5;

class Knock {
 public:
  // The first knock comes after a while: most peers come by themselves.
  Knock(SocketAddress address, int64_t now_ms);

  int fd() const { return fd_.get(); }  // -1 while pausing; else polled for writing
  int64_t due_ms() const { return due_ms_; }
  void On(short revents, int64_t now_ms);
  bool gone() const { return refusals_ >= kRefusalsOfTheDead; }

 private:
  void Pause(int64_t now_ms, int64_t ms);

  SocketAddress address_;
  Fd fd_;
  int64_t due_ms_;
  int refusals_ = 0;
};

}  // namespace holdfast
