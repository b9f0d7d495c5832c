// The runtime's side of one micro-batch (models/model.h, Pass): hands out parameters, scratch and
// random bits, turns gradients into sums. One for each compute thread, reused from micro-batch to
// micro-batch without allocating.
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
  // `accumulator` null: gradients are digested instead of added (the probe). `state` and it outlive
  // this.
  static absl::StatusOr<std::unique_ptr<RuntimePass>> Create(
      State* state, std::unique_ptr<kernels::Stream> stream, const std::atomic<bool>* cancelled);

  // Before each micro-batch. accumulator null: the probe, or evaluation.
  void Begin(Accumulator* accumulator, uint64_t seed, const MicroBatch& batch);
  // After the model has returned OK: what this micro-batch contributed (not yet merged).
  MicroBatchResult TakeResult();
  const std::vector<bool>& added() const { return added_; }
  // Digest of all gradients that the model has finished (probe only): order-free over tensors.
  uint64_t gradient_digest() const { return gradient_digest_; }

  kernels::Stream& stream() override { return *stream_; }
  const Tensor& Value(int tensor) const override { return values_[tensor]; }
  Tensor Gradient(int tensor) override;
  void Done(int tensor) override;
  float scale() const override { return scale_; }
  void Loss(const Tensor& terms, int64_t weight) override;
  void Metric(int metric, const Tensor& terms) override;
  void Statistic(int statistic, const Tensor& value) override;
  Tensor Workspace(int64_t bytes) override;
  Random& random() override { return random_; }
  bool cancelled() const override { return cancelled_->load(std::memory_order_relaxed); }

 private:
  RuntimePass(State* state, std::unique_ptr<kernels::Stream> stream,
              const std::atomic<bool>* cancelled);
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
  CounterRandom random_;
  float scale_ = 1;
  bool training_ = true;
  std::vector<bool> added_;
  uint64_t gradient_digest_ = 0;
  MicroBatchResult result_;
};

}  // namespace holdfast
