// What the kernels that reduce rows share. A row is walked over in groups of four neighbours, and a
// group always goes to the same thread: as one 16-byte access where rows begin on 16 bytes, one by
// one elsewhere. So the order of every sum, and its bits, do not depend on alignment.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace holdfast::kernels::cuda {

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
// A NaN may or may not come through.
struct Largest {
  __device__ float operator()(float a, float b) const { return b > a ? b : a; }
};

// Over groups of kLanes neighbouring lanes of a whole warp; all get the result, with the same bits:
// the operation is commutative.
template <int kLanes = 32, typename Operation>
__device__ __forceinline__ float WarpReduce(float x, Operation operation) {
#pragma unroll
  for (int bits = kLanes / 2; bits > 0; bits /= 2)
    x = operation(x, __shfl_xor_sync(0xffffffffu, x, bits));
  return x;
}

// Over the `warps` whole warps of a block (threads in x), in ascending order; all get the result.
// `parts`: one shared float for each warp.
template <typename Operation>
__device__ __forceinline__ float BlockReduce(float x, int warps, float* parts,
                                             Operation operation) {
  x = WarpReduce(x, operation);
  if (warps == 1) return x;
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float all = parts[0];
  for (int w = 1; w < warps; ++w) all = operation(all, parts[w]);
  __syncthreads();  // parts may be used again
  return all;
}

// Elements i .. i + 3 of a row of n; `beyond` where there are none. kVector: from + i is 16-byte
// aligned.
template <bool kVector>
__device__ __forceinline__ float4 LoadFour(const float* from, int64_t i, int64_t n, float beyond) {
  if (kVector && i + 4 <= n) return *reinterpret_cast<const float4*>(from + i);
  float4 four = make_float4(beyond, beyond, beyond, beyond);
  if (i < n) four.x = from[i];
  if (i + 1 < n) four.y = from[i + 1];
  if (i + 2 < n) four.z = from[i + 2];
  if (i + 3 < n) four.w = from[i + 3];
  return four;
}
template <bool kVector>
__device__ __forceinline__ void StoreFour(float* to, int64_t i, int64_t n, float4 four) {
  if (kVector && i + 4 <= n) {
    *reinterpret_cast<float4*>(to + i) = four;
    return;
  }
  if (i < n) to[i] = four.x;
  if (i + 1 < n) to[i + 1] = four.y;
  if (i + 2 < n) to[i + 2] = four.z;
  if (i + 3 < n) to[i + 3] = four.w;
}

// operation(first.x, ...), lane by lane.
template <typename Operation, typename... Fours>
__device__ __forceinline__ float4 MapFour(Operation operation, const Fours&... four) {
  return make_float4(operation(four.x...), operation(four.y...), operation(four.z...),
                     operation(four.w...));
}
__device__ __forceinline__ float SumFour(float4 a) { return (a.x + a.y) + (a.z + a.w); }

}  // namespace holdfast::kernels::cuda
