#include "runtime/session/runtime_pass.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "runtime/base/digest.h"
#include "runtime/base/failpoint.h"
#include "runtime/base/status.h"

namespace holdfast {

void CounterRandom::Set(uint64_t seed, int64_t step, int64_t micro_batch) {
  key_ = Mix64(Mix64(Mix64(seed ^ 0x52414E44) ^ static_cast<uint64_t>(step)) ^
               static_cast<uint64_t>(micro_batch));
}

uint64_t CounterRandom::Key(uint32_t site) const {
  return Mix64(key_ ^ (uint64_t{site} + 1) * 0x9E3779B97F4A7C15ull);
}

RuntimePass::RuntimePass(State* state, const std::atomic<bool>* cancelled)
    : state_(state),
      plan_(state->plan()),
      stream_(state->device().NewStream()),
      cancelled_(cancelled) {
  const DeviceKind kind =
      device().backend() == kernels::Backend::kCpu ? DeviceKind::kCpu : DeviceKind::kCuda;
  for (size_t i = 0; i < plan_.spec.tensors.size(); ++i) {
    Tensor t;
    t.shape = plan_.spec.tensors[i].shape;
    t.device = kind;
    t.data = plan_.trained_of[i] >= 0 ? state->values() + plan_.trained[plan_.trained_of[i]].offset
                                      : state->others() + plan_.others[plan_.other_of[i]].offset;
    values_.push_back(t);
  }
}

absl::StatusOr<std::unique_ptr<RuntimePass>> RuntimePass::Create(
    State* state, const std::atomic<bool>* cancelled) {
  std::unique_ptr<RuntimePass> pass(new RuntimePass(state, cancelled));
  kernels::Device& device = state->device();
  HF_ASSIGN_OR_RETURN(pass->gradients_, device.Allocate(pass->plan_.flat_elements * 4));
  device.Zero(*pass->stream_, pass->gradients_.data(), pass->gradients_.bytes());
  const auto flags = static_cast<int64_t>(pass->plan_.trained.size() * sizeof(kernels::FixedFlags));
  HF_ASSIGN_OR_RETURN(pass->flags_, device.Allocate(flags));
  HF_ASSIGN_OR_RETURN(pass->host_flags_, device.AllocateHost(flags));
  HF_RETURN_IF_ERROR(pass->stream_->Synchronize(Deadline::After(kDeviceWaitMs)));
  return pass;
}

RuntimePass::~RuntimePass() { Drain(); }

void RuntimePass::Drain() { (void)stream_->Synchronize(Deadline::After(kDeviceWaitMs)); }

void RuntimePass::Begin(Accumulator* accumulator, uint64_t seed, const MicroBatch& batch) {
  accumulator_ = accumulator;
  training_ = batch.training;
  const int loss_scale_log2 = accumulator == nullptr ? 0 : accumulator->loss_scale_log2();
  scale_ = std::ldexp(1.0f, loss_scale_log2 - plan_.loss_shift);
  random_.Set(seed, batch.step, batch.index);
  added_.assign(plan_.trained.size(), false);
  gradient_digest_ = 0;
  workspace_next_ = 0;
  pending_.clear();
  result_ = MicroBatchResult();
  result_.index = static_cast<int32_t>(batch.index);
  result_.metrics.assign(plan_.spec.metrics.size(), 0);
  result_.statistics.assign(plan_.statistic_offset.back(), 0);
  device().Zero(*stream_, flags_.data(), flags_.bytes());
}

absl::StatusOr<MicroBatchResult> RuntimePass::Finish() {
  if (training_) device().Copy(*stream_, host_flags_.data(), flags_.data(), flags_.bytes());
  const absl::Status status = stream_->Synchronize(Deadline::After(kDeviceWaitMs));
  if (!status.ok()) return absl::InternalError(status.message());
  for (size_t i = 0; i < pending_.size(); ++i) Settle(i);
  if (accumulator_ != nullptr) {
    accumulator_->Judge(host_flags_.as<const kernels::FixedFlags>(), added_, &result_);
  } else if (training_) {
    for (size_t i = 0; i < added_.size(); ++i)
      if (added_[i]) gradient_digest_ += host_flags_.as<const uint64_t>()[i];
  }
  return std::move(result_);
}

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
    kernels::Digest(*stream_, gradient, t.elements, static_cast<uint64_t>(trained), 0,
                    flags_.as<uint64_t>() + trained);
    return;
  }
  if (Failpoint("grad.nan", result_.index)) kernels::Fill(*stream_, 1, std::nanf(""), gradient);
  accumulator_->Add(*stream_, trained, gradient, flags_.as<kernels::FixedFlags>() + trained);
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

