// Reductions over the 32 lanes of a warp, of integers only: their order does not matter. All lanes
// together; all get the result.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace holdfast::kernels::cuda {

__device__ __forceinline__ unsigned long long WarpSum(unsigned long long value) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) value += __shfl_xor_sync(0xffffffffu, value, bits);
  return value;
}

__device__ __forceinline__ unsigned WarpMax(unsigned value) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) {
    const unsigned other = __shfl_xor_sync(0xffffffffu, value, bits);
    value = other > value ? other : value;
  }
  return value;
}

}  // namespace holdfast::kernels::cuda
