// The engine of the tensor cores: factors rounded to bf16 when a tile is put into shared memory,
// weights when they are handed on, sums in fp32. A warp owns 16 rows; fragments are those
// of kernels/cuda/mma.cuh, so the accumulators of a block of scores are, packed in pairs, the left
// factor of the product that follows.
//
// Tiles are rows of kDim bf16 without padding. Chunks of 16 bytes are exchanged inside a row (an
// exclusive or with the row's number), so that the eight rows of a matrix load lie in different
// banks, and so do the sixteen threads that put down one row.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

namespace holdfast::kernels::cuda {

template <int kDimPadded, int kWarps, int kColsOfBlock>
struct MmaEngine {
  using Element = uint16_t;
  static constexpr int kDim = kDimPadded;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kWarps, kCols = kColsOfBlock;
  static constexpr int kThreadRows = 2, kThreadCols = kCols / 4;
  static constexpr int kThreadDims = kDim / 4;
  static constexpr int kLanesOfRow = 4;
  static constexpr int kStride = kDim;
  static constexpr int kExchangeFloats = 0;
  static_assert(kCols % 16 == 0 && kDim % 32 == 0);

  // Tiles of 16 x 8, one after the other.
  struct Scores {
    float v[kCols / 8][4];
    __device__ float& At(int i, int j) { return v[j / 2][i * 2 + j % 2]; }
  };
  struct Sums {
    float v[kDim / 8][4];
    __device__ float& At(int i, int d) { return v[d / 2][i * 2 + d % 2]; }
    __device__ float At(int i, int d) const { return v[d / 2][i * 2 + d % 2]; }
  };
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int FirstRow() { return static_cast<int>(threadIdx.x) / 32 * 16; }
  __device__ static int LastRow() { return FirstRow() + 15; }
  __device__ static int Row(int i) { return FirstRow() + i * 8 + Lane() / 4; }
  __device__ static int Col(int j) { return j / 2 * 8 + Lane() % 4 * 2 + j % 2; }
  __device__ static int Dim(int d) { return d / 2 * 8 + Lane() % 4 * 2 + d % 2; }

  // Where element `chunk` * 8 of a row lies. Steps of an even number of chunks c are an exclusive
  // or with 8 c, too: At(row, chunk + c) == (At(row, chunk) ^ 8 c) for chunk 0 and 1.
  __device__ __forceinline__ static int At(int row, int chunk) {
    const int turn = kDim >= 64 ? row % 8 : row / 2 % 4;
    return row * kStride + (chunk ^ turn) * 8;
  }
  __device__ __forceinline__ static void PutFour(uint16_t* tile, int row, int four, float4 x) {
    const uint2 words = make_uint2(PackBf16(x.x, x.y), PackBf16(x.z, x.w));
    *reinterpret_cast<uint2*>(tile + At(row, four / 2) + four % 2 * 4) = words;
  }

  // scores += left [kRows, kDim] right [kCols, kDim]^T
  __device__ __forceinline__ static void AddScores(const uint16_t* left, const uint16_t* right,
                                                   Scores& scores) {
    const int lane = Lane();
    const int left_at = At(FirstRow() + lane % 16, lane / 16);
    const int right_at = At(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll 2  // more of it, and sm_80 spills
    for (int k = 0; k < kDim / 16; ++k) {
      uint32_t a[4];
      LoadMatrices(a, left + (left_at ^ 16 * k));
#pragma unroll
      for (int n = 0; n < kCols / 16; ++n) {
        uint32_t b[4];  // 16 columns: two right factors
        LoadMatrices(b, right + (right_at ^ 16 * k) + 16 * n * kStride);
        const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
        MmaBf16M16N8K16(scores.v[2 * n], a, first);
        MmaBf16M16N8K16(scores.v[2 * n + 1], a, second);
      }
    }
  }

  // sums += weights [kRows, kCols] rows [kCols, kDim]
  __device__ __forceinline__ static void AddWeighted(const Scores& weights, const uint16_t* rows,
                                                     float* /*exchange*/, Sums& sums) {
    const int at = At(Lane() % 16, Lane() / 16);
#pragma unroll
    for (int k = 0; k < kCols / 16; ++k) {
      const float(&lower)[4] = weights.v[2 * k];
      const float(&upper)[4] = weights.v[2 * k + 1];
      const uint32_t a[4] = {PackBf16(lower[0], lower[1]), PackBf16(lower[2], lower[3]),
                             PackBf16(upper[0], upper[1]), PackBf16(upper[2], upper[3])};
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        uint32_t b[4];
        LoadMatricesTransposed(b, rows + (at ^ 16 * n) + 16 * k * kStride);
        const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
        MmaBf16M16N8K16(sums.v[2 * n], a, first);
        MmaBf16M16N8K16(sums.v[2 * n + 1], a, second);
      }
    }
  }
};

}  // namespace holdfast::kernels::cuda
