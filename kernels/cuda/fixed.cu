// Fixed point in int64. Flags and sums are collected by integer atomics, one for each warp: their
// order does not reach the result. |x| of finite floats compares like its bits, so the largest is
// an integer maximum, too.
#include "kernels/math/fixed.h"

#include <cassert>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/warp.cuh"

namespace holdfast::kernels::cuda {
namespace {

using Word = unsigned long long;  // what integer atomics take

// Blocks that walk an array in strides: enough to fill any GPU, few enough for their atomics.
constexpr unsigned kStridingBlocks = 2048;

unsigned StridingBlocks(int64_t n, int64_t per_block) {
  const int64_t blocks = (n + per_block - 1) / per_block;
  return blocks < kStridingBlocks ? static_cast<unsigned>(blocks) : kStridingBlocks;
}

struct Seen {
  unsigned largest = 0;  // bits of the largest finite |x|
  unsigned nonfinite = 0, out_of_range = 0;
};

template <bool kAdd, int kWidth>
__device__ __forceinline__ void ConvertAt(double scale, double bound, const float* x, int64_t* acc,
                                          Seen& seen) {
  constexpr unsigned kInfinityBits = 0x7f800000u;
  const auto value = LoadPack<kWidth>(x);
  Pack<int64_t, kWidth> words = {};
  if (kAdd) words = LoadPack<kWidth>(acc);
#pragma unroll
  for (int l = 0; l < kWidth; ++l) {
    int64_t fixed;
    const bool ok = ToFixed(value.lane[l], scale, bound, &fixed);
    const unsigned bits = BitsOf(value.lane[l]) & 0x7fffffffu;
    const bool finite = bits < kInfinityBits;
    seen.nonfinite += finite ? 0 : 1;
    seen.out_of_range += finite && !ok ? 1 : 0;
    seen.largest = finite && bits > seen.largest ? bits : seen.largest;
    words.lane[l] =
        static_cast<int64_t>(static_cast<uint64_t>(words.lane[l]) + static_cast<uint64_t>(fixed));
  }
  StorePack(acc, words);
}

template <bool kAdd, int kWidth>
__global__ void __launch_bounds__(kThreads)
    ConvertKernel(int64_t n, double scale, double bound, const float* x, int64_t* acc,
                  FixedFlags* flags) {
  Seen seen;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
  for (int64_t i = kWidth * ThreadIndex(); i < n; i += stride) {
    if (i + kWidth <= n) {
      ConvertAt<kAdd, kWidth>(scale, bound, x + i, acc + i, seen);
    } else {
      for (int64_t j = i; j < n; ++j) ConvertAt<kAdd, 1>(scale, bound, x + j, acc + j, seen);
    }
  }
  const unsigned largest = WarpMax(seen.largest);
  // Both counts in one sum: each is below 2^32 in a warp's share of any array that fits a GPU.
  const Word counts = WarpSum((Word{seen.nonfinite} << 32) + seen.out_of_range);
  if (threadIdx.x % 32 != 0) return;
  if (largest != 0) atomicMax(reinterpret_cast<unsigned*>(&flags->max_abs), largest);
  if (counts >> 32 != 0) atomicAdd(reinterpret_cast<Word*>(&flags->nonfinite), counts >> 32);
  if (static_cast<unsigned>(counts) != 0)
    atomicAdd(reinterpret_cast<Word*>(&flags->out_of_range), counts & 0xffffffffu);
}

template <bool kAdd>
void Convert(Stream& stream, const FixedScale& s, int64_t n, const float* x, int64_t* acc,
             FixedFlags* flags) {
  assert(s.exponent >= -200 && s.exponent <= 200 && s.micro_batches >= 1);
  const bool vector = Aligned16(x, acc);
  Launch(stream, vector ? &ConvertKernel<kAdd, 4> : &ConvertKernel<kAdd, 1>,
         StridingBlocks(n, kThreads * (vector ? 4 : 1)), kThreads, 0, n, PowerOfTwo(s.exponent),
         FixedBound(s.micro_batches), x, acc, flags);
}

struct ToFloatBody {
  double factor;
  const int64_t* acc;
  float* out;
  template <int kWidth>
  __device__ void At(int64_t i) const {
    const auto words = LoadPack<kWidth>(acc + i);
    Pack<float, kWidth> value;
#pragma unroll
    for (int l = 0; l < kWidth; ++l)
      value.lane[l] = static_cast<float>(DoubleOfFixed(words.lane[l]) * factor);
    StorePack(out + i, value);
  }
};

struct AddWordsBody {
  const uint64_t* other;
  uint64_t* acc;
  template <int kWidth>
  __device__ void At(int64_t i) const {
    auto words = LoadPack<kWidth>(acc + i);
    const auto add = LoadPack<kWidth>(other + i);
#pragma unroll
    for (int l = 0; l < kWidth; ++l) words.lane[l] += add.lane[l];
    StorePack(acc + i, words);
  }
};

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    SumWordsKernel(int64_t n, const uint64_t* words, uint64_t* sum) {
  Word mine = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
  for (int64_t i = kWidth * ThreadIndex(); i < n; i += stride) {
    if (i + kWidth <= n) {
      const auto pack = LoadPack<kWidth>(words + i);
#pragma unroll
      for (int l = 0; l < kWidth; ++l) mine += pack.lane[l];
    } else {
      for (int64_t j = i; j < n; ++j) mine += words[j];
    }
  }
  mine = WarpSum(mine);
  if (threadIdx.x % 32 == 0) atomicAdd(reinterpret_cast<Word*>(sum), mine);
}

}  // namespace

void AccumulateFixed(Stream& stream, const FixedScale& scale, int64_t n, const float* x,
                     int64_t* acc, FixedFlags* flags) {
  Convert<true>(stream, scale, n, x, acc, flags);
}

void StoreFixed(Stream& stream, const FixedScale& scale, int64_t n, const float* x, int64_t* acc,
                FixedFlags* flags) {
  Convert<false>(stream, scale, n, x, acc, flags);
}

void FixedToFloat(Stream& stream, int64_t n, double factor, const int64_t* acc, float* out) {
  ForElements(stream, n, Aligned16(acc, out), ToFloatBody{factor, acc, out});
}

void AddWords(Stream& stream, int64_t n, const int64_t* other, int64_t* acc) {
  ForElements<2>(
      stream, n, Aligned16(other, acc),
      AddWordsBody{reinterpret_cast<const uint64_t*>(other), reinterpret_cast<uint64_t*>(acc)});
}

void SumWords(Stream& stream, int64_t n, const int64_t* words, uint64_t* sum) {
  CudaZero(stream, sum, sizeof *sum);
  const bool vector = Aligned16(words);
  Launch(stream, vector ? &SumWordsKernel<2> : &SumWordsKernel<1>,
         StridingBlocks(n, kThreads * (vector ? 2 : 1)), kThreads, 0, n,
         reinterpret_cast<const uint64_t*>(words), sum);
}

}  // namespace holdfast::kernels::cuda
