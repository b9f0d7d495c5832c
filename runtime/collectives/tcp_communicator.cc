// The owner's side: checks, the queue and waiting.
#include "runtime/collectives/tcp_communicator.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <system_error>

#include "runtime/base/status.h"
#include "runtime/collectives/shm_setup.h"

namespace holdfast {
namespace {

constexpr Ticket kMaxQueued = 16384;  // operations queued and not yet over
constexpr int64_t kCancelPollMs = 20;

std::vector<int64_t> Scaled(std::span<const int64_t> borders, size_t element) {
  std::vector<int64_t> bytes(borders.begin(), borders.end());
  for (int64_t& border : bytes) border *= static_cast<int64_t>(element);
  return bytes;
}

}  // namespace

TcpCommunicator::TcpCommunicator(const Options& options, std::vector<LinkSeed> seeds)
    : at_{options.rank, static_cast<int>(seeds.size()) + 1},
      detect_ms_(options.detect_ms),
      beat_ms_(std::max<int64_t>(1, options.detect_ms / 5)) {
  links_.resize(static_cast<size_t>(at_.world));
  for (LinkSeed& seed : seeds) {
    const int rank = seed.rank;
    links_[rank] = std::make_unique<Link>(std::move(seed), options.nonce);
  }
}

TcpCommunicator::~TcpCommunicator() {
  RequestAbort(absl::AbortedError(
                   Cat("rank ", at_.rank, " dropped the communicator without an orderly end")),
               0);
  if (thread_.joinable()) thread_.join();
}

absl::Status TcpCommunicator::Start(Deadline deadline, const std::atomic<bool>* cancel) {
  const int64_t now = BootMs();
  for (auto& link : links_) {
    if (link != nullptr) link->last_sent_ms = now;
  }
  // Signals are for other threads of the process.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  absl::Status started;
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& e) {
    started = absl::ResourceExhaustedError(Cat("cannot start the I/O thread: ", e.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started.ok()) {
    std::lock_guard<std::mutex> lock(mu_);
    stopped_ = true;
    return started;
  }
  return WaitInBuild(Barrier({.step = -1}), deadline, cancel);
}

absl::Status TcpCommunicator::WaitInBuild(Ticket ticket, Deadline deadline,
                                          const std::atomic<bool>* cancel) {
  for (;;) {
    const Waited waited = WaitUntil(ticket, std::min(deadline.left_ms(), kCancelPollMs));
    if (waited == Waited::kDone) return absl::OkStatus();
    if (waited == Waited::kFailed) return Health();
    if (cancel != nullptr && cancel->load()) {
      const absl::Status cancelled = absl::CancelledError("the build was cancelled");
      Abort(cancelled);  // and lets go of the buffers
      return cancelled;
    }
    if (deadline.passed()) return Wait(ticket, deadline);
  }
}

absl::Status TcpCommunicator::AgreeOnCarrier(const TcpEndpoint::GroupOptions& group,
                                             Deadline deadline, const std::atomic<bool>* cancel) {
  std::vector<std::string> names;
  for (size_t r = 0; r < group.peers.size(); ++r)
    names.push_back(
        Cat("rank ", r, " (", AddressText(group.peers[r].host, group.peers[r].port), ")"));
  int32_t turn = 0;
  const ShmGather gather = [&](std::span<std::byte> all, size_t each) {
    std::vector<int64_t> borders;
    for (int r = 0; r <= at_.world; ++r) borders.push_back(r * static_cast<int64_t>(each));
    return WaitInBuild(AllGather(all, borders, {-1, ++turn, 0}), deadline, cancel);
  };
  ShmSetup setup(group, std::move(names), gather, [this] { return Health(); });
  std::unique_ptr<ShmChannel> channel;
  std::string why_not;
  HF_RETURN_IF_ERROR(setup.Run(deadline, cancel, &channel, &why_not));
  carrier_ = channel != nullptr ? "shm" : Cat("tcp (", why_not, ")");
  std::lock_guard<std::mutex> lock(mu_);
  shm_ = std::move(channel);
  return absl::OkStatus();
}

Ticket TcpCommunicator::Enqueue(std::unique_ptr<Operation> op, absl::Status valid) {
  std::lock_guard<std::mutex> lock(mu_);
  const Ticket ticket = ++queued_;
  if (valid.ok() && closing_)
    valid = absl::FailedPreconditionError("an operation was queued after Close");
  if (valid.ok() && queued_ - done_ > kMaxQueued) {
    valid = absl::ResourceExhaustedError(
        Cat("more than ", kMaxQueued, " operations are queued: wait for some"));
  }
  if (!error_.ok()) return ticket;
  if (valid.ok()) {
    closing_ = op->kind == OpKind::kClose;
    op->index = ticket;
    queue_.push_back(std::move(op));
  } else {
    error_ = valid;
  }
  wake_.Signal();
  return ticket;
}

template <typename T>
Ticket TcpCommunicator::QueueReduceScatter(OpKind kind, std::span<const T> in,
                                           std::span<const int64_t> borders, std::span<T> out,
                                           OpTag tag) {
  auto op = std::make_unique<Operation>();
  absl::Status valid = CheckBorders(borders, in.size(), at_.world);
  if (valid.ok()) {
    op->kind = kind;
    op->tag = tag;
    op->in = reinterpret_cast<const std::byte*>(in.data());
    op->data = reinterpret_cast<std::byte*>(out.data());
    op->borders = Scaled(borders, sizeof(T));
    FixShape(op.get(), at_.world);
    const int64_t mine = borders[at_.rank + 1] - borders[at_.rank];
    if (static_cast<int64_t>(out.size()) != mine) {
      valid = absl::InvalidArgumentError(Cat("reduce-scatter: the output has ", out.size(),
                                             " elements, slice ", at_.rank, " has ", mine));
    }
  }
  return Enqueue(std::move(op), valid);
}

Ticket TcpCommunicator::ReduceScatter(std::span<const int64_t> in, std::span<const int64_t> borders,
                                      std::span<int64_t> out, OpTag tag) {
  return QueueReduceScatter(OpKind::kReduceScatter, in, borders, out, tag);
}

Ticket TcpCommunicator::ReduceScatter(std::span<const float> in, std::span<const int64_t> borders,
                                      std::span<float> out, OpTag tag) {
  return QueueReduceScatter(OpKind::kReduceScatterFloat, in, borders, out, tag);
}

Ticket TcpCommunicator::AllReduce(std::span<int64_t> data, OpTag tag) {
  auto op = std::make_unique<Operation>();
  op->kind = OpKind::kAllReduce;
  op->tag = tag;
  op->data = reinterpret_cast<std::byte*>(data.data());
  op->borders = Scaled(Slices(static_cast<int64_t>(data.size()), 1, at_.world), sizeof(int64_t));
  FixShape(op.get(), at_.world);
  return Enqueue(std::move(op), absl::OkStatus());
}

Ticket TcpCommunicator::AllGather(std::span<std::byte> data, std::span<const int64_t> borders,
                                  OpTag tag) {
  auto op = std::make_unique<Operation>();
  const absl::Status valid = CheckBorders(borders, data.size(), at_.world);
  op->kind = OpKind::kAllGather;
  op->tag = tag;
  op->data = data.data();
  op->borders.assign(borders.begin(), borders.end());
  if (valid.ok()) FixShape(op.get(), at_.world);
  return Enqueue(std::move(op), valid);
}

Ticket TcpCommunicator::Broadcast(std::span<std::byte> data, int root, OpTag tag) {
  auto op = std::make_unique<Operation>();
  absl::Status valid;
  if (root < 0 || root >= at_.world)
    valid = absl::InvalidArgumentError(Cat("broadcast: there is no rank ", root));
  op->kind = OpKind::kBroadcast;
  op->tag = tag;
  op->root = root;
  op->data = data.data();
  op->borders = {0, static_cast<int64_t>(data.size())};
  FixShape(op.get(), at_.world);
  return Enqueue(std::move(op), valid);
}

Ticket TcpCommunicator::Barrier(OpTag tag) {
  auto op = std::make_unique<Operation>();
  op->kind = OpKind::kBarrier;
  op->tag = tag;
  FixShape(op.get(), at_.world);
  return Enqueue(std::move(op), absl::OkStatus());
}

TcpCommunicator::Waited TcpCommunicator::WaitUntil(Ticket ticket, int64_t wait_ms) {
  const Deadline deadline = Deadline::After(wait_ms);
  std::unique_lock<std::mutex> lock(mu_);
  for (;;) {
    if (!error_.ok() && stopped_) return Waited::kFailed;
    if (error_.ok() && ticket <= done_) return Waited::kDone;
    // An error is there but the I/O thread may still be in a buffer: it stops within a chunk.
    if (error_.ok() && deadline.passed()) return Waited::kTime;
    changed_.wait_for(lock,
                      std::chrono::milliseconds(std::clamp<int64_t>(deadline.left_ms(), 1, 1000)));
  }
}

absl::Status TcpCommunicator::Wait(Ticket ticket, Deadline deadline) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (ticket > queued_)
      return absl::InvalidArgumentError(Cat("wait: ticket ", ticket, " was never given out"));
  }
  Waited waited = WaitUntil(ticket, deadline.left_ms());
  if (waited == Waited::kTime) {
    RequestAbort(absl::AbortedError("the deadline of a wait passed"), ticket);
    waited = WaitUntil(ticket, 0);
    std::lock_guard<std::mutex> lock(mu_);
    if (error_.ok()) return absl::OkStatus();  // done at the last moment
    return late_ ? absl::DeadlineExceededError(error_.message()) : error_;
  }
  return waited == Waited::kDone ? absl::OkStatus() : Health();
}

