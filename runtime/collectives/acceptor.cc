#include "runtime/collectives/acceptor.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/status.h"

namespace holdfast {
namespace {

constexpr size_t kMaxHeld = 256;
constexpr int64_t kHeldMs = 60'000;
constexpr int64_t kNoDescriptorsMs = 50;
constexpr int kAcceptsPerTurn = 32;

Hash128 RunHash(const std::string& run) { return Hash128Of(run.data(), run.size()); }

}  // namespace

Acceptor::Acceptor(const TcpEndpoint::Options& options, Fd listener)
    : options_(options), listener_(std::move(listener)), port_(LocalPort(listener_.get())) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Acceptor::~Acceptor() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    stop_ = true;
  }
  wake_.Signal();
  thread_.join();
}

absl::Status Acceptor::Open(const TcpEndpoint::GroupOptions& group) {
  std::lock_guard<std::mutex> lock(mu_);
  if (have_group_ && group.run == group_.run && group.generation <= group_.generation) {
    return absl::FailedPreconditionError(Cat("generation ", group.generation,
                                             " cannot be built after generation ",
                                             group_.generation, ": numbers are never used twice"));
  }
  // What was proved with another secret is proved no more.
  if (have_group_ && (group.run != group_.run || group.secret != group_.secret)) forget_ = true;
  group_ = group;
  have_group_ = open_ = true;
  taken_.assign(group.peers.size(), false);
  seats_.clear();
  regroup_ = true;
  wake_.Signal();
  return absl::OkStatus();
}

void Acceptor::Shut() {
  std::lock_guard<std::mutex> lock(mu_);
  open_ = false;
  seats_.clear();
}

std::vector<LinkSeed> Acceptor::TakeSeats() {
  std::lock_guard<std::mutex> lock(mu_);
  seated_.Drain();
  return std::exchange(seats_, {});
}

void Acceptor::Run() {
  pthread_setname_np(pthread_self(), "hf-accept");
  std::vector<pollfd> polled;
  for (;;) {
    int64_t now = BootMs();
    int64_t until = now + 1000;
    polled.assign({{wake_.fd(), POLLIN, 0}});
    const bool accepting = now >= accept_after_ms_;
    if (!accepting) until = std::min(until, accept_after_ms_);
    polled.push_back({accepting ? listener_.get() : -1, POLLIN, 0});
    for (const Guest& guest : guests_) {
      until = std::min(until, guest.until_ms);
      polled.push_back({guest.fd.get(), POLLIN, 0});
    }
    poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(0, until - now)));
    now = BootMs();
    std::unique_lock<std::mutex> lock(mu_);
    if (stop_) break;
    if (polled[0].revents != 0) wake_.Drain();
    const bool all = std::exchange(regroup_, false), forget = std::exchange(forget_, false);
    for (size_t i = 0; i < guests_.size(); ++i) {
      Guest& guest = guests_[i];
      bool keep = now < guest.until_ms;
      if (forget && (guest.phase == Phase::kHeld || guest.phase == Phase::kProof)) keep = false;
      if (keep && polled[i + 2].revents != 0) keep = Step(&guest, now);
      if (keep && all && guest.phase == Phase::kHeld && guest.fd.valid()) keep = Seat(&guest, now);
      if (keep && all && guest.phase == Phase::kNoSecret) keep = OnHello(&guest);
      if (!keep) guest.fd.Reset();
    }
    std::erase_if(guests_, [](const Guest& guest) { return !guest.fd.valid(); });
    if (polled[1].revents != 0) AcceptAll(now);
  }
  guests_.clear();
}

void Acceptor::AcceptAll(int64_t now_ms) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        accept_after_ms_ = now_ms + kNoDescriptorsMs;
        MakeRoom(1);
      }
      return;
    }
    MakeRoom(static_cast<size_t>(std::max(1, options_.max_unproved)));
    Guest guest;
    guest.fd = std::move(fd);
    guest.until_ms = now_ms + options_.hello_ms;
    guests_.push_back(std::move(guest));
  }
}

// Drops the oldest unproved guests until there are fewer than `bound`.
void Acceptor::MakeRoom(size_t bound) {
  const auto unproved = [](const Guest& g) { return g.phase != Phase::kHeld; };
  size_t count = static_cast<size_t>(std::count_if(guests_.begin(), guests_.end(), unproved));
  for (auto it = guests_.begin(); it != guests_.end() && count >= bound;) {
    const bool drop = unproved(*it);
    it = drop ? guests_.erase(it) : it + 1;
    count -= drop ? 1 : 0;
  }
}

