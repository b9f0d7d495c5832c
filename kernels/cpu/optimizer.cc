#include "kernels/math/optimizer.h"

#include <algorithm>

#include "kernels/device_ops.h"

namespace holdfast::kernels {
namespace {

void AdamWLoop(const AdamWStep& step, int64_t n, const float* __restrict gradient,
               float* __restrict value, float* __restrict m, float* __restrict v) {
  const AdamWStep s = step;
  for (int64_t i = 0; i < n; ++i) s.Apply(gradient[i], &value[i], &m[i], &v[i]);
}

void SgdLoop(const SgdStep& step, int64_t n, const float* __restrict gradient,
             float* __restrict value) {
  const SgdStep s = step;
  for (int64_t i = 0; i < n; ++i) value[i] = s.Apply(gradient[i], value[i]);
}

// Sixteen lanes in double; a square of a float is exact there. Lanes are added pairwise: 8 apart,
// 4, 2, 1.
double ChunkSquares(int64_t n, const float* x) {
  constexpr int64_t kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      const auto d = static_cast<double>(x[i + l]);
      lanes[l] += d * d;
    }
  }
  for (int64_t l = 0; i + l < n; ++l) {
    const auto d = static_cast<double>(x[i + l]);
    lanes[l] += d * d;
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

}  // namespace

void AdamW(Stream& stream, const AdamWOptions& o, int64_t n, const float* gradient, float* value,
           float* m, float* v) {
  if (const DeviceOps* ops = stream.ops()) return ops->AdamW(stream, o, n, gradient, value, m, v);
  const double correction1 = 1 - IntegerPower(o.beta1, o.step);
  const double correction2 = 1 - IntegerPower(o.beta2, o.step);
  AdamWStep step;
  step.beta1 = static_cast<float>(o.beta1);
  step.one_minus_beta1 = static_cast<float>(1 - o.beta1);
  step.beta2 = static_cast<float>(o.beta2);
  step.one_minus_beta2 = static_cast<float>(1 - o.beta2);
  step.step_size = static_cast<float>(o.learning_rate / correction1);
  step.root_correction = static_cast<float>(1 / std::sqrt(correction2));
  step.epsilon = static_cast<float>(o.epsilon);
  step.keep = static_cast<float>(1 - o.learning_rate * o.weight_decay);
  step.gradient_scale = o.gradient_scale;
  stream.Launch([=] { AdamWLoop(step, n, gradient, value, m, v); });
}

void Sgd(Stream& stream, const SgdOptions& o, int64_t n, const float* gradient, float* value) {
  if (const DeviceOps* ops = stream.ops()) return ops->Sgd(stream, o, n, gradient, value);
  const SgdStep step{static_cast<float>(o.learning_rate), static_cast<float>(o.weight_decay),
                     o.gradient_scale};
  stream.Launch([=] { SgdLoop(step, n, gradient, value); });
}

void SquaredNormChunks(Stream& stream, int64_t n, const float* x, double* chunks) {
  if (const DeviceOps* ops = stream.ops()) return ops->SquaredNormChunks(stream, n, x, chunks);
  stream.Launch([=] {
    for (int64_t c = 0; c * kNormChunk < n; ++c) {
      chunks[c] = ChunkSquares(std::min(kNormChunk, n - c * kNormChunk), x + c * kNormChunk);
    }
  });
}

}  // namespace holdfast::kernels
