#include "runtime/session/runtime_pass.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "runtime/base/digest.h"
#include "runtime/base/failpoint.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace holdfast {

void CounterRandom::Set(uint64_t seed, int64_t step, int64_t micro_batch) {
  key_ = Mix64(Mix64(Mix64(seed ^ 0x52414E44) ^ static_cast<uint64_t>(step)) ^
               static_cast<uint64_t>(micro_batch));
}

uint64_t CounterRandom::Key(uint32_t site) const {
  return Mix64(key_ ^ (uint64_t{site} + 1) * 0x9E3779B97F4A7C15ull);
}

RuntimePass::RuntimePass(State* state, std::unique_ptr<kernels::Stream> stream,
                         const std::atomic<bool>* cancelled)
    : state_(state), plan_(state->plan()), stream_(std::move(stream)), cancelled_(cancelled) {
  scale_ = std::ldexp(1.0f, -plan_.loss_shift);
  for (size_t i = 0; i < plan_.spec.tensors.size(); ++i) {
    Tensor t;
    t.shape = plan_.spec.tensors[i].shape;
    t.data = plan_.trained_of[i] >= 0 ? state->values() + plan_.trained[plan_.trained_of[i]].offset
                                      : state->others() + plan_.others[plan_.other_of[i]].offset;
    values_.push_back(t);
  }
}

absl::StatusOr<std::unique_ptr<RuntimePass>> RuntimePass::Create(
    State* state, std::unique_ptr<kernels::Stream> stream, const std::atomic<bool>* cancelled) {
  std::unique_ptr<RuntimePass> pass(new RuntimePass(state, std::move(stream), cancelled));
  HF_ASSIGN_OR_RETURN(pass->gradients_,
                      kernels::CpuDevice().Allocate(pass->plan_.flat_elements * 4));
  std::memset(pass->gradients_.data(), 0, pass->gradients_.bytes());
  return pass;
}

void RuntimePass::Begin(Accumulator* accumulator, uint64_t seed, const MicroBatch& batch) {
  accumulator_ = accumulator;
  training_ = batch.training;
  random_.Set(seed, batch.step, batch.index);
  added_.assign(plan_.trained.size(), false);
  gradient_digest_ = 0;
  workspace_next_ = 0;
  result_ = MicroBatchResult();
  result_.index = static_cast<int32_t>(batch.index);
  result_.metrics.assign(plan_.spec.metrics.size(), 0);
  result_.statistics.assign(plan_.statistic_offset.back(), 0);
}

MicroBatchResult RuntimePass::TakeResult() { return std::move(result_); }

Tensor RuntimePass::Gradient(int tensor) {
  const int trained = plan_.trained_of[tensor];
  assert(trained >= 0 && "a frozen tensor or a buffer has no gradient");
  Tensor t = values_[tensor];
  t.data = gradients_.as<float>() + plan_.trained[trained].offset;
  return t;
}

void RuntimePass::Done(int tensor) {
  const int trained = plan_.trained_of[tensor];
  assert(training_ && trained >= 0 && !added_[trained] && "Done once for each trained tensor");
  added_[trained] = true;
  const TrainedTensor& t = plan_.trained[trained];
  float* gradient = gradients_.as<float>() + t.offset;
  if (accumulator_ == nullptr) {
    gradient_digest_ += DigestWords(gradient, t.elements, static_cast<uint64_t>(trained), 0);
    return;
  }
  if (Failpoint("grad.nan", result_.index)) gradient[0] = std::nanf("");
  accumulator_->Add(*stream_, trained, gradient, &result_);
}

void RuntimePass::AddFixed(double value, int exponent, bool saturate, int64_t* to) {
  // micro_batches only bounds the range here: 4,096 of them never wrap.
  if (saturate && std::isfinite(value)) {
    const double most = std::ldexp(1.0, 49 - exponent);
    value = std::clamp(value, -most, most);
  }
  int64_t fixed = 0;
  if (!kernels::ScalarToFixed(value, {exponent, 4096}, &fixed)) {
    result_.nonfinite = true;
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    result_.bits = Mix64(result_.bits ^ bits);
  }
  *to += fixed;
}

void RuntimePass::Loss(const Tensor& terms, int64_t weight) {
  assert(!result_.loss_set && weight >= 0 && weight <= plan_.spec.max_weight);
  result_.loss_set = true;
  result_.weight = weight;
  const double sum = kernels::SumTerms(terms.elements(), terms.as<float>());
  AddFixed(std::ldexp(sum, -plan_.loss_shift), kLossExponent, true, &result_.loss);
}

void RuntimePass::Metric(int metric, const Tensor& terms) {
  const double sum = kernels::SumTerms(terms.elements(), terms.as<float>());
  AddFixed(std::ldexp(sum, -plan_.loss_shift), kLossExponent, true, &result_.metrics[metric]);
}

void RuntimePass::Statistic(int statistic, const Tensor& value) {
  const int64_t first = plan_.statistic_offset[statistic];
  const float* x = value.as<float>();
  for (int64_t i = 0; i < value.elements(); ++i) {
    AddFixed(x[i], kStatisticExponent, false, &result_.statistics[first + i]);
  }
}

Tensor RuntimePass::Workspace(int64_t bytes) {
  // The n-th request of a micro-batch gets the n-th block: the same each time, so nothing is
  // allocated in a step.
  if (workspace_next_ == workspace_.size()) workspace_.emplace_back();
  kernels::Buffer& block = workspace_[workspace_next_++];
  if (block.bytes() < bytes) {
    auto made = kernels::CpuDevice().Allocate(bytes);
    // Out of memory in the middle of a model: there is no way to hand out less.
    if (!made.ok())
      LogError("workspace of ", bytes, " bytes: ", std::string(made.status().message()));
    assert(made.ok());
    block = *std::move(made);
  }
  Tensor t;
  t.data = block.data();
  t.type = Type::kU8;
  t.shape = {bytes};
  return t;
}

}  // namespace holdfast
