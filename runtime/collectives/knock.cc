#include "runtime/collectives/knock.h"

#include <cerrno>

namespace holdfast {
namespace {

constexpr int64_t kFirstMs = 200;
constexpr int64_t kAfterRefusalMs = 30;
constexpr int64_t kAfterAnswerMs = 500;
constexpr int64_t kConnectTryMs = 1000;

}  // namespace

Knock::Knock(SocketAddress address, int64_t now_ms)
    : address_(address), due_ms_(now_ms + kFirstMs) {}

void Knock::Pause(int64_t now_ms, int64_t ms) {
  fd_.Reset();
  due_ms_ = now_ms + ms;
}

void Knock::On(short revents, int64_t now_ms) {
  if (!fd_.valid()) {
    if (now_ms < due_ms_) return;
    auto fd = StartConnect(address_);
    if (!fd.ok())
      return Pause(now_ms, kAfterAnswerMs);  // of this side: says nothing about the peer
    fd_ = std::move(*fd);
    due_ms_ = now_ms + kConnectTryMs;
    return;
  }
  if (revents == 0) {
    if (now_ms >= due_ms_)
      Pause(now_ms, kAfterAnswerMs);  // the beats and the deadline are for those
    return;
  }
  const bool refused = ConnectResult(fd_.get()) == ECONNREFUSED;
  refusals_ = refused ? refusals_ + 1 : 0;
  Pause(now_ms, refused ? kAfterRefusalMs : kAfterAnswerMs);
}

}  // namespace holdfast
