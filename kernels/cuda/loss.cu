// Softmax cross-entropy, a block for each row of logits. The first walk over the row keeps, for
// each thread, the largest logit so far and the sum of e^(logit - largest) (Milakov, Gimelshein
// 2018); the second one writes the gradient over the logits. Between the two, the first 20,480
// logits of a row stay in shared memory; of a row of 50,257 the others are read again through the
// L2 cache: 120 KB for each of the two rows that an SM works on, 31 MB in all of an H200's 50.
//
// Neighbouring threads take neighbouring logits, one at a time: rows of 50,257 begin on no 16
// bytes, threads that own four of them each would write every sector four times, and the bits are
// to be the same where rows are padded. Eight loads are under way for each thread; beside an
// exponential the instructions that 16-byte accesses save are few.
//
// Memory, 4-byte words for each row: vocab read (the loss alone), vocab read and written with the
// gradient. An exponential (about 20 operations of the fp32 pipe, with what is around it) an
// element, two with the gradient.
#include <cfloat>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/math/activation.h"

namespace holdfast::kernels::cuda {
namespace {

constexpr int kRowThreadsMax = 512, kRowsOfSm = 2, kLoads = 8;
constexpr int64_t kCachedLogits = 20'480;  // 80 KiB: two rows fit an SM of sm_80 as well

// A function of the row's length alone, as the order of the sums is.
unsigned RowThreadsFor(int64_t vocab) {
  const int64_t threads = 32 * ((vocab + 32 * kLoads - 1) / (32 * kLoads));
  return static_cast<unsigned>(threads < kRowThreadsMax ? threads : kRowThreadsMax);
}

struct RowSum {
  float largest, total;  // total = sum of e^(logit - largest)
};

// Logits of -infinity are as good as absent: the largest starts at a finite value. What the calling
// thread will read again goes to `cache`, up to `cached`.
__device__ __forceinline__ RowSum SumRow(const float* x, int64_t vocab, float* cache,
                                         int64_t cached, float* parts) {
  float largest = -FLT_MAX, total = 0;
  for (int64_t c0 = threadIdx.x; c0 < vocab; c0 += kLoads * blockDim.x) {
    float v[kLoads];
    float now = largest;
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int64_t c = c0 + u * blockDim.x;
      v[u] = c < vocab ? x[c] : -kInfinity;
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int64_t c = c0 + u * blockDim.x;
      if (c < cached) cache[c] = v[u];
      now = Largest()(now, v[u]);
    }
    if (now > largest) {
      total *= SoftmaxValue(largest, now);
      largest = now;
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) total += SoftmaxValue(v[u], now);
  }
  const int warps = static_cast<int>(blockDim.x) / 32;
  const float of_row = BlockReduce(largest, warps, parts, Largest());
  total *= SoftmaxValue(largest, of_row);
  return {of_row, BlockReduce(total, warps, parts, Sum())};
}

template <bool kGradient>
__global__ void __launch_bounds__(kRowThreadsMax, kRowsOfSm)
    CrossEntropyKernel(int64_t vocab, int64_t leading, int64_t cached, const int32_t* targets,
                       float scale, const float* logits, float* gradient, float* losses) {
  HF_DYNAMIC_SHARED(float, cache);
  __shared__ float parts[kRowThreadsMax / 32];
  const int64_t row = blockIdx.x;
  const float* const x = logits + row * leading;
  const int32_t target = targets[row];
  const float target_logit = target < 0 ? 0.0f : x[target];
  RowSum sum = {0, 0};
  if (target >= 0) sum = SumRow(x, vocab, cache, cached, parts);  // the block as a whole
  if (threadIdx.x == 0)
    losses[row] = target < 0 ? 0.0f : Log(sum.total) + (sum.largest - target_logit);
  if constexpr (kGradient) {
    __syncthreads();  // all have read the target's logit
    float* const to = gradient + row * leading;
    const float factor = target < 0 ? 0.0f : scale / sum.total;
#pragma unroll kLoads
    for (int64_t c = threadIdx.x; c < vocab; c += blockDim.x) {
      float slope = 0;
      if (target >= 0) {
        slope = SoftmaxValue(c < cached ? cache[c] : x[c], sum.largest) * factor;
        if (c == target) slope -= scale;
      }
      to[c] = slope;
    }
  }
}

// Every comparison is written so that a NaN is a miss.
__global__ void __launch_bounds__(kRowThreadsMax)
    ArgMaxHitsKernel(int64_t vocab, int64_t leading, const int32_t* targets, const float* logits,
                     float* hits) {
  __shared__ float parts[kRowThreadsMax / 32];
  const int64_t row = blockIdx.x;
  const float* const x = logits + row * leading;
  const int32_t target = targets[row];
  const float best = target < 0 ? 0.0f : x[target];
  bool miss = target < 0 || !(best == best);
#pragma unroll kLoads
  for (int64_t c = threadIdx.x; c < vocab; c += blockDim.x) {
    const float v = x[c];
    miss |= !(c < target ? v < best : v <= best);
  }
  const float any =
      BlockReduce(miss ? 1.0f : 0.0f, static_cast<int>(blockDim.x) / 32, parts, Largest());
  if (threadIdx.x == 0) hits[row] = 1.0f - any;
}

int64_t LeadingOf(const LogitsShape& s) { return s.leading == 0 ? s.vocab : s.leading; }

template <bool kGradient>
void LaunchCrossEntropy(Stream& stream, const LogitsShape& s, const int32_t* targets, float scale,
                        const float* logits, float* gradient, float* losses) {
  const int64_t cached = !kGradient ? 0 : s.vocab < kCachedLogits ? s.vocab : kCachedLogits;
  Launch(stream, CrossEntropyKernel<kGradient>, static_cast<unsigned>(s.rows),
         RowThreadsFor(s.vocab), cached * static_cast<int64_t>(sizeof(float)), s.vocab,
         LeadingOf(s), cached, targets, scale, logits, gradient, losses);
}

}  // namespace

void SoftmaxCrossEntropy(Stream& stream, const LogitsShape& s, const int32_t* targets, float scale,
                         float* logits, float* losses) {
  LaunchCrossEntropy<true>(stream, s, targets, scale, logits, logits, losses);
}

void CrossEntropyLoss(Stream& stream, const LogitsShape& s, const int32_t* targets,
                      const float* logits, float* losses) {
  LaunchCrossEntropy<false>(stream, s, targets, 0.0f, logits, nullptr, losses);
}

void ArgMaxHits(Stream& stream, const LogitsShape& s, const int32_t* targets, const float* logits,
                float* hits) {
  Launch(stream, ArgMaxHitsKernel, static_cast<unsigned>(s.rows), RowThreadsFor(s.vocab), 0,
         s.vocab, LeadingOf(s), targets, logits, hits);
}

}  // namespace holdfast::kernels::cuda
