// Attention in tiles on a GPU: what its kernels share. The kernels (attention_kernels.cuh) are
// written once, over an *engine* that holds a block of scores and its products: attention_fma.cuh
// multiplies in fp32, attention_mma.cuh on the tensor cores with factors rounded to bf16.
//
// A block of kThreads threads owns kRows rows of one head (queries, or keys for their gradients)
// and walks over blocks of kCols columns in ascending order. Each warp owns whole rows: softmax
// needs no memory beyond the warp. Every sum has one order, that of the columns; no atomics.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/rows.cuh"
#include "kernels/ops.h"

namespace holdfast::kernels::cuda {

// Pointers as in ops.h; delta is [batch, heads, context].
struct AttentionArguments {
  int context = 0, heads = 0, head_dim = 0;
  float scale = 0;          // 1 / sqrt(head_dim)
  bool by_vectors = false;  // every row of every head begins on 16 bytes
  const float* qkv = nullptr;
  float* out = nullptr;
  float* log_sum_exp = nullptr;
  const float* d_out = nullptr;
  float* d_qkv = nullptr;
  float* delta = nullptr;
};

// Rows of one head, one for each position.
template <typename T>
struct HeadRows {
  T* first = nullptr;
  int stride = 0;
  __device__ __forceinline__ T* At(int row) const {
    return first + static_cast<int64_t>(row) * stride;
  }
};

// The head with number batch index * heads + head.
class Head {
 public:
  __device__ Head(const AttentionArguments& a, int number)
      : a_(a), number_(number), width_(a.heads * a.head_dim) {
    const int64_t token = static_cast<int64_t>(number / a.heads) * a.context;
    plain_ = token * width_ + number % a.heads * a.head_dim;
    packed_ = plain_ + token * 2 * width_;
  }
  // part: 0, 1, 2 = q, k, v
  __device__ HeadRows<const float> Input(int part) const {
    return {a_.qkv + packed_ + part * width_, 3 * width_};
  }
  __device__ HeadRows<float> Gradient(int part) const {
    return {a_.d_qkv + packed_ + part * width_, 3 * width_};
  }
  __device__ HeadRows<float> Out() const { return {a_.out + plain_, width_}; }
  __device__ HeadRows<const float> OutGradient() const { return {a_.d_out + plain_, width_}; }
  // [context]
  __device__ float* LogSumExp() const { return a_.log_sum_exp + Statistics(); }
  __device__ float* Delta() const { return a_.delta + Statistics(); }

 private:
  __device__ int64_t Statistics() const { return static_cast<int64_t>(number_) * a_.context; }

  const AttentionArguments& a_;
  const int number_, width_;
  int64_t packed_, plain_;
};

// kTileRows rows on their way from global to shared memory, in the registers of the block's
// threads: fetched before a product, put down after it, so that the product hides the latency. A
// thread's pieces lie in one column of fours, kStep rows apart. Rows and dimensions that do not
// exist become zero.
template <typename Engine, int kTileRows>
struct Fetched {
  static constexpr int kFours = Engine::kDim / 4;
  static constexpr int kStep = Engine::kThreads / kFours;
  static constexpr int kUnits = kTileRows / kStep;
  static_assert(Engine::kThreads % kFours == 0 && kTileRows % kStep == 0);
  float4 unit[kUnits];

  __device__ static int Row() { return static_cast<int>(threadIdx.x) / kFours; }
  __device__ static int Four() { return static_cast<int>(threadIdx.x) % kFours; }

  __device__ __forceinline__ void Fetch(const AttentionArguments& a, HeadRows<const float> rows,
                                        int row0) {
    const float* from = rows.At(row0 + Row()) + 4 * Four();
    const int64_t step = static_cast<int64_t>(kStep) * rows.stride;
    const int left = a.head_dim - 4 * Four();
    const int rows_left = a.context - row0 - Row();
    if (a.by_vectors) {  // head_dim is a multiple of 4 then
#pragma unroll
      for (int u = 0; u < kUnits; ++u, from += step) {
        unit[u] = left > 0 && u * kStep < rows_left ? *reinterpret_cast<const float4*>(from)
                                                    : make_float4(0, 0, 0, 0);
      }
    } else {
#pragma unroll
      for (int u = 0; u < kUnits; ++u, from += step)
        unit[u] = LoadFour<false>(from, 0, u * kStep < rows_left ? left : 0, 0.0f);
    }
  }
  __device__ __forceinline__ void Put(typename Engine::Element* tile) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) Engine::PutFour(tile, Row() + u * kStep, Four(), unit[u]);
  }
};

// The tile that stays: once for each block, in pieces of few rows, and so few registers.
template <typename Engine>
__device__ void LoadRows(const AttentionArguments& a, HeadRows<const float> rows, int row0,
                         typename Engine::Element* tile) {
  constexpr int kStep = Fetched<Engine, Engine::kRows>::kStep;
  constexpr int kPiece = kStep > 16 ? kStep : 16;
#pragma unroll 1
  for (int r = 0; r < Engine::kRows; r += kPiece) {
    Fetched<Engine, kPiece> piece;
    piece.Fetch(a, rows, row0 + r);
    piece.Put(tile + r * Engine::kStride);
  }
}

// to[row] = sums * factor, for the rows that exist.
template <typename Engine>
__device__ __forceinline__ void StoreRows(const AttentionArguments& a,
                                          const typename Engine::Sums& sums,
                                          const float (&factor)[Engine::kThreadRows], int row0,
                                          HeadRows<float> to) {
#pragma unroll
  for (int i = 0; i < Engine::kThreadRows; ++i) {
    const int row = row0 + Engine::Row(i);
    if (row >= a.context) continue;
    float* const at = to.At(row);
#pragma unroll
    for (int d = 0; d < Engine::kThreadDims; d += 2) {  // Dim(d + 1) is Dim(d) + 1
      const int dim = Engine::Dim(d);
      const float2 pair = make_float2(sums.At(i, d) * factor[i], sums.At(i, d + 1) * factor[i]);
      if (a.by_vectors) {
        if (dim < a.head_dim) *reinterpret_cast<float2*>(at + dim) = pair;
      } else {
        if (dim < a.head_dim) at[dim] = pair.x;
        if (dim + 1 < a.head_dim) at[dim + 1] = pair.y;
      }
    }
  }
}

}  // namespace holdfast::kernels::cuda
