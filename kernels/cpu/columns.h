// Sums over rows, for the gradients of biases: one fixed order, whatever the width.
#pragma once

#include <algorithm>
#include <cstdint>

namespace holdfast::kernels {

inline constexpr int64_t kColumnBlockRows =
    64;  // rows added one after the other before a total is touched
inline constexpr int64_t kColumnTile = 512;

// sums[c] = sum over rows of what `row` adds to partial[c]: row(r, c0, n, partial) adds the terms
// of row r, columns c0 .. c0 + n - 1, to partial[0 .. n - 1]. Blocks of 64 rows, rows ascending
// inside, blocks ascending.
template <typename RowFn>
void ColumnSums(int64_t rows, int64_t cols, float* sums, const RowFn& row) {
  float partial[kColumnTile];
  std::fill_n(sums, cols, 0.0f);
  for (int64_t r0 = 0; r0 < rows; r0 += kColumnBlockRows) {
    const int64_t end = std::min(rows, r0 + kColumnBlockRows);
    for (int64_t c0 = 0; c0 < cols; c0 += kColumnTile) {
      const int64_t n = std::min(kColumnTile, cols - c0);
      std::fill_n(partial, n, 0.0f);
      for (int64_t r = r0; r < end; ++r) row(r, c0, n, partial);
      for (int64_t i = 0; i < n; ++i) sums[c0 + i] += partial[i];
    }
  }
}

}  // namespace holdfast::kernels
