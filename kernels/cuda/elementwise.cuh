// What kernels that go over arrays share: 16-byte accesses where every pointer allows them, else
// element by element, with the same bits; and the walks over an array and over rows.
//
// A body is a struct with  template <int kWidth> __device__ void At(int64_t i) const  (of a row
// walk: At(i, c), c the column), which does elements i .. i + kWidth - 1. It reads them all before
// it writes, so outputs may be the same as inputs where the operation says so.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.cuh"

namespace holdfast::kernels::cuda {

inline constexpr int kThreads = 256;

template <typename T, int kWidth>
struct alignas(kWidth * sizeof(T) < 16 ? kWidth * sizeof(T) : 16) Pack {
  T lane[kWidth];
};
// `from` is aligned as the pack is; one instruction for each 16 bytes.
template <int kWidth, typename T>
__device__ __forceinline__ Pack<T, kWidth> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, kWidth>*>(from);
}
template <int kWidth, typename T>
__device__ __forceinline__ void StorePack(T* to, const Pack<T, kWidth>& pack) {
  *reinterpret_cast<Pack<T, kWidth>*>(to) = pack;
}

template <typename... T>
bool Aligned16(const T*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

__device__ __forceinline__ int64_t ThreadIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

template <int kWidth, typename Body>
__global__ void __launch_bounds__(kThreads) ElementKernel(int64_t n, Body body) {
  const int64_t i = kWidth * ThreadIndex();
  if (i + kWidth <= n) {
    body.template At<kWidth>(i);
  } else {
    for (int64_t j = i; j < n; ++j) body.template At<1>(j);
  }
}

// body.At over 0 .. n - 1; `vector`: all pointers of the body are 16-byte aligned.
template <int kWidth = 4, typename Body>
void ForElements(LaunchOn on, int64_t n, bool vector, const Body& body) {
  if (vector) {
    Launch(on, &ElementKernel<kWidth, Body>, BlocksFor(n, kThreads * kWidth), kThreads, 0, n, body);
  } else {
    Launch(on, &ElementKernel<1, Body>, BlocksFor(n, kThreads), kThreads, 0, n, body);
  }
}

// A block for a row.
template <int kWidth, typename Body>
__global__ void __launch_bounds__(kThreads) RowKernel(int64_t cols, Body body) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * cols;
  for (int64_t c = kWidth * threadIdx.x; c < cols; c += kWidth * blockDim.x)
    body.template At<kWidth>(row + c, c);
}

// As many threads as `work` pieces need, in whole warps.
inline unsigned ThreadsFor(int64_t work) {
  const int64_t warps = (work + 31) / 32;
  return static_cast<unsigned>(32 * (warps < 1               ? 1
                                     : warps > kThreads / 32 ? kThreads / 32
                                                             : warps));
}

// body.At(i, c) over all elements i = row * cols + c; `vector` as above.
template <typename Body>
void ForRows(LaunchOn on, int64_t rows, int64_t cols, bool vector, const Body& body) {
  if (cols == 0) return;
  const auto grid = static_cast<unsigned>(rows);
  if (vector && cols % 4 == 0) {
    Launch(on, &RowKernel<4, Body>, grid, ThreadsFor(cols / 4), 0, cols, body);
  } else {
    Launch(on, &RowKernel<1, Body>, grid, ThreadsFor(cols), 0, cols, body);
  }
}

}  // namespace holdfast::kernels::cuda
