// Operations on device memory, and the waiting for them.
#include <algorithm>

#include "runtime/base/back_off.h"
#include "runtime/base/status.h"
#include "runtime/collectives/nccl/nccl_communicator.h"

namespace holdfast {
namespace {

constexpr size_t kMaxQueued = 4096;  // operations queued and not yet over

bool Bad(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

// One NCCL group: its calls become one launch. It is ended whatever comes of them.
class Grouped {
 public:
  explicit Grouped(const kernels::cuda::NcclTable& nccl)
      : nccl_(nccl), result_(nccl.GroupStart()) {}
  void Add(ncclResult_t result) {
    if (!Bad(result_) && Bad(result)) result_ = result;
  }
  ncclResult_t End() {
    const ncclResult_t end = nccl_.GroupEnd();
    return Bad(result_) ? result_ : end;
  }

 private:
  const kernels::cuda::NcclTable& nccl_;
  ncclResult_t result_;
};

// The size of all parts, if they have one; else -1.
int64_t EqualParts(std::span<const int64_t> borders) {
  const int64_t size = borders[1] - borders[0];
  for (size_t r = 1; r + 1 < borders.size(); ++r) {
    if (borders[r + 1] - borders[r] != size) return -1;
  }
  return size;
}

}  // namespace

Ticket NcclCommunicator::DeviceLane::Queue(const char* what, OpTag tag, absl::Status valid,
                                           NcclGroup::Operation operation) {
  const Ticket ticket = ++queued_;
  if (!both_.Health().ok()) return ticket;
  if (valid.ok() && closed_)
    valid = absl::FailedPreconditionError("an operation was queued after Close");
  if (valid.ok() && pending_.size() >= kMaxQueued) {
    if (!Turn().ok()) return ticket;
    if (pending_.size() >= kMaxQueued) {
      valid = absl::ResourceExhaustedError(
          Cat("more than ", kMaxQueued, " operations are queued: wait for some"));
    }
  }
  const Deadline deadline = Deadline::After(both_.context_->options.build_ms);
  if (valid.ok()) {
    valid = group_.Run(what, operation, [&]() -> absl::Status {
      HF_RETURN_IF_ERROR(both_.links_->Health());
      if (!deadline.passed()) return absl::OkStatus();
      return absl::DeadlineExceededError(
          Cat("NCCL ", what, " did not begin in ", both_.context_->options.build_ms, " ms"));
    });
  }
  if (!valid.ok()) {
    (void)both_.Fail(valid);
    return ticket;
  }
  pending_.push_back(
      {ticket, group_.stream().Record(),
       Cat(what, " (step ", tag.step, ", attempt ", tag.attempt, ", bucket ", tag.bucket, ")")});
  return ticket;
}

// Equal slices are one NCCL reduce-scatter. Uneven ones are one reduce for each rank, as one group:
// the same bytes on every link of the ring, in one launch, without a padded copy of the gradient.
template <typename T>
Ticket NcclCommunicator::DeviceLane::QueueReduceScatter(ncclDataType_t type, std::span<const T> in,
                                                        std::span<const int64_t> borders,
                                                        std::span<T> out, OpTag tag) {
  absl::Status valid = CheckBorders(borders, in.size(), world_size());
  if (valid.ok()) {
    const int64_t mine = borders[rank() + 1] - borders[rank()];
    if (static_cast<int64_t>(out.size()) != mine) {
      valid = absl::InvalidArgumentError(Cat("reduce-scatter: the output has ", out.size(),
                                             " elements, slice ", rank(), " has ", mine));
    }
  }
  return Queue("reduce-scatter", tag, valid, [&](ncclComm_t comm, cudaStream_t stream) {
    const kernels::cuda::NcclTable& nccl = *both_.context_->nccl;
    if (in.empty()) return ncclSuccess;
    if (const int64_t size = EqualParts(borders); size > 0)
      return nccl.ReduceScatter(in.data(), out.data(), size, type, ncclSum, comm, stream);
    Grouped group(nccl);
    for (int r = 0; r < world_size(); ++r) {
      const int64_t size = borders[r + 1] - borders[r];
      if (size == 0) continue;
      group.Add(nccl.Reduce(in.data() + borders[r], r == rank() ? out.data() : nullptr, size, type,
                            ncclSum, r, comm, stream));
    }
    return group.End();
  });
}

Ticket NcclCommunicator::DeviceLane::ReduceScatter(std::span<const int64_t> in,
                                                   std::span<const int64_t> borders,
                                                   std::span<int64_t> out, OpTag tag) {
  return QueueReduceScatter(ncclInt64, in, borders, out, tag);
}

Ticket NcclCommunicator::DeviceLane::ReduceScatter(std::span<const float> in,
                                                   std::span<const int64_t> borders,
                                                   std::span<float> out, OpTag tag) {
  return QueueReduceScatter(ncclFloat32, in, borders, out, tag);
}

Ticket NcclCommunicator::DeviceLane::AllReduce(std::span<int64_t> data, OpTag tag) {
  return Queue("all-reduce", tag, absl::OkStatus(), [&](ncclComm_t comm, cudaStream_t stream) {
    if (data.empty()) return ncclSuccess;
    return both_.context_->nccl->AllReduce(data.data(), data.data(), data.size(), ncclInt64,
                                           ncclSum, comm, stream);
  });
}

Ticket NcclCommunicator::DeviceLane::AllGather(std::span<std::byte> data,
                                               std::span<const int64_t> borders, OpTag tag) {
  return Queue("all-gather", tag, CheckBorders(borders, data.size(), world_size()),
               [&](ncclComm_t comm, cudaStream_t stream) {
                 const kernels::cuda::NcclTable& nccl = *both_.context_->nccl;
                 if (data.empty()) return ncclSuccess;
                 if (const int64_t size = EqualParts(borders); size > 0) {
                   return nccl.AllGather(data.data() + borders[rank()], data.data(), size,
                                         ncclUint8, comm, stream);
                 }
                 Grouped group(nccl);
                 for (int r = 0; r < world_size(); ++r) {
                   std::byte* part = data.data() + borders[r];
                   const int64_t size = borders[r + 1] - borders[r];
                   if (size > 0)
                     group.Add(nccl.Broadcast(part, part, size, ncclUint8, r, comm, stream));
                 }
                 return group.End();
               });
}

Ticket NcclCommunicator::DeviceLane::Broadcast(std::span<std::byte> data, int root, OpTag tag) {
  absl::Status valid;
  if (root < 0 || root >= world_size())
    valid = absl::InvalidArgumentError(Cat("broadcast: there is no rank ", root));
  return Queue("broadcast", tag, valid, [&](ncclComm_t comm, cudaStream_t stream) {
    if (data.empty()) return ncclSuccess;
    return both_.context_->nccl->Broadcast(data.data(), data.data(), data.size(), ncclUint8, root,
                                           comm, stream);
  });
}

Ticket NcclCommunicator::DeviceLane::Barrier(OpTag tag) {
  auto* word = both_.context_->words.as<int64_t>() + NcclContext::kBarrierWord;
  return Queue("barrier", tag, absl::OkStatus(), [&](ncclComm_t comm, cudaStream_t stream) {
    return both_.context_->nccl->AllReduce(word, word, 1, ncclInt64, ncclSum, comm, stream);
  });
}

absl::Status NcclCommunicator::DeviceLane::Turn() const {
  size_t complete = 0;
  while (complete < pending_.size() && pending_[complete].end.done()) ++complete;
  // Asked after the events: an event that only an abort has let through is not the operation's end.
  absl::Status status = both_.links_->Health();
  if (status.ok()) status = group_.Poll();
  if (status.ok() && complete > 0 && complete == pending_.size()) {
    // Nothing is left on the stream, so this returns at once, with the error of any call on it.
    status = group_.stream().Synchronize(Deadline::After(0));
    if (absl::IsDeadlineExceeded(status)) status = absl::OkStatus();
  }
  if (!status.ok()) return both_.links_->Health().ok() ? both_.Fail(status) : both_.Health();
  for (; complete > 0; --complete) {
    done_ = pending_.front().ticket;
    pending_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::DeviceLane::Wait(Ticket ticket, Deadline deadline) {
  if (ticket > queued_)
    return absl::InvalidArgumentError(Cat("wait: ticket ", ticket, " was never given out"));
  for (BackOff back_off;; back_off.Pause()) {
    HF_RETURN_IF_ERROR(both_.Health());
    HF_RETURN_IF_ERROR(Turn());
    if (done_ >= ticket) return absl::OkStatus();
    if (deadline.passed()) break;
  }
  const std::string text = pending_.empty() ? "an operation" : pending_.front().text;
  return both_.Fail(absl::DeadlineExceededError(
      Cat("the deadline of a wait passed during ", text,
          " on the GPUs: a member has not come to it, or its GPU stands still (all links live, and "
          "NCCL reports nothing)")));
}

bool NcclCommunicator::DeviceLane::Finished(Ticket ticket) const {
  return both_.Health().ok() && Turn().ok() && done_ >= ticket;
}

absl::Status NcclCommunicator::DeviceLane::Drain(Deadline deadline) {
  closed_ = true;
  return Wait(queued_, deadline);
}

}  // namespace holdfast
