// Sums over rows, for the gradients of biases, in the order of kernels/cpu/columns.h and so with
// its bits: blocks of 64 rows, rows ascending inside; then the blocks' sums, ascending. Two
// kernels, the partial sums between them in the stream's scratch; no atomics.
#pragma once

#include <cstdint>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/stream.h"

namespace holdfast::kernels::cuda {

inline constexpr int64_t kColumnBlockRows = 64;

// Term:  template <int kWidth> __device__ Pack<float, kWidth> At(int64_t i) const  is what elements
// i .. i + kWidth - 1 of the matrix add to their columns.
template <int kWidth, typename Term>
__global__ void __launch_bounds__(kThreads)
    ColumnPartialsKernel(int64_t rows, int64_t cols, Term term, float* partials) {
  const int64_t c = kWidth * (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x);
  if (c >= cols) return;
  const int64_t block = blockIdx.x, begin = block * kColumnBlockRows;
  const int64_t end = begin + kColumnBlockRows < rows ? begin + kColumnBlockRows : rows;
  Pack<float, kWidth> sum = {};
#pragma unroll 8
  for (int64_t r = begin; r < end; ++r) {
    const Pack<float, kWidth> add = term.template At<kWidth>(r * cols + c);
#pragma unroll
    for (int l = 0; l < kWidth; ++l) sum.lane[l] += add.lane[l];
  }
  StorePack<kWidth>(partials + block * cols + c, sum);
}

// A template, so that every file that includes this may have it.
template <int kAhead>
__global__ void __launch_bounds__(kThreads)
    ColumnTotalsKernel(int64_t blocks, int64_t cols, const float* partials, float* sums) {
  const int64_t c = ThreadIndex();
  if (c >= cols) return;
  float sum = 0;
#pragma unroll kAhead
  for (int64_t b = 0; b < blocks; ++b) sum += partials[b * cols + c];
  sums[c] = sum;
}

// `vector`: all pointers of the term are 16-byte aligned.
template <typename Term>
void ColumnSums(LaunchOn on, int64_t rows, int64_t cols, bool vector, const Term& term,
                float* sums) {
  const int64_t blocks = (rows + kColumnBlockRows - 1) / kColumnBlockRows;
  float* const partials =
      CudaScratch(on.stream, blocks * cols * static_cast<int64_t>(sizeof(float)));
  if (partials == nullptr) return;
  const auto launch = [&](auto kernel, int64_t width) {
    const unsigned threads = ThreadsFor(cols / width);
    const dim3 grid(static_cast<unsigned>(blocks), BlocksFor(cols, threads * width));
    Launch(on, kernel, grid, threads, 0, rows, cols, term, partials);
  };
  if (vector && cols % 4 == 0) {
    launch(&ColumnPartialsKernel<4, Term>, 4);
  } else {
    launch(&ColumnPartialsKernel<1, Term>, 1);
  }
  // Few columns, a long chain of adds: small blocks spread them over more multiprocessors.
  Launch(on, &ColumnTotalsKernel<16>, BlocksFor(cols, 64), 64, 0, blocks, cols, partials, sums);
}

}  // namespace holdfast::kernels::cuda
