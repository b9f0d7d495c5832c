// The sums of one step on one worker: gradients (fixed point in int64, or fp32 in `fast` mode),
// loss, weight, metrics, statistics and flags over the micro-batches that this worker has computed.
// Survives a failed reduction (reductions are out of place) and the loss of others, so that only
// their micro-batches are computed again.
//
// On a GPU sums lie in its memory, and everything is ordered by streams: an addition to a tensor
// waits for the one before it, whatever stream that was on, and whoever reads a bucket waits for
// the last one (Follow).
//
// Threads: Begin, Reset, the waits and the accessors belong to the main thread; Add* and Finish*
// are called by compute threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "runtime/collectives/communicator.h"
#include "runtime/collectives/shared_block.h"
#include "runtime/session/plan.h"

namespace holdfast {

// What one micro-batch contributed besides gradients. Filled by its Pass, merged when it is
// finished.
struct MicroBatchResult {
  int32_t index = 0;
  int64_t weight = 0;
  int64_t loss = 0;  // fixed point, kLossExponent, times 2^-loss_shift
  bool loss_set = false;
  bool nonfinite = false;
  uint64_t bits = 0;     // a hash of what was not finite: equal when computed again with equal bits
  uint64_t samples = 0;  // hash of the contents read
  std::vector<int64_t> metrics;                                // fixed point, kLossExponent
  std::vector<int64_t> statistics;                             // fixed point, kStatisticExponent
  std::vector<int32_t> nonfinite_tensors, out_of_range, loud;  // trained-tensor indices
  std::string next_cursor;                                     // streaming sources
};

// Losses and metrics (of a micro-batch, times 2^-loss_shift, so about the mean of its items) are
// kept to 1e-9 and up to 2^19; larger ones count as 2^19: they are only reported.
inline constexpr int kLossExponent = 30;
inline constexpr int kStatisticExponent = 32;

class Accumulator {
 public:
  // fast: fp32 sums. shareable: peers on this host may read the sums where they lie.
  static absl::StatusOr<std::unique_ptr<Accumulator>> Allocate(
      const StatePlan& plan, int64_t micro_batches, bool fast, bool shareable = false,
      kernels::Device& device = kernels::CpuDevice());

  // Drops all sums: a new step, or a restart of this one. exponents: k per trained tensor for this
  // step. loss_scale_log2: gradients come times 2^loss_scale_log2 (fp16); the sums are as without.
  void Reset(std::vector<int16_t> exponents, int loss_scale_log2 = 0);
  int loss_scale_log2() const { return loss_scale_log2_; }
  // `pending` more micro-batches will be added now.
  void Begin(int pending);

  // Compute threads. Add converts and adds one tensor's gradient of the running micro-batch, on
  // `stream`; it may be changed by that. `flags` lies in the stream's memory and was zeroed for
  // this micro-batch.
  void Add(kernels::Stream& stream, int trained, float* gradient, kernels::FixedFlags* flags);
  // What the flags of all trained tensors, in host memory, say of the micro-batch.
  void Judge(const kernels::FixedFlags* flags, const std::vector<bool>& added,
             MicroBatchResult* result) const;
  // The micro-batch is over; tensors that were not added count as zero.
  void Finish(MicroBatchResult result, const std::vector<bool>& added);

  // True when every pending micro-batch has added all tensors of the bucket (or is over). Waits at
  // most wait_ms.
  bool WaitBucket(int bucket, int64_t wait_ms);
  // Zeroes tensors of the bucket that nobody added to, so that it can be sent. Main thread, after
  // WaitBucket.
  void SealBucket(int bucket, kernels::Stream& stream);
  // What the lane is given from now on starts after the last addition to the bucket. Main thread,
  // after SealBucket.
  void Follow(int bucket, Communicator& lane);

  bool fast() const { return fast_; }
  int64_t* sums() { return static_cast<int64_t*>(sums_); }
  float* fast_sums() { return static_cast<float*>(sums_); }
  const SharedBlock& sums_block() const { return shared_sums_; }
  const std::vector<bool>& held() const { return held_; }
  int held_count() const;
  bool dirty() const {
    return dirty_;
  }  // a micro-batch was broken off half-way: Reset before going on
  void MarkDirty() { dirty_ = true; }

  // Totals over the held micro-batches, as one array of words for an order-free all-reduce: see
  // ScalarLayout.
  std::vector<int64_t> Scalars() const;
  const std::vector<MicroBatchResult>& results() const { return results_; }

 private:
  Accumulator(const StatePlan& plan, int64_t micro_batches, bool fast, kernels::Device& device);
  void Launch(kernels::Stream& stream, int trained, bool first, float* gradient,
              kernels::FixedFlags* flags);
  const StatePlan& plan_;
  const int64_t micro_batches_;
  const bool fast_;
  kernels::Device& device_;
  SharedBlock shared_sums_;      // on the CPU,
  kernels::Buffer device_sums_;  // or on a GPU
  void* sums_ = nullptr;
  std::vector<int16_t> exponents_;
  int loss_scale_log2_ = 0;
  std::unique_ptr<std::mutex[]> tensor_mutex_;
  // Per trained tensor, under its mutex:
  std::vector<uint8_t> content_;      // something was stored
  std::vector<kernels::Event> last_;  // the last addition (GPU only)
  std::mutex mutex_;                  // guards what follows
  std::condition_variable changed_;
  std::vector<int> missing_;  // per bucket: (tensor, micro-batch) pairs still to come
  std::vector<bool> held_;
  std::vector<MicroBatchResult> results_;
  bool dirty_ = false;
};

// Offsets into the array of Scalars().
struct ScalarLayout {
  explicit ScalarLayout(const StatePlan& plan);
  int64_t weight = 0, loss = 1, metrics = 2;
  int64_t nonfinite = 0, out_of_range = 0, loud = 0;  // one word per trained tensor each
  int64_t statistics = 0, count = 0;
};

}  // namespace holdfast