kernels::Buffer RuntimePass::Grow(int64_t bytes, bool host) {
  auto made = host ? device().AllocateHost(bytes) : device().Allocate(bytes);
  if (!made.ok()) throw OutOfMemory{made.status()};
  return *std::move(made);
}

void RuntimePass::Fetch(Pending::Kind kind, int64_t index, const Tensor& values) {
  const size_t n = pending_.size();
  pending_.push_back({values.elements(), kind, index});
  const int64_t bytes = values.elements() * static_cast<int64_t>(sizeof(float));
  if (n == host_terms_.size()) host_terms_.emplace_back();
  if (host_terms_[n].bytes() < bytes) host_terms_[n] = Grow(bytes, true);
  device().Copy(*stream_, host_terms_[n].data(), values.data, bytes);
}

// The values have arrived.
void RuntimePass::Settle(size_t n) {
  const Pending& pending = pending_[n];
  const float* x = host_terms_[n].as<const float>();
  if (pending.kind == Pending::Kind::kStatistic) {
    for (int64_t i = 0; i < pending.count; ++i)
      AddFixed(x[i], kStatisticExponent, false, &result_.statistics[pending.index + i]);
    return;
  }
  const double sum = std::ldexp(kernels::SumTerms(pending.count, x), -plan_.loss_shift);
  AddFixed(sum, kLossExponent, true,
           pending.kind == Pending::Kind::kLoss ? &result_.loss : &result_.metrics[pending.index]);
}

void RuntimePass::Loss(const Tensor& terms, int64_t weight) {
  assert(!result_.loss_set && weight >= 0 && weight <= plan_.spec.max_weight);
  result_.loss_set = true;
  result_.weight = weight;
  Fetch(Pending::Kind::kLoss, 0, terms);
}

void RuntimePass::Metric(int metric, const Tensor& terms) {
  Fetch(Pending::Kind::kMetric, metric, terms);
}

void RuntimePass::Statistic(int statistic, const Tensor& value) {
  Fetch(Pending::Kind::kStatistic, plan_.statistic_offset[statistic], value);
}

Tensor RuntimePass::Upload(const Tensor& host) {
  if (device().backend() == kernels::Backend::kCpu) return host;
  const int64_t bytes = host.elements() * TypeBytes(host.type);
  Tensor t = host;
  t.device = DeviceKind::kCuda;
  t.data = Workspace(bytes).data;
  device().Copy(*stream_, t.data, host.data, bytes);
  return t;
}

Tensor RuntimePass::Workspace(int64_t bytes) {
  // The n-th request of a micro-batch gets the n-th block: the same each time, so nothing is
  // allocated in a step.
  if (workspace_next_ == workspace_.size()) workspace_.emplace_back();
  kernels::Buffer& block = workspace_[workspace_next_++];
  if (block.bytes() < bytes) {
    if (block.bytes() > 0) Drain();  // the smaller block may still be in use
    block.Reset();
    block = Grow(bytes, false);
  }
  Tensor t;
  t.data = block.data();
  t.device = values_.front().device;
  t.type = Type::kU8;
  t.shape = {bytes};
  return t;
}

}  // namespace holdfast
