// The dialing side of one link of a build: connects, proves itself, and tries again after a pause
// until it stands, is refused by a proved peer, or the build ends. A state machine driven by the
// build's poll loop; not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "runtime/collectives/communicator.h"
#include "runtime/collectives/hello.h"
#include "runtime/collectives/knock.h"
#include "runtime/collectives/link.h"
#include "runtime/collectives/socket.h"

namespace holdfast {

class Dialer {
 public:
  enum class State { kPause, kConnecting, kChallenge, kAnswer, kDone, kRefused };

  // `group` must outlive the dialer.
  Dialer(const TcpEndpoint::GroupOptions& group, int to, SocketAddress address);

  int to() const { return to_; }
  State state() const { return state_; }
  int fd() const { return fd_.get(); }  // -1 while pausing
  short events() const;
  // When On must be called although nothing happened on the descriptor.
  int64_t due_ms() const { return due_ms_; }
  void On(short revents, int64_t now_ms);
  // kDone: the link.
  LinkSeed Take();
  // The peer's process has ended: see knock.h.
  bool gone() const { return refusals_ >= kRefusalsOfTheDead; }
  // What went wrong last, for the message of a build that failed.
  const std::string& reason() const { return reason_; }

 private:
  void Connect(int64_t now_ms);
  void SendHello(int64_t now_ms);
  void OnChallenge(int64_t now_ms);
  void OnAnswer(int64_t now_ms);
  void Retry(const std::string& reason, int64_t now_ms);
  // True when `size` bytes are here; on the end of the stream or an error it retries.
  bool ReadMessage(size_t size, int64_t now_ms);

  const TcpEndpoint::GroupOptions& group_;
  const int to_;
  const SocketAddress address_;
  State state_ = State::kPause;
  Fd fd_;
  int64_t due_ms_ = 0;
  int64_t pause_ms_;
  int refusals_ = 0;  // in a row
  Hello hello_;
  std::string challenge_;  // the listener's
  std::array<char, kChallengeMessageBytes> bytes_;
  size_t got_ = 0;
  std::string reason_ = "no attempt was made";
};

}  // namespace holdfast