bool TcpCommunicator::Finished(Ticket ticket) const {
  std::lock_guard<std::mutex> lock(mu_);
  return error_.ok() && ticket <= done_;
}

absl::Status TcpCommunicator::Health() const {
  std::lock_guard<std::mutex> lock(mu_);
  return error_;
}

int TcpCommunicator::FailedRank() const {
  std::lock_guard<std::mutex> lock(mu_);
  return failed_rank_;
}

void TcpCommunicator::RequestAbort(const absl::Status& why, Ticket late) {
  std::unique_lock<std::mutex> lock(mu_);
  const bool won =
      late > 0 && done_ >= late;  // the operation was done before its deadline could abort it
  if (error_.ok() && !won && !stopped_) {
    error_ = absl::AbortedError(why.message());
    late_ = late > 0;
    wake_.Signal();
  }
  // The buffers are the caller's again when the I/O thread has let go of them.
  while (!error_.ok() && !stopped_ && thread_.joinable())
    changed_.wait_for(lock, std::chrono::seconds(1));
}

void TcpCommunicator::Abort(const absl::Status& why) { RequestAbort(why, 0); }

absl::Status TcpCommunicator::Close(Deadline deadline) {
  auto op = std::make_unique<Operation>();
  op->kind = OpKind::kClose;
  FixShape(op.get(), at_.world);
  return Wait(Enqueue(std::move(op), absl::OkStatus()), deadline);
}

}  // namespace holdfast
