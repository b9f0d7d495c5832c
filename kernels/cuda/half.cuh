// The two 16-bit kinds as types, for kernels that are made for each.
#pragma once

#include <cstdint>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/math/half.h"
#include "kernels/ops.h"

namespace holdfast::kernels::cuda {

struct Bf16 {
  static __device__ uint16_t Of(float x) { return Bf16Of(x); }
  static __device__ float Back(uint16_t half) { return FloatOfBf16(half); }
};
struct F16 {
  static __device__ uint16_t Of(float x) { return F16Of(x); }
  static __device__ float Back(uint16_t half) { return FloatOfF16(half); }
};

template <typename Kind, int kWidth>
__device__ __forceinline__ void StoreRounded(uint16_t* to, const Pack<float, kWidth>& value) {
  Pack<uint16_t, kWidth> half;
#pragma unroll
  for (int l = 0; l < kWidth; ++l) half.lane[l] = Kind::Of(value.lane[l]);
  StorePack(to, half);
}

// fn(Bf16()) or fn(F16()).
template <typename Fn>
void ForKind(Half half, const Fn& fn) {
  half == Half::kBf16 ? fn(Bf16()) : fn(F16());
}

}  // namespace holdfast::kernels::cuda
