#include "tests/gpu/measure.h"

#include <algorithm>

#include "runtime/base/clock.h"
#include "runtime/base/digest.h"

namespace holdfast {

void* GpuBench::Bytes(int64_t bytes) {
  auto buffer = device_.Allocate(bytes);
  if (!buffer.ok()) {
    if (status_.ok()) status_ = buffer.status();
    return nullptr;
  }
  buffers_.push_back(*std::move(buffer));
  device_.Zero(*stream_, buffers_.back().data(), bytes);
  return buffers_.back().data();
}

float* GpuBench::Normal(int64_t n, float deviation) {
  auto* x = static_cast<float*>(Bytes(n * 4));
  if (x != nullptr) kernels::RandomNormal(*stream_, {buffers_.size(), 0}, 0.0f, deviation, n, x);
  return x;
}

int32_t* GpuBench::Tokens(int64_t n, int64_t vocab) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    tokens[static_cast<size_t>(i)] =
        static_cast<int32_t>(Mix64(static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab));
  }
  auto* x = static_cast<int32_t*>(Bytes(n * 4));
  if (x != nullptr) device_.Copy(*stream_, x, tokens.data(), n * 4);
  (void)Settle();  // before `tokens` goes
  return x;
}

void GpuBench::Forget() {
  if (Settle()) buffers_.clear();
}

bool GpuBench::Settle() {
  if (!status_.ok()) return false;
  status_ = stream_->Synchronize(Deadline::After(kGpuWaitMs));
  return status_.ok();
}

double GpuBench::Reading(const std::function<void()>& work, int64_t launches) {
  if (!Settle()) return 0;
  const int64_t start = BootUs();
  for (int64_t i = 0; i < launches; ++i) work();
  const kernels::Event end = stream_->Record();
  // Without pauses: their length would be part of the reading.
  const Deadline deadline = Deadline::After(kGpuWaitMs);
  while (!end.done() && !deadline.passed()) {
  }
  const int64_t us = BootUs() - start;
  return Settle() ? static_cast<double>(us) * 1e-3 / static_cast<double>(launches) : 0;
}

double GpuBench::Ms(const std::function<void()>& work) {
  double ms = Reading(work, 1);  // also chooses algorithms, and grows scratch
  if (least_ms_ <= 0 || !status_.ok()) return ms;
  ms = Reading(work, 2);
  const auto launches = static_cast<int64_t>(std::clamp(least_ms_ / std::max(ms, 1e-3), 2.0, 5e3));
  for (int i = 0; i < 3 && status_.ok(); ++i) {
    const double reading = Reading(work, launches);
    ms = i == 0 ? reading : std::min(ms, reading);
  }
  return status_.ok() ? ms : 0;
}

double GpuBench::CopyMs(int64_t bytes) {
  const int64_t half = std::max<int64_t>(bytes / 2, 1);
  void *from = Bytes(half), *to = Bytes(half);
  if (from == nullptr || to == nullptr) return 0;
  const double ms = Ms([&] { device_.Copy(*stream_, to, from, half); });
  if (Settle()) buffers_.resize(buffers_.size() - 2);
  return ms;
}

}  // namespace holdfast
