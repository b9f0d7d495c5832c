// The runtime's side of one micro-batch (models/model.h, Pass): hands out parameters, scratch and
// random bits, turns gradients into sums. One for each compute thread, reused from micro-batch to
// micro-batch without allocating. Nothing waits for the device before Finish: what the host needs
// to know (loss terms, flags, statistics) is copied behind the work that makes it, and read there.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/models/model.h"
#include "runtime/session/accumulator.h"
#include "runtime/session/state.h"

namespace holdfast {

class CounterRandom : public Random {
 public:
  void Set(uint64_t seed, int64_t step, int64_t micro_batch);
  uint64_t Key(uint32_t site) const override;

 private:
  uint64_t key_ = 0;
};

class RuntimePass : public Pass {
 public:
  // On a stream of its own of the state's device. `state` outlives this.
  static absl::StatusOr<std::unique_ptr<RuntimePass>> Create(State* state,
                                                             const std::atomic<bool>* cancelled);
  ~RuntimePass() override;

  // Before each micro-batch. accumulator null: the probe (gradients are digested instead of added),
  // or evaluation.
  void Begin(Accumulator* accumulator, uint64_t seed, const MicroBatch& batch);
  // After the model has returned OK: waits for the device and gives what this micro-batch
  // contributed (not yet merged). kInternal: the device failed.
  absl::StatusOr<MicroBatchResult> Finish();
  // After a model's error: nothing of this micro-batch runs any more.
  void Drain();
  const std::vector<bool>& added() const { return added_; }
  // After Finish: digest of all gradients that the model has finished (probe only): order-free over
  // tensors.
  uint64_t gradient_digest() const { return gradient_digest_; }

  // The same for each trained tensor; 0: not finished.
  std::span<const uint64_t> gradient_digests() const {
    return {host_flags_.as<const uint64_t>(), plan_.trained.size()};
  }

  kernels::Stream& stream() override { return *stream_; }
  const Tensor& Value(int tensor) const override { return values_[tensor]; }
  Tensor Gradient(int tensor) override;
  void Done(int tensor) override;
  float scale() const override { return scale_; }
  void Loss(const Tensor& terms, int64_t weight) override;
  void Metric(int metric, const Tensor& terms) override;
  void Statistic(int statistic, const Tensor& value) override;
  // Throws OutOfMemory: there is no way to hand out less, and a model cannot be asked to look.
  Tensor Workspace(int64_t bytes) override;
  Tensor Upload(const Tensor& host) override;
  struct OutOfMemory {
    absl::Status status;
  };
  Random& random() override { return random_; }
  bool cancelled() const override { return cancelled_->load(std::memory_order_relaxed); }

 private:
  // Values on their way to the host, and what becomes of their sum.
  struct Pending {
    int64_t count = 0;
    enum class Kind { kLoss, kMetric, kStatistic } kind = Kind::kLoss;
    int64_t index = 0;
  };

  RuntimePass(State* state, const std::atomic<bool>* cancelled);
  kernels::Device& device() { return state_->device(); }
  kernels::Buffer Grow(int64_t bytes, bool host);
  void Fetch(Pending::Kind kind, int64_t index, const Tensor& values);
  void Settle(size_t n);
  void AddFixed(double value, int exponent, bool saturate, int64_t* to);

  State* state_;
  const StatePlan& plan_;
  std::unique_ptr<kernels::Stream> stream_;
  const std::atomic<bool>* cancelled_;
  Accumulator* accumulator_ = nullptr;
  std::vector<Tensor> values_;
  kernels::Buffer gradients_;
  std::vector<kernels::Buffer> workspace_;
  size_t workspace_next_ = 0;
  kernels::Buffer flags_, host_flags_;  // one FixedFlags, or one digest, for each trained tensor
  std::vector<kernels::Buffer> host_terms_;  // the n-th values that a micro-batch hands in
  std::vector<Pending> pending_;
  CounterRandom random_;
  float scale_ = 1;
  bool training_ = true;
  std::vector<bool> added_;
  uint64_t gradient_digest_ = 0;
  MicroBatchResult result_;
};

}  // namespace holdfast
