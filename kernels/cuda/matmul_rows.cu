// What a matrix product needs beside cuBLASLt. Rows may be apart by more than their length.
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/matmul.h"

namespace holdfast::kernels::cuda {
namespace {

// A block for a row of the result.
__global__ void __launch_bounds__(kThreads)
    ScaleRowsKernel(int64_t n, int64_t leading, float beta, float* c) {
  float* const row = c + static_cast<int64_t>(blockIdx.x) * leading;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    row[i] = beta == 0.0f ? 0.0f : row[i] * beta;
}

__global__ void __launch_bounds__(kThreads)
    AddBiasRowsKernel(int64_t n, int64_t leading, const float* bias, float* c) {
  float* const row = c + static_cast<int64_t>(blockIdx.x) * leading;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) row[i] += bias[i];
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    SumPartsKernel(int64_t n, int64_t leading, int parts, int64_t part_size, bool add,
                   const float* partial, float* c) {
  const float* const from = partial + static_cast<int64_t>(blockIdx.x) * n;
  float* const row = c + static_cast<int64_t>(blockIdx.x) * leading;
  for (int64_t i = kWidth * threadIdx.x; i < n; i += kWidth * blockDim.x) {
    auto sum = LoadPack<kWidth>(from + i);
    for (int p = 1; p < parts; ++p) {
      const auto next = LoadPack<kWidth>(from + p * part_size + i);
#pragma unroll
      for (int l = 0; l < kWidth; ++l) sum.lane[l] += next.lane[l];
    }
    if (add) {
      const auto before = LoadPack<kWidth>(row + i);
#pragma unroll
      for (int l = 0; l < kWidth; ++l) sum.lane[l] = before.lane[l] + sum.lane[l];
    }
    StorePack(row + i, sum);
  }
}

}  // namespace

void ScaleRows(Stream& stream, const Product& p, float beta, float* c) {
  Launch(stream, &ScaleRowsKernel, static_cast<unsigned>(p.m), ThreadsFor(p.n), 0, p.n, p.ldc, beta,
         c);
}

void AddBiasRows(Stream& stream, const Product& p, const float* bias, float* c) {
  Launch(stream, &AddBiasRowsKernel, static_cast<unsigned>(p.m), ThreadsFor(p.n), 0, p.n, p.ldc,
         bias, c);
}

void SumParts(Stream& stream, const Product& p, int parts, bool add, const float* partial,
              float* c) {
  const bool vector = p.n % 4 == 0 && p.ldc % 4 == 0 && Aligned16(partial, c);
  Launch(stream, vector ? &SumPartsKernel<4> : &SumPartsKernel<1>, static_cast<unsigned>(p.m),
         ThreadsFor(p.n / (vector ? 4 : 1)), 0, p.n, p.ldc, parts, p.m * p.n, add, partial, c);
}

}  // namespace holdfast::kernels::cuda
