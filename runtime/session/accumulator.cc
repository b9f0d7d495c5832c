#include "runtime/session/accumulator.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cmath>
#include <cstring>

#include "runtime/base/digest.h"
#include "runtime/base/status.h"
#include "runtime/session/state.h"

namespace holdfast {

ScalarLayout::ScalarLayout(const StatePlan& plan) {
  const auto tensors = static_cast<int64_t>(plan.trained.size());
  nonfinite = metrics + static_cast<int64_t>(plan.spec.metrics.size());
  out_of_range = nonfinite + tensors;
  loud = out_of_range + tensors;
  statistics = loud + tensors;
  count = statistics + plan.statistic_offset.back();
}

Accumulator::Accumulator(const StatePlan& plan, int64_t micro_batches, bool fast,
                         kernels::Device& device)
    : plan_(plan),
      micro_batches_(micro_batches),
      fast_(fast),
      device_(device),
      tensor_mutex_(new std::mutex[plan.trained.size()]),
      content_(plan.trained.size(), 0),
      last_(plan.trained.size()),
      missing_(plan.buckets.size(), 0),
      held_(micro_batches, false) {}

absl::StatusOr<std::unique_ptr<Accumulator>> Accumulator::Allocate(const StatePlan& plan,
                                                                   int64_t micro_batches, bool fast,
                                                                   bool shareable,
                                                                   kernels::Device& device) {
  std::unique_ptr<Accumulator> a(new Accumulator(plan, micro_batches, fast, device));
  const int64_t bytes = plan.flat_elements * (fast ? 4 : 8);
  // Zeroed: the gaps between tensors stay so for good.
  if (device.backend() == kernels::Backend::kCpu) {
    HF_ASSIGN_OR_RETURN(a->shared_sums_, SharedBlock::Create(bytes, shareable));
    a->sums_ = a->shared_sums_.data();
    return a;
  }
  HF_ASSIGN_OR_RETURN(a->device_sums_, device.Allocate(bytes));
  a->sums_ = a->device_sums_.data();
  const auto stream = device.NewStream();
  device.Zero(*stream, a->sums_, bytes);
  HF_RETURN_IF_ERROR(stream->Synchronize(Deadline::After(kDeviceWaitMs)));
  return a;
}

void Accumulator::Reset(std::vector<int16_t> exponents, int loss_scale_log2) {
  std::lock_guard lock(mutex_);
  exponents_ = std::move(exponents);
  loss_scale_log2_ = loss_scale_log2;
  std::fill(content_.begin(), content_.end(), 0);
  std::fill(held_.begin(), held_.end(), false);
  std::fill(missing_.begin(), missing_.end(), 0);
  results_.clear();
  dirty_ = false;
}

void Accumulator::Begin(int pending) {
  std::lock_guard lock(mutex_);
  assert(!dirty_);
  for (size_t b = 0; b < missing_.size(); ++b) {
    const Bucket& bucket = plan_.buckets[b];
    missing_[b] = pending * (bucket.last_tensor - bucket.first_tensor);
  }
}

void Accumulator::Launch(kernels::Stream& stream, int trained, bool first, float* gradient,
                         kernels::FixedFlags* flags) {
  const TrainedTensor& t = plan_.trained[trained];
  if (fast_) {
    float* sum = fast_sums() + t.offset;
    const float scale = std::ldexp(1.0f, -loss_scale_log2_);
    if (scale != 1.0f) kernels::ScaleFloat(stream, t.elements, scale, gradient);
    if (first) {
      kernels::CopyFloat(stream, t.elements, gradient, sum);
    } else {
      kernels::AccumulateFloat(stream, t.elements, gradient, sum);
    }
    return;
  }
  // The loss scale is a power of two: folded into the exponent it costs nothing.
  const kernels::FixedScale scale{exponents_[trained] - loss_scale_log2_, micro_batches_};
  if (first) {
    kernels::StoreFixed(stream, scale, t.elements, gradient, sums() + t.offset, flags);
  } else {
    kernels::AccumulateFixed(stream, scale, t.elements, gradient, sums() + t.offset, flags);
  }
}

void Accumulator::Add(kernels::Stream& stream, int trained, float* gradient,
                      kernels::FixedFlags* flags) {
  {
    std::lock_guard lock(tensor_mutex_[trained]);
    const bool first = content_[trained] == 0;
    content_[trained] = 1;
    if (!first) stream.Wait(last_[trained]);
    Launch(stream, trained, first, gradient, flags);
    if (stream.backend() != kernels::Backend::kCpu) last_[trained] = stream.Record();
  }
  std::lock_guard lock(mutex_);
  if (--missing_[plan_.trained[trained].bucket] == 0) changed_.notify_all();
}

void Accumulator::Judge(const kernels::FixedFlags* flags, const std::vector<bool>& added,
                        MicroBatchResult* result) const {
  if (fast_) return;
  // Loud: within 2^24 of the bound at this exponent. A quiet tensor may take a larger exponent
  // again.
  const double bound =
      std::ldexp(1.0, std::min(51, 62 - static_cast<int>(std::ceil(std::log2(micro_batches_)))));
  for (size_t i = 0; i < plan_.trained.size(); ++i) {
    if (!added[i]) continue;
    const auto trained = static_cast<int32_t>(i);
    const kernels::FixedFlags& f = flags[i];
    if (f.nonfinite > 0) {
      result->nonfinite = true;
      result->nonfinite_tensors.push_back(trained);
      result->bits = Mix64(result->bits ^ Mix64(static_cast<uint64_t>(trained) << 32 ^
                                                static_cast<uint64_t>(f.nonfinite)));
    }
    if (f.out_of_range > 0) result->out_of_range.push_back(trained);
    if (std::ldexp(f.max_abs, exponents_[i] - loss_scale_log2_) * 0x1p24 >= bound)
      result->loud.push_back(trained);
  }
}

void Accumulator::Finish(MicroBatchResult result, const std::vector<bool>& added) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < added.size(); ++i) {
    if (!added[i]) --missing_[plan_.trained[i].bucket];
  }
  held_[result.index] = true;
  // Kept in order of index, so that nothing depends on which thread was first.
  const auto at =
      std::lower_bound(results_.begin(), results_.end(), result.index,
                       [](const MicroBatchResult& r, int32_t i) { return r.index < i; });
  results_.insert(at, std::move(result));
  changed_.notify_all();
}

