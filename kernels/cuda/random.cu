// Dropout and random values: one thread for each Philox block of four elements.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/math/philox.h"

namespace holdfast::kernels::cuda {
namespace {

// Element i of the array is lane (first + i) % 4 of block (first + i) / 4. kVector: `first` is a
// multiple of 4 and the pointers are aligned. A body says whether it reads x, and makes a value of
// (the block's words, the lane, x[i]).
template <bool kVector, typename Body>
__global__ void __launch_bounds__(kThreads)
    RandomKernel(uint64_t key, uint64_t first, int64_t n, const float* x, float* out, Body body) {
  const int64_t i = 4 * ThreadIndex() - static_cast<int64_t>(first % 4);
  if (i >= n) return;
  const Philox4 words = PhiloxBlock(key, first / 4 + static_cast<uint64_t>(ThreadIndex()));
  Pack<float, 4> value = {};
  if (kVector && i + 4 <= n) {
    if (Body::kReads) value = LoadPack<4>(x + i);
#pragma unroll
    for (int l = 0; l < 4; ++l) value.lane[l] = body.Value(words, l, value.lane[l]);
    StorePack(out + i, value);
    return;
  }
#pragma unroll
  for (int l = 0; l < 4; ++l) {
    if (i + l < 0 || i + l >= n) continue;
    out[i + l] = body.Value(words, l, Body::kReads ? x[i + l] : 0.0f);
  }
}

template <typename Body>
void ForRandom(LaunchOn on, uint64_t key, uint64_t first, int64_t n, const float* x, float* out,
               const Body& body) {
  if (n == 0) return;
  const bool vector = first % 4 == 0 && Aligned16(x, out);
  const int64_t words = n + static_cast<int64_t>(first % 4);
  Launch(on, vector ? &RandomKernel<true, Body> : &RandomKernel<false, Body>,
         BlocksFor(words, 4 * kThreads), kThreads, 0, key, first, n, x, out, body);
}

struct DropoutBody {
  static constexpr bool kReads = true;
  uint64_t threshold;
  float factor;
  __device__ float Value(const Philox4& words, int lane, float x) const {
    return words.lane[lane] < threshold ? x * factor : 0.0f;
  }
};

struct NormalBody {
  static constexpr bool kReads = false;
  float mean, deviation;
  __device__ float Value(const Philox4& words, int lane, float) const {
    float pair[2];
    NormalPair(words.lane[lane & 2], words.lane[(lane & 2) + 1], &pair[0], &pair[1]);
    return fmaf(deviation, pair[lane & 1], mean);
  }
};

struct UniformBody {
  static constexpr bool kReads = false;
  float low, high;
  __device__ float Value(const Philox4& words, int lane, float) const {
    const float value = fmaf(UniformOf(words.lane[lane]), high - low, low);
    return value < high ? value : low;  // rounding may reach `high`
  }
};

}  // namespace

void Dropout(Stream& stream, const DropoutOptions& o, int64_t n, const float* x, float* out) {
  ForRandom(stream, o.key, o.first, n, x, out, DropoutBody{KeepThreshold(o.keep), 1.0f / o.keep});
}

void RandomNormal(Stream& stream, const RandomOptions& o, float mean, float deviation, int64_t n,
                  float* out) {
  ForRandom(stream, o.key, o.first, n, nullptr, out, NormalBody{mean, deviation});
}

void RandomUniform(Stream& stream, const RandomOptions& o, float low, float high, int64_t n,
                   float* out) {
  ForRandom(stream, o.key, o.first, n, nullptr, out, UniformBody{low, high});
}

}  // namespace holdfast::kernels::cuda
