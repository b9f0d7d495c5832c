// The sums of one step on one worker: gradients (fixed point in int64, or fp32 in `fast` mode),
// loss, weight, metrics, statistics and flags over the micro-batches that this worker has computed.
// Survives a failed reduction (reductions are out of place) and the loss of others, so that only
// their micro-batches are computed again.
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
  static absl::StatusOr<std::unique_ptr<Accumulator>> Allocate(const StatePlan& plan,
                                                               int64_t micro_batches, bool fast,
                                                               bool shareable = false);

  // Drops all sums: a new step, or a restart of this one. exponents: k per trained tensor for this
  // step.
  void Reset(std::vector<int16_t> exponents);
  // `pending` more micro-batches will be added now.
  void Begin(int pending);

  // Compute threads. Add converts and adds one tensor's gradient of the running micro-batch.
  void Add(kernels::Stream& stream, int trained, const float* gradient, MicroBatchResult* result);
  // The micro-batch is over; tensors that were not added count as zero.
  void Finish(MicroBatchResult result, const std::vector<bool>& added);

  // True when every pending micro-batch has added all tensors of the bucket (or is over). Waits at
  // most wait_ms.
  bool WaitBucket(int bucket, int64_t wait_ms);
  // Zeroes tensors of the bucket that nobody added to, so that it can be sent. Main thread, after
  // WaitBucket.
  void SealBucket(int bucket);

  bool fast() const { return fast_; }
  int64_t* sums() { return sums_.as<int64_t>(); }
  float* fast_sums() { return sums_.as<float>(); }
  const SharedBlock& sums_block() const { return sums_; }
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
  Accumulator(const StatePlan& plan, int64_t micro_batches, bool fast);
  const StatePlan& plan_;
  const int64_t micro_batches_;
  const bool fast_;
  SharedBlock sums_;
  std::vector<int16_t> exponents_;
  std::unique_ptr<std::mutex[]> tensor_mutex_;
  std::vector<uint8_t> content_;  // per trained tensor: something was stored
  std::mutex mutex_;              // guards what follows
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