bool Acceptor::ReadMessage(Guest* guest, size_t size, bool* whole) {
  const ssize_t n =
      recv(guest->fd.get(), &guest->bytes[guest->got], size - guest->got, MSG_DONTWAIT);
  if (n == 0) return false;
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  guest->got += static_cast<size_t>(n);
  *whole = guest->got == size;
  return true;
}

bool Acceptor::Step(Guest* guest, int64_t now_ms) {
  bool whole = false;
  switch (guest->phase) {
    case Phase::kHello: {
      if (!ReadMessage(guest, kHelloBytes, &whole)) return false;
      // Who begins wrongly is not waited for.
      const size_t magic = std::min<size_t>(guest->got, 8);
      if (EncodeHello({}).compare(0, magic, &guest->bytes[0], magic) != 0) return false;
      if (!whole) return true;
      guest->got = 0;
      return DecodeHello({&guest->bytes[0], kHelloBytes}, &guest->hello) && OnHello(guest);
    }
    case Phase::kProof:
      if (!ReadMessage(guest, kProofBytes, &whole)) return false;
      return !whole || OnProof(guest, now_ms);
    case Phase::kNoSecret:
    case Phase::kHeld: {
      // Nothing may come now: it is the end of the connection, or a fault.
      char byte;
      const ssize_t n = recv(guest->fd.get(), &byte, 1, MSG_DONTWAIT);
      return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    }
  }
  return false;
}

bool Acceptor::OnHello(Guest* guest) {
  if (!have_group_) {
    guest->phase = Phase::kNoSecret;
    return true;
  }
  if (!(guest->hello.run == RunHash(group_.run))) return false;
  guest->challenge = RandomBytes(kChallengeBytes);
  guest->phase = Phase::kProof;
  guest->got = 0;
  return SendWhole(guest->fd.get(), EncodeChallenge(guest->challenge));
}

bool Acceptor::OnProof(Guest* guest, int64_t now_ms) {
  const Transcript transcript{group_.run, guest->hello, guest->challenge};
  if (!EqualInConstantTime({&guest->bytes[0], kProofBytes}, DialerProof(group_.secret, transcript)))
    return false;
  return Seat(guest, now_ms);
}

Verdict Acceptor::Judge(const Hello& hello) const {
  if (hello.generation < group_.generation) return Verdict::kEarlierGeneration;
  if (hello.nonce != group_.nonce) return Verdict::kOtherNonce;
  const int world = static_cast<int>(group_.peers.size());
  if (hello.world != world || hello.to != group_.rank || hello.from <= group_.rank ||
      hello.from >= world) {
    return Verdict::kOtherRoster;
  }
  if (!open_ || taken_[hello.from]) return Verdict::kSeatTaken;
  return Verdict::kAccepted;
}

// A proved guest: seated, refused, or held for a later generation.
bool Acceptor::Seat(Guest* guest, int64_t now_ms) {
  if (guest->hello.generation > group_.generation) {
    if (guest->phase == Phase::kHeld) return true;
    DropDoubles(*guest);
    guest->phase = Phase::kHeld;
    guest->until_ms = now_ms + kHeldMs;
    return true;
  }
  const Transcript transcript{group_.run, guest->hello, guest->challenge};
  const Verdict verdict = Judge(guest->hello);
  const bool sent = SendWhole(guest->fd.get(), EncodeAnswer(group_.secret, transcript, verdict));
  if (!sent || verdict != Verdict::kAccepted) return false;
  const LinkKeys keys = DeriveLinkKeys(group_.secret, transcript);
  const PeerAddress& peer = group_.peers[guest->hello.from];
  taken_[guest->hello.from] = true;
  seats_.push_back({.fd = std::move(guest->fd),
                    .rank = guest->hello.from,
                    .address = AddressText(peer.host, peer.port),
                    .send_key = keys.from_listener,
                    .receive_key = keys.from_dialer});
  seated_.Signal();
  return true;
}

// The same member came again: its connection before is dead. Also keeps the number of held ones
// bounded.
void Acceptor::DropDoubles(const Guest& guest) {
  size_t held = 0;
  Guest* oldest = nullptr;
  for (Guest& other : guests_) {
    if (&other == &guest || other.phase != Phase::kHeld || !other.fd.valid()) continue;
    if (other.hello.generation == guest.hello.generation &&
        other.hello.nonce == guest.hello.nonce && other.hello.from == guest.hello.from) {
      other.fd.Reset();
      continue;
    }
    ++held;
    if (oldest == nullptr) oldest = &other;
  }
  if (held >= kMaxHeld) oldest->fd.Reset();
}

}  // namespace holdfast
