// The endpoint and the build of one generation: the member dials all lower ranks and is dialed by
// all higher ones.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <system_error>

#include "runtime/base/status.h"
#include "runtime/collectives/acceptor.h"
#include "runtime/collectives/communicator.h"
#include "runtime/collectives/dialer.h"
#include "runtime/collectives/knock.h"
#include "runtime/collectives/tcp_communicator.h"

namespace holdfast {
namespace {

constexpr int64_t kCancelPollMs = 20;

absl::Status CheckGroup(const TcpEndpoint::GroupOptions& group) {
  const int world = static_cast<int>(group.peers.size());
  if (world < 1 || world > TcpEndpoint::kMaxWorldSize) {
    return absl::InvalidArgumentError(Cat("build: ", world, " members; 1 to ",
                                          TcpEndpoint::kMaxWorldSize, " are possible over TCP"));
  }
  if (group.rank < 0 || group.rank >= world)
    return absl::InvalidArgumentError(Cat("build: no rank ", group.rank));
  if (group.run.empty() || group.secret.empty())
    return absl::InvalidArgumentError("build: no run id or no secret");
  if (group.detect_ms < 10)
    return absl::InvalidArgumentError("build: detect_ms must be at least 10");
  return absl::OkStatus();
}

// One build, from Open to the last link.
class Build {
 public:
  Build(const TcpEndpoint::GroupOptions& group, const std::atomic<bool>* cancel, Acceptor* acceptor)
      : group_(group),
        cancel_(cancel),
        acceptor_(acceptor),
        deadline_(Deadline::After(group.connect_ms)) {
    links_.resize(group.peers.size());
  }

  absl::StatusOr<std::vector<LinkSeed>> Run() {
    const absl::Status status = Connect();
    if (!status.ok()) {
      SayWhy(status);
      return status;
    }
    std::vector<LinkSeed> seeds;
    for (LinkSeed& link : links_) {
      if (link.fd.valid()) seeds.push_back(std::move(link));
    }
    return seeds;
  }

  absl::Status Connect() {
    HF_RETURN_IF_ERROR(MakeDialers());
    while (!Complete()) {
      if (cancel_ != nullptr && cancel_->load())
        return absl::CancelledError("the build was cancelled");
      if (deadline_.passed()) {
        return absl::DeadlineExceededError(Cat("build of generation ", group_.generation,
                                               ": no link in ", group_.connect_ms, " ms with ",
                                               Missing()));
      }
      HF_RETURN_IF_ERROR(Turn());
    }
    return absl::OkStatus();
  }

  // Ranks without a link now. Who was linked and gave up with a reason was reached.
  std::vector<int> Unreached() const {
    std::vector<int> ranks;
    for (int r = 0; r < static_cast<int>(links_.size()); ++r) {
      if (r != group_.rank && !links_[r].fd.valid()) ranks.push_back(r);
    }
    return ranks;
  }
  Deadline deadline() const { return deadline_; }

 private:
  absl::Status MakeDialers() {
    for (int to = 0; to < group_.rank; ++to) {
      const PeerAddress& peer = group_.peers[to];
      auto address = ResolveHost(peer.host, peer.port, deadline_, cancel_);
      if (!address.ok()) return Annotate(address.status(), Cat("build: rank ", to));
      dialers_.emplace_back(group_, to, *address);
    }
    const int world = static_cast<int>(group_.peers.size());
    for (int from = group_.rank + 1; from < world; ++from) {
      const PeerAddress& peer = group_.peers[from];
      auto address = ResolveHost(peer.host, peer.port, deadline_, cancel_);
      if (!address.ok()) return Annotate(address.status(), Cat("build: rank ", from));
      knocks_.emplace_back(*address, BootMs());
    }
    return absl::OkStatus();
  }

  Knock& knock(size_t rank) { return knocks_[rank - static_cast<size_t>(group_.rank) - 1]; }
  bool awaited(size_t rank) const {
    return rank > static_cast<size_t>(group_.rank) && !links_[rank].fd.valid();
  }

  absl::Status Gone(int rank) const {
    const PeerAddress& peer = group_.peers[rank];
    return absl::AbortedError(Cat("build of generation ", group_.generation, ": rank ", rank, " (",
                                  AddressText(peer.host, peer.port),
                                  ") does not listen any more: its process has ended"));
  }

  // The members that are linked already learn why this build ends, so that they name the right one.
  void SayWhy(const absl::Status& status) {
    const std::vector<int> missing = Unreached();
    const Goodbye goodbye{missing.empty() ? -1 : missing[0], group_.rank,
                          std::string(status.message())};
    for (const LinkSeed& link : links_) {
      if (link.fd.valid())
        SendWhole(link.fd.get(), EncodeGoodbye(goodbye, group_.nonce, link.send_key));
    }
  }

  bool Complete() const { return Unreached().empty(); }

  std::string Missing() const {
    std::string text;
    for (const int r : Unreached()) {
      const PeerAddress& peer = group_.peers[r];
      const std::string why = r < group_.rank ? dialers_[r].reason() : "it did not come";
      text += Cat(text.empty() ? "" : "; ", "rank ", r, " (", AddressText(peer.host, peer.port),
                  "): ", why);
    }
    return text;
  }

