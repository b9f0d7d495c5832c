// The digest of state (runtime/base/digest.h): a warp takes a block of 1,024 words. The keys of a
// lane's 32 words are the same in every block, so they are made once and stay in registers.
#include "runtime/base/digest.h"

#include <cassert>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/warp.cuh"

namespace holdfast::kernels::cuda {
namespace {

using Word = unsigned long long;

constexpr int kWarps = kThreads / 32;
constexpr int kPacks = kDigestBlockWords / 128;  // packs of four words that a lane takes
constexpr unsigned kBlocksMost = 1024;

// Word 128 p + 4 lane + l of a block belongs to `lane`.
// kAlone: the only block, which writes its sum; else each warp adds its own to what was zero.
template <int kWidth, bool kAlone>
__global__ void __launch_bounds__(kThreads)
    DigestKernel(const uint32_t* words, int64_t count, uint64_t region, uint64_t first_block,
                 uint64_t* digest) {
  const int lane = threadIdx.x % 32;
  const int64_t blocks = (count + kDigestBlockWords - 1) / kDigestBlockWords;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  uint64_t key[kPacks][4];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
#pragma unroll
    for (int l = 0; l < 4; ++l)
      key[p][l] = DigestKey(static_cast<uint64_t>(128 * p + 4 * lane + l));
  }
  Word total = 0;
  // All lanes of a warp have the same block, and so the same number of turns.
  for (int64_t b = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; b < blocks;
       b += stride) {
    Word sum = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t at = b * kDigestBlockWords + 128 * p + 4 * lane;
      if (kWidth == 4 && at + 4 <= count) {
        const auto pack = LoadPack<4>(words + at);
#pragma unroll
        for (int l = 0; l < 4; ++l) sum += pack.lane[l] * key[p][l];
      } else {
#pragma unroll
        for (int l = 0; l < 4; ++l) {
          if (at + l < count) sum += words[at + l] * key[p][l];
        }
      }
    }
    total += DigestBlock(WarpSum(sum), region, first_block + static_cast<uint64_t>(b));
  }
  if constexpr (kAlone) {
    __shared__ Word totals[kWarps];
    if (lane == 0) totals[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < kWarps; ++w) total += totals[w];
    *digest = total;
  } else if (lane == 0) {
    atomicAdd(reinterpret_cast<Word*>(digest), total);
  }
}

}  // namespace

void Digest(Stream& stream, const void* words, int64_t count, uint64_t region, int64_t first,
            uint64_t* digest) {
  assert(first % kDigestBlockWords == 0);
  const auto* const from = static_cast<const uint32_t*>(words);
  const auto first_block = static_cast<uint64_t>(first / kDigestBlockWords);
  const bool vector = Aligned16(from);
  // Most tensors of a model are small: one block does without a pass that zeroes.
  const unsigned all = BlocksFor(count, kDigestBlockWords * kWarps);
  if (all <= 1) {
    Launch(stream, vector ? &DigestKernel<4, true> : &DigestKernel<1, true>, 1, kThreads, 0, from,
           count, region, first_block, digest);
    return;
  }
  CudaZero(stream, digest, sizeof *digest);
  Launch(stream, vector ? &DigestKernel<4, false> : &DigestKernel<1, false>,
         all < kBlocksMost ? all : kBlocksMost, kThreads, 0, from, count, region, first_block,
         digest);
}

}  // namespace holdfast::kernels::cuda
