#include "kernels/optimizer_step.h"

#include <algorithm>

#include "kernels/device_ops.h"
#include "kernels/math/fixed.h"

namespace holdfast::kernels {
namespace {

void AdamWLoop(const AdamWStep& step, int64_t n, const float* __restrict gradient,
               float* __restrict value, float* __restrict m, float* __restrict v) {
  const AdamWStep s = step;
  for (int64_t i = 0; i < n; ++i) s.Apply(gradient[i], &value[i], &m[i], &v[i]);
}

void AdamWFixedLoop(const AdamWStep& step, int64_t n, double factor, const int64_t* __restrict sums,
                    float* __restrict value, float* __restrict m, float* __restrict v) {
  const AdamWStep s = step;
  for (int64_t i = 0; i < n; ++i)
    s.Apply(static_cast<float>(DoubleOfFixed(sums[i]) * factor), &value[i], &m[i], &v[i]);
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
  const AdamWStep step = StepOf(o);
  stream.Launch([=] { AdamWLoop(step, n, gradient, value, m, v); });
}

void AdamWFixed(Stream& stream, const AdamWOptions& o, int64_t n, double factor,
                const int64_t* sums, float* value, float* m, float* v) {
  if (const DeviceOps* ops = stream.ops())
    return ops->AdamWFixed(stream, o, n, factor, sums, value, m, v);
  const AdamWStep step = StepOf(o);
  stream.Launch([=] { AdamWFixedLoop(step, n, factor, sums, value, m, v); });
}

void Sgd(Stream& stream, const SgdOptions& o, int64_t n, const float* gradient, float* value) {
  if (const DeviceOps* ops = stream.ops()) return ops->Sgd(stream, o, n, gradient, value);
  const SgdStep step = StepOf(o);
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
