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
template <int kWidth>
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
  if (lane == 0) atomicAdd(reinterpret_cast<Word*>(digest), total);
}

}  // namespace

void Digest(Stream& stream, const void* words, int64_t count, uint64_t region, int64_t first,
            uint64_t* digest) {
  assert(first % kDigestBlockWords == 0);
  CudaZero(stream, digest, sizeof *digest);
  const unsigned all = BlocksFor(count, kDigestBlockWords * kWarps);
  const bool vector = Aligned16(static_cast<const char*>(words));
  Launch(stream, vector ? &DigestKernel<4> : &DigestKernel<1>,
         all < kBlocksMost ? all : kBlocksMost, kThreads, 0, static_cast<const uint32_t*>(words),
         count, region, static_cast<uint64_t>(first / kDigestBlockWords), digest);
}

}  // namespace holdfast::kernels::cuda