  absl::Status Turn() {
    std::vector<pollfd> polled = {{acceptor_->seated().fd(), POLLIN, 0}};
    int64_t now = BootMs();
    int64_t due = now + std::min(kCancelPollMs, deadline_.left_ms());
    for (const Dialer& dialer : dialers_) {
      const bool over = dialer.state() == Dialer::State::kDone;
      polled.push_back({over ? -1 : dialer.fd(), dialer.events(), 0});
      if (!over) due = std::min(due, dialer.due_ms());
    }
    // A link that stands, or a peer that is still to come.
    const size_t first_link = polled.size();
    for (size_t r = 0; r < links_.size(); ++r) {
      if (!awaited(r)) {
        polled.push_back({links_[r].fd.get(), POLLRDHUP, 0});
        continue;
      }
      polled.push_back({knock(r).fd(), POLLOUT, 0});
      due = std::min(due, knock(r).due_ms());
    }
    poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(0, due - now)));
    now = BootMs();
    for (size_t i = 0; i < dialers_.size(); ++i)
      HF_RETURN_IF_ERROR(OnDialer(&dialers_[i], polled[i + 1].revents, now));
    for (size_t r = 0; r < links_.size(); ++r) {
      const short revents = polled[first_link + r].revents;
      if (awaited(r)) {
        knock(r).On(revents, now);
        if (knock(r).gone()) return Gone(static_cast<int>(r));
      } else if (links_[r].fd.valid() && revents != 0) {
        return OnClosed(&links_[r]);
      }
    }
    if (polled[0].revents != 0) {
      for (LinkSeed& seed : acceptor_->TakeSeats()) {
        const int rank = seed.rank;
        links_[rank] = std::move(seed);
      }
    }
    return absl::OkStatus();
  }

  // A peer that gave up says why; one that did not is dead.
  absl::Status OnClosed(LinkSeed* link) {
    const std::string peer = Cat("rank ", link->rank, " (", link->address, ")");
    char tail[4 * kGoodbyeFrameBytes];
    const ssize_t n = recv(link->fd.get(), tail, sizeof tail, MSG_PEEK | MSG_DONTWAIT);
    Goodbye goodbye;
    if (n > 0 &&
        FindGoodbye({tail, static_cast<size_t>(n)}, group_.nonce, link->receive_key, &goodbye)) {
      return absl::AbortedError(Cat(goodbye.text, " (said by ", peer, ")"));
    }
    link->fd.Reset();
    return absl::AbortedError(
        Cat(peer, " closed its connection during the build of generation ", group_.generation));
  }

  absl::Status OnDialer(Dialer* dialer, short revents, int64_t now_ms) {
    if (dialer->state() == Dialer::State::kDone) return absl::OkStatus();
    dialer->On(revents, now_ms);
    if (dialer->state() == Dialer::State::kDone) links_[dialer->to()] = dialer->Take();
    if (dialer->gone()) return Gone(dialer->to());
    if (dialer->state() != Dialer::State::kRefused) return absl::OkStatus();
    return absl::AbortedError(Cat("build of generation ", group_.generation, ": rank ",
                                  dialer->to(), " refused this rank ", group_.rank, ": ",
                                  dialer->reason()));
  }

  const TcpEndpoint::GroupOptions& group_;
  const std::atomic<bool>* cancel_;
  Acceptor* acceptor_;
  Deadline deadline_;
  std::vector<Dialer> dialers_;  // index = rank
  std::vector<Knock> knocks_;    // of the higher ranks
  std::vector<LinkSeed> links_;  // index = rank
};

class Endpoint final : public TcpEndpoint {
 public:
  Endpoint(const Options& options, Fd listener) : acceptor_(options, std::move(listener)) {}

  int port() const override { return acceptor_.port(); }
  std::vector<int> Unreached() const override { return unreached_; }

  absl::StatusOr<std::unique_ptr<Communicator>> Build(const GroupOptions& options,
                                                      const std::atomic<bool>* cancel) override {
    unreached_.clear();
    HF_RETURN_IF_ERROR(CheckGroup(options));
    HF_RETURN_IF_ERROR(acceptor_.Open(options));
    if (options.peers.size() == 1) {
      acceptor_.Shut();
      return MakeLocalCommunicator();
    }
    holdfast::Build build(options, cancel, &acceptor_);
    auto seeds = build.Run();
    acceptor_.Shut();
    if (!seeds.ok()) {
      unreached_ = build.Unreached();
      return seeds.status();
    }
    for (const LinkSeed& seed : *seeds) {
      // The beats find a silent peer; the kernel's own timer is the second net.
      SetLinkOptions(seed.fd.get(), std::max<int64_t>(10'000, 10 * options.detect_ms));
    }
    auto communicator = std::make_unique<TcpCommunicator>(
        TcpCommunicator::Options{
            .rank = options.rank, .nonce = options.nonce, .detect_ms = options.detect_ms},
        std::move(*seeds));
    absl::Status started = communicator->Start(build.deadline(), cancel);
    if (started.ok() && options.agree_on_transport)
      started = communicator->AgreeOnCarrier(options, build.deadline(), cancel);
    if (!started.ok()) {
      if (communicator->FailedRank() >= 0) unreached_ = {communicator->FailedRank()};
      return Annotate(started, Cat("build of generation ", options.generation));
    }
    return std::unique_ptr<Communicator>(std::move(communicator));
  }

 private:
  Acceptor acceptor_;
  std::vector<int> unreached_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TcpEndpoint>> TcpEndpoint::Listen(const Options& options) {
  const auto address = ResolveHost(options.bind_host, options.port, Deadline::After(5000), nullptr);
  if (!address.ok()) return Annotate(address.status(), "listening address");
  auto listener = ListenOn(*address);
  if (!listener.ok()) {
    return Annotate(listener.status(),
                    Cat("cannot listen on ", AddressText(options.bind_host, options.port),
                        ": choose another address or port"));
  }
  try {
    return std::unique_ptr<TcpEndpoint>(new Endpoint(options, std::move(*listener)));
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(Cat("cannot start the accepting thread: ", e.what()));
  }
}

}  // namespace holdfast
