#include <cassert>
#include <cmath>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/stream.h"
#include "kernels/math/half.h"

namespace holdfast::kernels::cuda {
namespace {

AttentionArguments ArgumentsOf(const AttentionShape& s, const float* qkv) {
  assert(s.batch >= 0 && s.context >= 0 && s.heads >= 1 && s.head_dim >= 1 && s.head_dim <= 256);
  assert(s.batch * s.heads <= 0x7fffffff && s.context <= int64_t{32} * 65535);
  AttentionArguments a;
  a.context = static_cast<int>(s.context);
  a.heads = static_cast<int>(s.heads);
  a.head_dim = static_cast<int>(s.head_dim);
  a.scale = 1.0f / sqrtf(static_cast<float>(s.head_dim));
  a.by_vectors = s.head_dim % 4 == 0 && Aligned16(qkv);
  a.qkv = qkv;
  return a;
}

bool OnTensorCores(const AttentionShape& s) {
  return s.half_products && s.head_dim <= kHalfAttentionDimMax;
}

// delta = d_out . out, the part of a query's score gradients that softmax's normalisation brings:
// one warp for each (sequence, position, head). d_out is rounded where the products round it, so
// that a row of score gradients still adds up to zero.
__global__ void AttentionDeltaKernel(const AttentionArguments a, bool rounded, int64_t rows) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / warpSize;
  if (row >= rows) return;  // the warp as a whole
  const int lane = static_cast<int>(threadIdx.x) % warpSize;
  const float *out = a.out + row * a.head_dim, *d_out = a.d_out + row * a.head_dim;
  float sum = 0;
  for (int d = lane; d < a.head_dim; d += warpSize) {
    const float slope = rounded ? FloatOfBf16(Bf16Of(d_out[d])) : d_out[d];
    sum = fmaf(out[d], slope, sum);
  }
  sum = WarpReduce(sum, Sum());
  const int64_t token = row / a.heads, head = row % a.heads;
  const int64_t sequence = token / a.context, position = token % a.context;
  if (lane == 0) a.delta[(sequence * a.heads + head) * a.context + position] = sum;
}

}  // namespace

void AttentionForward(Stream& stream, const AttentionShape& shape, const float* qkv, float* out,
                      float* log_sum_exp, void* /*scratch*/) {
  AttentionArguments a = ArgumentsOf(shape, qkv);
  if (shape.batch == 0 || shape.context == 0) return;
  a.by_vectors = a.by_vectors && Aligned16(out);
  a.out = out;
  a.log_sum_exp = log_sum_exp;
  const auto run = OnTensorCores(shape) ? &HalfAttentionForward : &ExactAttentionForward;
  run(stream, a, shape.batch);
}

void AttentionBackward(Stream& stream, const AttentionShape& shape, const float* qkv,
                       const float* out, const float* log_sum_exp, const float* d_out, float* d_qkv,
                       void* /*scratch*/) {
  AttentionArguments a = ArgumentsOf(shape, qkv);
  if (shape.batch == 0 || shape.context == 0) return;
  a.by_vectors = a.by_vectors && Aligned16(d_out) && Aligned16(d_qkv);
  a.out = const_cast<float*>(out);                  // only read here
  a.log_sum_exp = const_cast<float*>(log_sum_exp);  // likewise
  a.d_out = d_out;
  a.d_qkv = d_qkv;
  const int64_t rows = shape.batch * shape.context * shape.heads;
  a.delta = CudaScratch(stream, rows * static_cast<int64_t>(sizeof(float)));
  if (a.delta == nullptr) return;  // the stream knows
  Launch(stream, AttentionDeltaKernel, BlocksFor(rows, kThreads / 32), kThreads, 0, a,
         OnTensorCores(shape), rows);
  const auto run = OnTensorCores(shape) ? &HalfAttentionBackward : &ExactAttentionBackward;
  run(stream, a, shape.batch);
}

}  // namespace holdfast::kernels::cuda
