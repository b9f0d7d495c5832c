#include "runtime/collectives/nccl/group.h"

#include <algorithm>

#include "runtime/base/back_off.h"
#include "runtime/base/failpoint.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {

ncclConfig_t Config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  // Sharing would tie an abort of one communicator to its relatives.
  config.splitShare = 0;
  config.shrinkShare = 0;
  return config;
}

}  // namespace

NcclGroup::NcclGroup(std::shared_ptr<const NcclContext> context, uint64_t generation, int rank,
                     int world)
    : context_(std::move(context)),
      nccl_(*context_->nccl),
      generation_(generation),
      rank_(rank),
      world_(world),
      stream_(context_->device().NewStream()) {}

NcclGroup::~NcclGroup() { Abort({this}); }

absl::Status NcclGroup::Judge(const char* what, ncclResult_t result) {
  if (!Bad(result)) return error_;
  if (!error_.ok()) return error_;
  error_ = context_->device().Health();
  if (!error_.ok()) return error_;
  std::string text = Cat("NCCL ", what, ": ", nccl_.GetErrorString(result));
  const char* last = nccl_.GetLastError(comm_);
  if (last != nullptr && *last != '\0') text += Cat(" (its last message: ", last, ")");
  error_ =
      result == ncclInvalidUsage ? absl::FailedPreconditionError(text) : absl::AbortedError(text);
  return error_;
}

absl::StatusOr<ncclUniqueId> NcclGroup::NewId(const NcclContext& context) {
  ncclUniqueId id;
  const auto armed = context.guard->Arm("ncclGetUniqueId", context.options.build_ms);
  const ncclResult_t result = context.nccl->GetUniqueId(&id);
  if (result == ncclSuccess) return id;
  return absl::AbortedError(
      Cat("NCCL cannot make a unique id: ", context.nccl->GetErrorString(result),
          ": its sockets need a network interface that is up (NCCL_SOCKET_IFNAME)"));
}

absl::Status NcclGroup::Await(const char* what, Check check) {
  for (BackOff back_off;; back_off.Pause()) {
    ncclResult_t state = ncclSuccess;
    HF_RETURN_IF_ERROR(Judge(what, nccl_.CommGetAsyncError(comm_, &state)));
    HF_RETURN_IF_ERROR(Judge(what, state));
    if (state == ncclSuccess) return absl::OkStatus();
    HF_RETURN_IF_ERROR(check());
  }
}

absl::Status NcclGroup::Init(const ncclUniqueId& id, Check check) {
  Failpoint("nccl.before_init", static_cast<int64_t>(generation_));
  ncclConfig_t config = Config();
  {
    const auto armed = context_->guard->Arm("ncclCommInitRankConfig", context_->options.build_ms);
    HF_RETURN_IF_ERROR(Judge("init", nccl_.CommInitRankConfig(&comm_, world_, id, rank_, &config)));
  }
  Failpoint("nccl.in_init", static_cast<int64_t>(generation_));
  return Await("init", check);
}

absl::Status NcclGroup::ShrinkFrom(NcclGroup& parent, std::vector<int> excluded, Check check) {
  ncclConfig_t config = Config();
  parent.over_ = true;
  {
    // It stops the parent's kernels and waits for them in this thread, as an abort does.
    const auto armed = context_->guard->Arm("ncclCommShrink", context_->options.abort_ms);
    HF_RETURN_IF_ERROR(Judge(
        "shrink", nccl_.CommShrink(parent.comm_, excluded.data(), static_cast<int>(excluded.size()),
                                   &comm_, &config, NCCL_SHRINK_ABORT)));
  }
  Failpoint("nccl.in_shrink", static_cast<int64_t>(generation_));
  // The parent says how far it is; the new communicator appears when it is complete.
  HF_RETURN_IF_ERROR(parent.Await("shrink", check));
  if (comm_ == nullptr) {
    error_ = absl::AbortedError("NCCL shrink: it gave no communicator and no error");
    return error_;
  }
  return Await("shrink", check);
}

