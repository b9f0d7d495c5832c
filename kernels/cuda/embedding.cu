// Token and position embedding. The backward pass adds the rows of one token in ascending order,
// as the CPU does: the block of a token's first row adds all of them, the others find an earlier
// row of their token and stop. No atomics, no sort; every row reads the tokens before or after it,
// which stay in the L2 cache.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elementwise.cuh"

namespace holdfast::kernels::cuda {
namespace {

constexpr int kWarps = kThreads / 32;

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    EmbedKernel(int64_t context, int64_t width, const int32_t* tokens, const float* token_table,
                const float* position_table, float* out) {
  const int64_t row = blockIdx.x;
  const float* const token = token_table + tokens[row] * width;
  const float* const position = position_table + row % context * width;
  for (int64_t c = kWidth * threadIdx.x; c < width; c += kWidth * blockDim.x) {
    auto value = LoadPack<kWidth>(token + c);
    const auto other = LoadPack<kWidth>(position + c);
#pragma unroll
    for (int l = 0; l < kWidth; ++l) value.lane[l] += other.lane[l];
    StorePack(out + row * width + c, value);
  }
}

template <int kWidth>
__device__ __forceinline__ void AddTo(Pack<float, kWidth>& sum, const float* from) {
  const auto value = LoadPack<kWidth>(from);
#pragma unroll
  for (int l = 0; l < kWidth; ++l) sum.lane[l] += value.lane[l];
}

// True in all threads of the block when one of tokens[0 .. row) is `token`.
__device__ __forceinline__ bool ComesEarlier(const int32_t* tokens, int64_t row, int32_t token) {
  __shared__ int found;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  bool mine = false;
  for (int64_t r = threadIdx.x; r < row && !mine; r += kThreads) mine = tokens[r] == token;
  if (mine) atomicOr(&found, 1);
  __syncthreads();
  return found != 0;
}

// blockIdx.x is a row, blockIdx.y a tile of kWidth * kThreads columns.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    TokenGradientKernel(int64_t rows, int64_t width, const int32_t* tokens, const float* d_out,
                        float* d_table) {
  const int64_t row = blockIdx.x;
  const int32_t token = tokens[row];
  if (ComesEarlier(tokens, row, token)) return;
  const int64_t c = kWidth * (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x);
  const bool inside = c < width;
  float* const to = d_table + token * width + c;
  Pack<float, kWidth> sum = {};
  if (inside) sum = LoadPack<kWidth>(to);
  __shared__ unsigned matches[kWarps];
  for (int64_t begin = row; begin < rows; begin += kThreads) {
    const int64_t r = begin + threadIdx.x;
    const unsigned vote = __ballot_sync(0xffffffffu, r < rows && tokens[r] == token);
    if (threadIdx.x % 32 == 0) matches[threadIdx.x / 32] = vote;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      for (unsigned left = matches[w], at = 0; left != 0; left >>= 1, ++at) {
        if ((left & 1u) != 0 && inside)
          AddTo<kWidth>(sum, d_out + (begin + 32 * w + at) * width + c);
      }
    }
    __syncthreads();
  }
  if (inside) StorePack(to, sum);
}

// d_table[position] = d_out[position] + d_out[position + context] + ..., in this order.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    PositionGradientKernel(int64_t batch, int64_t context, int64_t width, const float* d_out,
                           float* d_table) {
  const int64_t position = blockIdx.x;
  for (int64_t c = kWidth * threadIdx.x; c < width; c += kWidth * blockDim.x) {
    Pack<float, kWidth> sum = {};
    if (batch > 0) sum = LoadPack<kWidth>(d_out + position * width + c);
#pragma unroll 4
    for (int64_t b = 1; b < batch; ++b)
      AddTo<kWidth>(sum, d_out + (b * context + position) * width + c);
    StorePack(d_table + position * width + c, sum);
  }
}

}  // namespace

void EmbeddingForward(Stream& stream, const EmbeddingShape& s, const int32_t* tokens,
                      const float* token_table, const float* position_table, float* out) {
  const auto rows = static_cast<unsigned>(s.batch * s.context);
  const bool vector = s.width % 4 == 0 && Aligned16(token_table, position_table, out);
  Launch(stream, vector ? &EmbedKernel<4> : &EmbedKernel<1>, rows,
         ThreadsFor(s.width / (vector ? 4 : 1)), 0, s.context, s.width, tokens, token_table,
         position_table, out);
}

void EmbeddingBackward(Stream& stream, const EmbeddingShape& s, const int32_t* tokens,
                       const float* d_out, float* d_token_table, float* d_position_table) {
  const int64_t rows = s.batch * s.context;
  const bool vector = s.width % 4 == 0 && Aligned16(d_out, d_token_table, d_position_table);
  const int width = vector ? 4 : 1;
  Launch(stream, vector ? &TokenGradientKernel<4> : &TokenGradientKernel<1>,
         dim3(static_cast<unsigned>(rows), BlocksFor(s.width, kThreads * width)), kThreads, 0, rows,
         s.width, tokens, d_out, d_token_table);
  Launch(stream, vector ? &PositionGradientKernel<4> : &PositionGradientKernel<1>,
         static_cast<unsigned>(s.context), ThreadsFor(s.width / width), 0, s.batch, s.context,
         s.width, d_out, d_position_table);
}

}  // namespace holdfast::kernels::cuda