bool Accumulator::WaitBucket(int bucket, int64_t wait_ms) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(wait_ms),
                           [&] { return missing_[bucket] == 0; });
}

void Accumulator::SealBucket(int bucket, kernels::Stream& stream) {
  for (int i = plan_.buckets[bucket].first_tensor; i < plan_.buckets[bucket].last_tensor; ++i) {
    std::lock_guard lock(tensor_mutex_[i]);
    if (content_[i]) continue;
    const TrainedTensor& t = plan_.trained[i];
    const int64_t width = fast_ ? 4 : 8;
    device_.Zero(stream, static_cast<char*>(sums_) + t.offset * width, t.elements * width);
    if (stream.backend() != kernels::Backend::kCpu) last_[i] = stream.Record();
    content_[i] = 1;
  }
}

void Accumulator::Follow(int bucket, Communicator& lane) {
  for (int i = plan_.buckets[bucket].first_tensor; i < plan_.buckets[bucket].last_tensor; ++i) {
    std::lock_guard lock(tensor_mutex_[i]);
    lane.After(last_[i]);
  }
}

int Accumulator::held_count() const {
  return static_cast<int>(std::count(held_.begin(), held_.end(), true));
}

std::vector<int64_t> Accumulator::Scalars() const {
  const ScalarLayout at(plan_);
  std::vector<int64_t> words(at.count, 0);
  auto add = [&](int64_t index, int64_t value) {  // wrapping, like the all-reduce
    words[index] =
        static_cast<int64_t>(static_cast<uint64_t>(words[index]) + static_cast<uint64_t>(value));
  };
  for (const MicroBatchResult& r : results_) {
    add(at.weight, r.weight);
    add(at.loss, r.loss);
    for (size_t i = 0; i < r.metrics.size(); ++i)
      add(at.metrics + static_cast<int64_t>(i), r.metrics[i]);
    for (size_t i = 0; i < r.statistics.size(); ++i) {
      add(at.statistics + static_cast<int64_t>(i), r.statistics[i]);
    }
    for (const int32_t t : r.nonfinite_tensors) add(at.nonfinite + t, 1);
    for (const int32_t t : r.out_of_range) add(at.out_of_range + t, 1);
    for (const int32_t t : r.loud) add(at.loud + t, 1);
  }
  return words;
}

}  // namespace holdfast