absl::Status NcclGroup::FirstContact(Check check) {
  kernels::Device& device = context_->device();
  auto* host = context_->host_words.as<int64_t>();
  auto* word = context_->words.as<int64_t>();
  host[0] = rank_ + 1;
  host[1] = 0;
  device.Copy(*stream_, word, host, 2 * sizeof(int64_t));
  HF_RETURN_IF_ERROR(Run(
      "first all-reduce",
      [&](ncclComm_t comm, cudaStream_t stream) {
        return nccl_.AllReduce(word, word, 1, ncclInt64, ncclSum, comm, stream);
      },
      check));
  device.Copy(*stream_, host, word, sizeof(int64_t));
  const kernels::Event end = stream_->Record();
  for (BackOff back_off; !end.done(); back_off.Pause()) {
    HF_RETURN_IF_ERROR(check());
    HF_RETURN_IF_ERROR(Poll());
  }
  HF_RETURN_IF_ERROR(Poll());
  HF_RETURN_IF_ERROR(stream_->Synchronize(Deadline::After(context_->options.abort_ms)));
  const int64_t right = static_cast<int64_t>(world_) * (world_ + 1) / 2;
  if (host[0] == right) return absl::OkStatus();
  error_ = absl::AbortedError(
      Cat("NCCL added the ranks 1 to ", world_, " up to ", host[0], " instead of ", right,
          ": the GPUs do not reach each other's memory as they say (NCCL_P2P_DISABLE=1 goes round "
          "it; PCI access control or a container setting is the usual cause)"));
  return error_;
}

absl::Status NcclGroup::Run(const char* what, Operation operation, Check check) {
  HF_RETURN_IF_ERROR(error_);
  if (!healthy()) return absl::AbortedError(Cat("NCCL ", what, ": its communicator is gone"));
  ncclResult_t result = ncclSuccess;
  {
    // A launch may wait for room in the GPU's queue, never for another member.
    const auto armed = context_->guard->Arm(what, context_->options.build_ms);
    result = operation(comm_, static_cast<cudaStream_t>(stream_->native()));
  }
  HF_RETURN_IF_ERROR(Judge(what, result));
  // The first operation of a kind connects to the peers, in NCCL's own thread: only then is its
  // kernel on the stream.
  return result == ncclInProgress ? Await(what, check) : absl::OkStatus();
}

absl::Status NcclGroup::Poll() {
  HF_RETURN_IF_ERROR(error_);
  error_ = context_->device().Health();
  if (!error_.ok() || comm_ == nullptr || over_) return error_;
  ncclResult_t state = ncclSuccess;
  HF_RETURN_IF_ERROR(Judge("error query", nccl_.CommGetAsyncError(comm_, &state)));
  return Judge("reports", state);
}

absl::Status NcclGroup::Finalize(Check check) {
  HF_RETURN_IF_ERROR(error_);
  if (!healthy()) return absl::AbortedError("NCCL finalize: its communicator is gone");
  over_ = true;
  absl::Status done;
  {
    const auto armed = context_->guard->Arm("ncclCommFinalize", context_->options.abort_ms);
    done = Judge("finalize", nccl_.CommFinalize(comm_));
  }
  if (done.ok()) done = Await("finalize", check);
  if (!done.ok()) return done;
  const auto armed = context_->guard->Arm("ncclCommDestroy", context_->options.abort_ms);
  done = Judge("destroy", nccl_.CommDestroy(comm_));
  comm_ = nullptr;
  return done;
}

void NcclGroup::Abort(std::initializer_list<NcclGroup*> groups) {
  // Twice: a shrink that ends because its parent is aborted may still leave its child behind.
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<NcclGroup*> there;
    for (NcclGroup* group : groups) {
      if (group != nullptr && __atomic_load_n(&group->comm_, __ATOMIC_ACQUIRE) != nullptr)
        there.push_back(group);
    }
    if (there.empty()) return;
    const NcclContext& context = *there.front()->context_;
    const kernels::cuda::NcclTable& nccl = *context.nccl;
    ncclResult_t result = ncclSuccess;
    {
      const auto armed = context.guard->Arm("ncclCommAbort", context.options.abort_ms);
      Failpoint("nccl.in_abort", static_cast<int64_t>(there.front()->generation_));
      result = nccl.GroupStart();
      for (NcclGroup* group : there) {
        const ncclResult_t one = nccl.CommAbort(group->comm_);
        if (Bad(one)) result = one;
      }
      const ncclResult_t end = nccl.GroupEnd();
      if (Bad(end)) result = end;
    }
    for (NcclGroup* group : there) {
      group->comm_ = nullptr;
      group->over_ = true;
    }
    if (Bad(result))
      LogWarning("NCCL abort: ", nccl.GetErrorString(result), "; its memory may be lost");
  }
}

}  // namespace holdfast
