// Softmax cross-entropy, a block for each row of logits. The first walk over the row keeps, for
// each thread, the largest logit so far and the sum of e^(logit - largest) (Milakov, Gimelshein
// 2018); the second one writes the gradient over the logits. Between the two, the first 20,480
// logits of a row stay in shared memory; of a row of 50,257 the others are read again through the
// L2 cache: 120 KB for each of the two rows that an SM works on, 31 MB in all of an H200's 50.
//
// Memory, 4-byte words for each row: vocab read (the loss alone), vocab read and written with the
// gradient. An exponential (about 20 operations of the fp32 pipe, with what is around it) an
// element, two with the gradient.
#include <cfloat>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/math/activation.h"

namespace holdfast::kernels::cuda {
namespace {

constexpr int kRowThreadsMax = 512, kRowsOfSm = 2;
constexpr int64_t kCachedLogits = 20'480;  // 80 KiB: two rows fit an SM of sm_80 as well

// A function of the row's length alone, as the order of the sums is.
unsigned RowThreadsFor(int64_t vocab) {
  const int64_t warps = (vocab + 127) / 128;
  return static_cast<unsigned>(32 * (warps < 1                     ? 1
                                     : warps > kRowThreadsMax / 32 ? kRowThreadsMax / 32
                                                                   : warps));
}

struct RowSum {
  float largest, total;  // total = sum of e^(logit - largest)
};

// Logits of -infinity are as good as absent: the largest starts at a finite value.
// What the calling thread will read again goes to `cache`, up to `cached`.
template <bool kVector>
__device__ __forceinline__ RowSum SumRow(const float* x, int64_t vocab, float* cache,
                                         int64_t cached, float* parts) {
  float largest = -FLT_MAX, total = 0;
  for (int64_t c = 4 * static_cast<int64_t>(threadIdx.x); c < vocab; c += 4 * blockDim.x) {
    const float4 v = LoadFour<kVector>(x, c, vocab, -kInfinity);
    if (c < cached) *reinterpret_cast<float4*>(cache + c) = v;
    const Largest larger;
    const float now = larger(larger(larger(larger(largest, v.x), v.y), v.z), v.w);
    if (now > largest) {
      total *= SoftmaxValue(largest, now);
      largest = now;
    }
    total += SumFour(MapFour([&](float e) { return SoftmaxValue(e, now); }, v));
  }
  const int warps = static_cast<int>(blockDim.x) / 32;
  const float of_row = BlockReduce(largest, warps, parts, Largest());
  total *= SoftmaxValue(largest, of_row);
  return {of_row, BlockReduce(total, warps, parts, Sum())};
}

template <bool kVector, bool kGradient>
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
  if (target >= 0) sum = SumRow<kVector>(x, vocab, cache, cached, parts);  // the block as a whole
  if (threadIdx.x == 0)
    losses[row] = target < 0 ? 0.0f : Log(sum.total) + (sum.largest - target_logit);
  if constexpr (kGradient) {
    __syncthreads();  // all have read the target's logit
    float* const to = gradient + row * leading;
    const float factor = target < 0 ? 0.0f : scale / sum.total;
    for (int64_t c = 4 * static_cast<int64_t>(threadIdx.x); c < vocab; c += 4 * blockDim.x) {
      float4 slope = make_float4(0, 0, 0, 0);
      if (target >= 0) {
        const float4 v = c < cached ? *reinterpret_cast<const float4*>(cache + c)
                                    : LoadFour<kVector>(x, c, vocab, -kInfinity);
        slope = MapFour([&](float e) { return SoftmaxValue(e, sum.largest) * factor; }, v);
        if (c == target) slope.x -= scale;
        if (c + 1 == target) slope.y -= scale;
        if (c + 2 == target) slope.z -= scale;
        if (c + 3 == target) slope.w -= scale;
      }
      StoreFour<kVector>(to, c, vocab, slope);
    }
  }
}

template <bool kVector>
__global__ void __launch_bounds__(kRowThreadsMax)
    ArgMaxHitsKernel(int64_t vocab, int64_t leading, const int32_t* targets, const float* logits,
                     float* hits) {
  __shared__ float parts[kRowThreadsMax / 32];
  const int64_t row = blockIdx.x;
  const float* const x = logits + row * leading;
  const int32_t target = targets[row];
  const float best = target < 0 ? 0.0f : x[target];
  bool miss = target < 0 || !(best == best);
  for (int64_t c = 4 * static_cast<int64_t>(threadIdx.x); !miss && c < vocab; c += 4 * blockDim.x) {
    const float4 v = LoadFour<kVector>(x, c, vocab, best);
    const float four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int l = 0; l < 4; ++l)  // written so that a NaN is a miss
      miss = miss || !(c + l < target ? four[l] < best : four[l] <= best);
  }
  const float any =
      BlockReduce(miss ? 1.0f : 0.0f, static_cast<int>(blockDim.x) / 32, parts, Largest());
  if (threadIdx.x == 0) hits[row] = 1.0f - any;
}

// Rows begin on 16 bytes.
bool VectorRows(const LogitsShape& s, int64_t leading, const float* logits) {
  return Aligned16(logits) && (leading % 4 == 0 || s.rows == 1);
}
int64_t LeadingOf(const LogitsShape& s) { return s.leading == 0 ? s.vocab : s.leading; }

template <bool kGradient>
void LaunchCrossEntropy(Stream& stream, const LogitsShape& s, const int32_t* targets, float scale,
                        const float* logits, float* gradient, float* losses) {
  const int64_t leading = LeadingOf(s), whole = (s.vocab + 3) / 4 * 4;
  const int64_t cached = !kGradient ? 0 : whole < kCachedLogits ? whole : kCachedLogits;
  Launch(stream,
         VectorRows(s, leading, logits) ? CrossEntropyKernel<true, kGradient>
                                        : CrossEntropyKernel<false, kGradient>,
         static_cast<unsigned>(s.rows), RowThreadsFor(s.vocab),
         cached * static_cast<int64_t>(sizeof(float)), s.vocab, leading, cached, targets, scale,
         logits, gradient, losses);
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
  const int64_t leading = LeadingOf(s);
  Launch(stream, VectorRows(s, leading, logits) ? ArgMaxHitsKernel<true> : ArgMaxHitsKernel<false>,
         static_cast<unsigned>(s.rows), RowThreadsFor(s.vocab), 0, s.vocab, leading, targets,
         logits, hits);
}

}  // namespace holdfast::kernels::cuda
