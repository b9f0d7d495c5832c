#include "runtime/collectives/dialer.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "runtime/base/digest.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {

constexpr int64_t kFirstPauseMs = 5;
constexpr int64_t kLongestPauseMs = 100;
constexpr int64_t kConnectTryMs = 1000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

Dialer::Dialer(const TcpEndpoint::GroupOptions& group, int to, SocketAddress address)
    : group_(group), to_(to), address_(address), pause_ms_(kFirstPauseMs) {}

short Dialer::events() const { return state_ == State::kConnecting ? POLLOUT : POLLIN; }

void Dialer::On(short revents, int64_t now_ms) {
  switch (state_) {
    case State::kPause:
      if (now_ms >= due_ms_) Connect(now_ms);
      return;
    case State::kConnecting:
      if (revents != 0) {
        const int error = ConnectResult(fd_.get());
        refusals_ = error == ECONNREFUSED ? refusals_ + 1 : 0;
        if (error != 0) return Retry(ErrnoText(error), now_ms);
        return SendHello(now_ms);
      }
      if (now_ms >= due_ms_) Retry("no answer to the connection request", now_ms);
      return;
    case State::kChallenge:
      if (revents != 0) OnChallenge(now_ms);
      return;
    case State::kAnswer:
      if (revents != 0) OnAnswer(now_ms);
      return;
    case State::kDone:
    case State::kRefused:
      return;
  }
}

void Dialer::Connect(int64_t now_ms) {
  auto fd = StartConnect(address_);
  if (!fd.ok()) return Retry(std::string(fd.status().message()), now_ms);
  fd_ = std::move(*fd);
  state_ = State::kConnecting;
  due_ms_ = now_ms + kConnectTryMs;
}

void Dialer::SendHello(int64_t now_ms) {
  hello_.run = Hash128Of(group_.run.data(), group_.run.size());
  hello_.generation = group_.generation;
  hello_.nonce = group_.nonce;
  hello_.from = group_.rank;
  hello_.to = to_;
  hello_.world = static_cast<int32_t>(group_.peers.size());
  hello_.challenge = RandomBytes(kChallengeBytes);
  if (!SendWhole(fd_.get(), EncodeHello(hello_)))
    return Retry("the hello could not be sent", now_ms);
  state_ = State::kChallenge;
  due_ms_ = kNever;  // it may be held until the peer builds this generation, too
  got_ = 0;
}

bool Dialer::ReadMessage(size_t size, int64_t now_ms) {
  const ssize_t n = recv(fd_.get(), &bytes_[got_], size - got_, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (n <= 0) {
    Retry("it closed the connection during the hello (other run, other secret, or not there yet)",
          now_ms);
    return false;
  }
  got_ += static_cast<size_t>(n);
  return got_ == size;
}

void Dialer::OnChallenge(int64_t now_ms) {
  if (!ReadMessage(kChallengeMessageBytes, now_ms)) return;
  if (!DecodeChallenge({bytes_.data(), kChallengeMessageBytes}, &challenge_)) {
    return Retry("what answered there is no worker of Holdfast", now_ms);
  }
  if (!SendWhole(fd_.get(), DialerProof(group_.secret, {group_.run, hello_, challenge_}))) {
    return Retry("the proof could not be sent", now_ms);
  }
  state_ = State::kAnswer;
  got_ = 0;
}

void Dialer::OnAnswer(int64_t now_ms) {
  if (!ReadMessage(kAnswerBytes, now_ms)) return;
  Verdict verdict;
  if (!DecodeAnswer({bytes_.data(), kAnswerBytes}, group_.secret, {group_.run, hello_, challenge_},
                    &verdict)) {
    return Retry("it does not know the run's secret", now_ms);
  }
  if (verdict != Verdict::kAccepted) {
    reason_ = std::string(VerdictText(verdict));
    state_ = State::kRefused;
    fd_.Reset();
    return;
  }
  state_ = State::kDone;
}

void Dialer::Retry(const std::string& reason, int64_t now_ms) {
  reason_ = reason;
  fd_.Reset();
  state_ = State::kPause;
  due_ms_ = now_ms + pause_ms_;
  pause_ms_ = std::min(kLongestPauseMs, pause_ms_ * 2);
}

LinkSeed Dialer::Take() {
  const LinkKeys keys = DeriveLinkKeys(group_.secret, {group_.run, hello_, challenge_});
  const PeerAddress& peer = group_.peers[to_];
  return {.fd = std::move(fd_),
          .rank = to_,
          .address = AddressText(peer.host, peer.port),
          .send_key = keys.from_dialer,
          .receive_key = keys.from_listener};
}

}  // namespace holdfast
