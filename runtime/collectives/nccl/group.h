// One NCCL communicator (ncclComm_t) with the stream that its operations run on: its life from the
// first contact to the abort. It is always non-blocking: NCCL's calls return at once, and what they
// began is polled, with a check between that ends the wait (a dead peer, a cancel, a deadline).
//
// Life: Init or ShrinkFrom, operations, then Finalize (orderly), or an abort. A group that lost a
// member is *kept* with its hung kernels until the next generation is decided: it may be shrunk.
// Nothing waits for its stream until then.
//
// Threads: one (the owner); it is the only one that calls NCCL. Errors: kAborted with NCCL's own
// words; kInternal once the GPU is unusable; what the check returned.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/library.h"
#include "kernels/device.h"
#include "runtime/collectives/nccl/call_guard.h"
#include "runtime/collectives/nccl/nccl.h"

namespace holdfast {

// What all NCCL communicators of this process have in common.
struct NcclContext {
  NcclOptions options;
  const kernels::cuda::NcclTable* nccl = nullptr;
  int version = 0;  // 22809
  std::unique_ptr<CallGuard> guard;
  // One word for the first contact, one for barriers (kBarrierWord); and what they begin with.
  kernels::Buffer words, host_words;
  static constexpr int kBarrierWord = 1;

  kernels::Device& device() const { return *options.device; }
};

class NcclGroup {
 public:
  // Called between polls: an error ends the wait with it.
  using Check = absl::FunctionRef<absl::Status()>;
  // An NCCL operation, or a group of them, on the stream.
  using Operation = absl::FunctionRef<ncclResult_t(ncclComm_t, cudaStream_t)>;

  NcclGroup(std::shared_ptr<const NcclContext> context, uint64_t generation, int rank, int world);
  ~NcclGroup();  // aborts what is still there
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  uint64_t generation() const { return generation_; }
  int rank() const { return rank_; }
  int world() const { return world_; }
  kernels::Stream& stream() { return *stream_; }

  // A fresh id, for Init on all members.
  static absl::StatusOr<ncclUniqueId> NewId(const NcclContext& context);
  absl::Status Init(const ncclUniqueId& id, Check check);
  // All members of `parent` but those in `excluded` call it; `parent` is over afterwards (and to be
  // aborted), whatever comes of it.
  absl::Status ShrinkFrom(NcclGroup& parent, std::vector<int> excluded, Check check);
  // One small all-reduce whose sum is checked: the proof that all are connected. What a GPU
  // topology or a container got wrong shows here, not in the first step.
  absl::Status FirstContact(Check check);

  // Begins the operation. When it returned OK the stream holds its work, so that an event recorded
  // then is the operation's end.
  absl::Status Run(const char* what, Operation operation, Check check);
  // What NCCL reports by itself, and the device's health; the first error stays.
  absl::Status Poll();
  // Usable: begun, no error, not over.
  bool healthy() const { return comm_ != nullptr && !over_ && error_.ok(); }

  // Memory that operations of this group use; freed after its end.
  void Keep(kernels::Buffer buffer) { kept_.push_back(std::move(buffer)); }

  // Orderly, with all other members: flushes and frees. After an error it is only to be aborted.
  absl::Status Finalize(Check check);
  // Ends all of them in one NCCL group (one after the other, two communicators of a device can
  // wait for each other for ever). Null entries and those that are gone are skipped. Past abort_ms
  // the process ends.
  static void Abort(std::initializer_list<NcclGroup*> groups);

 private:
  // OK while the result is no error. Keeps the first one.
  absl::Status Judge(const char* what, ncclResult_t result);
  absl::Status Await(const char* what, Check check);
  static bool Bad(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

  const std::shared_ptr<const NcclContext> context_;
  const kernels::cuda::NcclTable& nccl_;
  const uint64_t generation_;
  const int rank_, world_;
  const std::unique_ptr<kernels::Stream> stream_;
  std::vector<kernels::Buffer> kept_;
  ncclComm_t comm_ = nullptr;  // written by NCCL while a shrink is under way
  bool over_ = false;          // shrunk or finalized: only to be freed
  absl::Status error_;
};

}  // namespace holdfast
