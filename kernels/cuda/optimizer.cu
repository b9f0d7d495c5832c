// Parameter updates, and the squares of gradients in the CPU's order: sixteen lanes for each chunk.
#include "kernels/math/optimizer.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/math/fixed.h"
#include "kernels/optimizer_step.h"

namespace holdfast::kernels::cuda {
namespace {

struct FloatGradient {
  const float* gradient;
  template <int kWidth>
  __device__ Pack<float, kWidth> At(int64_t i) const {
    return LoadPack<kWidth>(gradient + i);
  }
};

// The gradient as it leaves the sum over all micro-batches.
struct FixedGradient {
  const int64_t* sums;
  double factor;
  template <int kWidth>
  __device__ Pack<float, kWidth> At(int64_t i) const {
    const auto words = LoadPack<kWidth>(sums + i);
    Pack<float, kWidth> gradient;
#pragma unroll
    for (int l = 0; l < kWidth; ++l)
      gradient.lane[l] = static_cast<float>(DoubleOfFixed(words.lane[l]) * factor);
    return gradient;
  }
};

template <typename Gradient>
struct AdamWBody {
  AdamWStep step;
  Gradient gradient;
  float *value, *m, *v;
  template <int kWidth>
  __device__ void At(int64_t i) const {
    const auto g = gradient.template At<kWidth>(i);
    auto w = LoadPack<kWidth>(value + i);
    auto first = LoadPack<kWidth>(m + i);
    auto second = LoadPack<kWidth>(v + i);
#pragma unroll
    for (int l = 0; l < kWidth; ++l)
      step.Apply(g.lane[l], &w.lane[l], &first.lane[l], &second.lane[l]);
    StorePack(value + i, w);
    StorePack(m + i, first);
    StorePack(v + i, second);
  }
};

struct SgdBody {
  SgdStep step;
  const float* gradient;
  float* value;
  template <int kWidth>
  __device__ void At(int64_t i) const {
    const auto g = LoadPack<kWidth>(gradient + i);
    auto w = LoadPack<kWidth>(value + i);
#pragma unroll
    for (int l = 0; l < kWidth; ++l) w.lane[l] = step.Apply(g.lane[l], w.lane[l]);
    StorePack(value + i, w);
  }
};

// Four threads take a chunk: thread t its elements 16 j + 4 t .. 4 t + 3, so it owns lanes 4 t .. 4
// t + 3 of the CPU's sixteen. The lanes are then added pairwise: 8 apart, 4, 2, 1.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    SquaresKernel(int64_t n, const float* x, double* chunks) {
  const int64_t chunk = ThreadIndex() / 4, count = (n + kNormChunk - 1) / kNormChunk;
  const int t = static_cast<int>(threadIdx.x) % 4;
  double lane[4] = {};
  if (chunk < count) {
    const int64_t begin = chunk * kNormChunk;
    const int64_t end = begin + kNormChunk < n ? begin + kNormChunk : n;
#pragma unroll 8
    for (int64_t i = begin + 4 * t; i < end; i += 16) {
      Pack<float, 4> pack = {};
      if (kWidth == 4 && i + 4 <= end) {
        pack = LoadPack<4>(x + i);
      } else {
        for (int l = 0; l < 4; ++l) pack.lane[l] = i + l < end ? x[i + l] : 0.0f;
      }
#pragma unroll
      for (int l = 0; l < 4; ++l) {
        const auto d = static_cast<double>(pack.lane[l]);
        lane[l] += d * d;
      }
    }
  }
#pragma unroll
  for (int apart = 2; apart > 0; apart /= 2) {
#pragma unroll
    for (int l = 0; l < 4; ++l) lane[l] += __shfl_down_sync(0xffffffffu, lane[l], apart, 4);
  }
  if (chunk < count && t == 0) chunks[chunk] = (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

}  // namespace

void AdamW(Stream& stream, const AdamWOptions& o, int64_t n, const float* gradient, float* value,
           float* m, float* v) {
  ForElements(stream, n, Aligned16(gradient, value, m, v),
              AdamWBody<FloatGradient>{StepOf(o), {gradient}, value, m, v});
}

void AdamWFixed(Stream& stream, const AdamWOptions& o, int64_t n, double factor,
                const int64_t* sums, float* value, float* m, float* v) {
  ForElements(stream, n, Aligned16(sums, value, m, v),
              AdamWBody<FixedGradient>{StepOf(o), {sums, factor}, value, m, v});
}

void Sgd(Stream& stream, const SgdOptions& o, int64_t n, const float* gradient, float* value) {
  ForElements(stream, n, Aligned16(gradient, value), SgdBody{StepOf(o), gradient, value});
}

void SquaredNormChunks(Stream& stream, int64_t n, const float* x, double* chunks) {
  const bool vector = Aligned16(x);
  Launch(stream, vector ? &SquaresKernel<4> : &SquaresKernel<1>,
         BlocksFor(4 * SquaredNormCount(n), kThreads), kThreads, 0, n, x, chunks);
}

}  // namespace holdfast::kernels::cuda
