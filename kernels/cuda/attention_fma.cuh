// The engine of exact fp32 products. Thread (y, x), y = thread / 16, x = thread % 16, holds the
// scores of rows y + 8 i and columns x + 16 j: with 8 x 4 of them a step of four in the inner
// dimension costs 12 reads of 16 bytes (8 of them the same for 16 threads) and 128 multiply-adds.
// Tile rows are padded by four floats: eight threads that read 16 bytes of eight rows touch all 32
// banks once. Weights go through shared memory to meet the other columns' threads; a warp reads
// only rows that it has written.
#pragma once

#include "kernels/cuda/attention.cuh"

namespace holdfast::kernels::cuda {

template <int kDimPadded, int kRowsOfThread, int kColsOfBlock>
struct FmaEngine {
  using Element = float;
  static constexpr int kDim = kDimPadded;
  static constexpr int kThreads = 128;
  static constexpr int kRows = 8 * kRowsOfThread, kCols = kColsOfBlock;
  static constexpr int kThreadRows = kRowsOfThread, kThreadCols = kCols / 16;
  static constexpr int kThreadDims = kDim / 16;
  static constexpr int kLanesOfRow = 16;
  static constexpr int kStride = kDim + 4, kWeightStride = kCols + 4;
  static constexpr int kExchangeFloats = kRows * kWeightStride;
  static constexpr int kVector = kThreadDims < 4 ? kThreadDims : 4;
  static_assert(kCols % 16 == 0 && kDim % 32 == 0 && (kDim < 64 || kDim % 64 == 0));

  struct Scores {
    float v[kThreadRows][kThreadCols];
    __device__ float& At(int i, int j) { return v[i][j]; }
  };
  struct Sums {
    float v[kThreadRows][kThreadDims];
    __device__ float& At(int i, int d) { return v[i][d]; }
    __device__ float At(int i, int d) const { return v[i][d]; }
  };
  __device__ static int Y() { return static_cast<int>(threadIdx.x) / 16; }
  __device__ static int X() { return static_cast<int>(threadIdx.x) % 16; }
  __device__ static int Row(int i) { return Y() + 8 * i; }
  __device__ static int Col(int j) { return X() + 16 * j; }
  __device__ static int Dim(int d) {
    return X() * kVector + d / kVector * (16 * kVector) + d % kVector;
  }
  // The warp's first and last row.
  __device__ static int FirstRow() { return Y() / 2 * 2; }
  __device__ static int LastRow() { return FirstRow() + 1 + 8 * (kThreadRows - 1); }

  __device__ __forceinline__ static void PutFour(float* tile, int row, int four, float4 x) {
    *reinterpret_cast<float4*>(tile + row * kStride + four * 4) = x;
  }

  // scores += left [kRows, kDim] right [kCols, kDim]^T
  __device__ __forceinline__ static void AddScores(const float* left, const float* right,
                                                   Scores& scores) {
    const float* const a = left + Row(0) * kStride;
    const float* const b = right + Col(0) * kStride;
#pragma unroll 1
    for (int k = 0; k < kDim; k += 4) {
      float4 y[kThreadCols];
#pragma unroll
      for (int j = 0; j < kThreadCols; ++j)
        y[j] = *reinterpret_cast<const float4*>(b + 16 * j * kStride + k);
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        const float4 x = *reinterpret_cast<const float4*>(a + 8 * i * kStride + k);
#pragma unroll
        for (int j = 0; j < kThreadCols; ++j) {
          float& s = scores.v[i][j];
          s = fmaf(x.x, y[j].x, s);
          s = fmaf(x.y, y[j].y, s);
          s = fmaf(x.z, y[j].z, s);
          s = fmaf(x.w, y[j].w, s);
        }
      }
    }
  }

  // sums += weights [kRows, kCols] rows [kCols, kDim]
  __device__ __forceinline__ static void AddWeighted(const Scores& weights, const float* rows,
                                                     float* exchange, Sums& sums) {
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadCols; ++j)
        exchange[Row(i) * kWeightStride + Col(j)] = weights.v[i][j];
    }
    __syncwarp();
    const float* const w = exchange + Row(0) * kWeightStride;
#pragma unroll 1
    for (int k = 0; k < kCols; k += 4) {
      float4 x[kThreadRows];
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i)
        x[i] = *reinterpret_cast<const float4*>(w + 8 * i * kWeightStride + k);
      AddRow(rows + k * kStride, x, &float4::x, sums);
      AddRow(rows + (k + 1) * kStride, x, &float4::y, sums);
      AddRow(rows + (k + 2) * kStride, x, &float4::z, sums);
      AddRow(rows + (k + 3) * kStride, x, &float4::w, sums);
    }
    __syncwarp();  // the weights of the next call go to the same place
  }

 private:
  __device__ __forceinline__ static void AddRow(const float* row, const float4 (&x)[kThreadRows],
                                                float float4::*part, Sums& sums) {
#pragma unroll
    for (int d0 = 0; d0 < kThreadDims; d0 += kVector) {
      float y[kVector];
      if constexpr (kVector == 4) {
        *reinterpret_cast<float4*>(y) = *reinterpret_cast<const float4*>(row + Dim(d0));
      } else {
        *reinterpret_cast<float2*>(y) = *reinterpret_cast<const float2*>(row + Dim(d0));
      }
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
        for (int d = 0; d < kVector; ++d)
          sums.v[i][d0 + d] = fmaf(x[i].*part, y[d], sums.v[i][d0 + d]);
      }
    }
  }
};

}  // namespace holdfast::kernels::cuda
