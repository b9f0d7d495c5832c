// The two families of attention kernels, for kernels/cuda/attention.cu, which chooses. Both take
// any context, batch and number of heads; all pointers are device memory.
#pragma once

#include "kernels/cuda/attention.cuh"

namespace holdfast::kernels::cuda {

// Exact: fp32 products, head_dim <= 256.
void ExactAttentionForward(Stream& stream, const AttentionArguments& a, int64_t sequences);
void ExactAttentionBackward(Stream& stream, const AttentionArguments& a, int64_t sequences);

// On the tensor cores: factors rounded to bf16, sums in fp32.
inline constexpr int kHalfAttentionDimMax = 128;
void HalfAttentionForward(Stream& stream, const AttentionArguments& a, int64_t sequences);
void HalfAttentionBackward(Stream& stream, const AttentionArguments& a, int64_t sequences);

}  // namespace holdfast::kernels::cuda
