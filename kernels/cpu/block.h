// Small products of blocks that sit in the first-level cache: what attention is made of. A product
// of 4 rows and 16 columns is held in registers and summed over k in ascending order with fused
// multiply-adds, so the bits of an element depend on its own row, column and k range only.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"

namespace holdfast::kernels {

inline constexpr int64_t kBlock = 64;  // rows and columns of a block of scores
inline constexpr int64_t kTileRows = 4;
inline constexpr int64_t kTileCols = 16;

inline int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Element (i, k) of the left factor is data[i * row + k * step]: step 1 for a plain matrix, row 1
// for a transposed one.
struct LeftFactor {
  const float* data;
  int64_t row, step;
};

// c[0..3][0..15] (+)= sum over k0 <= k < k1 of a(i, k) * b[k][0..15].
template <bool kAdd>
inline void TileProduct(const LeftFactor& a, const float* b, int64_t ldb, int64_t k0, int64_t k1,
                        float* c, int64_t ldc) {
  F8 t[kTileRows][2];
  for (int i = 0; i < kTileRows; ++i) {
    t[i][0] = kAdd ? F8::Load(c + i * ldc) : F8::Zero();
    t[i][1] = kAdd ? F8::Load(c + i * ldc + 8) : F8::Zero();
  }
  const float* left = a.data + k0 * a.step;
  const float* right = b + k0 * ldb;
  for (int64_t k = k0; k < k1; ++k, left += a.step, right += ldb) {
    const F8 b0 = F8::Load(right), b1 = F8::Load(right + 8);
#pragma GCC unroll 4
    for (int i = 0; i < kTileRows; ++i) {
      const F8 x = F8::Broadcast(left + i * a.row);
      t[i][0] = MulAdd(x, b0, t[i][0]);
      t[i][1] = MulAdd(x, b1, t[i][1]);
    }
  }
  for (int i = 0; i < kTileRows; ++i) {
    t[i][0].Store(c + i * ldc);
    t[i][1].Store(c + i * ldc + 8);
  }
}

// to[c][r] = from[r][c] for r < rows, c < cols; columns rows .. RoundUp(rows, 16) - 1 of `to`
// become zero.
inline void PackTransposed(const float* from, int64_t stride, int64_t rows, int64_t cols,
                           float* to) {
  int64_t r = 0;
  for (; r + 8 <= rows; r += 8) {
    int64_t c = 0;
    for (; c + 8 <= cols; c += 8)
      Transpose8x8(from + r * stride + c, stride, to + c * kBlock + r, kBlock);
    for (; c < cols; ++c) {
      for (int64_t i = 0; i < 8; ++i) to[c * kBlock + r + i] = from[(r + i) * stride + c];
    }
  }
  const int64_t padded = RoundUp(rows, kTileCols);
  for (; r < padded; ++r) {
    for (int64_t c = 0; c < cols; ++c) to[c * kBlock + r] = r < rows ? from[r * stride + c] : 0.0f;
  }
}

// to[r][c] = from[r][c] * scale, row length `padded_cols` (a multiple of 16); padding rows up to a
// multiple of 4 and padding columns become zero.
inline void PackRows(const float* from, int64_t stride, int64_t rows, int64_t cols, float scale,
                     int64_t padded_cols, float* to) {
  for (int64_t r = 0; r < RoundUp(rows, kTileRows); ++r) {
    float* row = to + r * padded_cols;
    const int64_t have = r < rows ? cols : 0;
    for (int64_t c = 0; c < have; ++c) row[c] = from[r * stride + c] * scale;
    for (int64_t c = have; c < padded_cols; ++c) row[c] = 0.0f;
  }
}

}  // namespace holdfast::kernels
