// Conversions between fp32 and floats of 16 bits: eight elements at a time, so that the 16-bit side
// is accessed by 16 bytes, too.
#include "kernels/math/half.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elementwise.cuh"

namespace holdfast::kernels::cuda {
namespace {

struct Bf16 {
  static __device__ uint16_t Of(float x) { return Bf16Of(x); }
  static __device__ float Back(uint16_t half) { return FloatOfBf16(half); }
};
struct F16 {
  static __device__ uint16_t Of(float x) { return F16Of(x); }
  static __device__ float Back(uint16_t half) { return FloatOfF16(half); }
};

template <typename Kind>
struct ToHalfBody {
  const float* from;
  uint16_t* to;
  template <int kWidth>
  __device__ void At(int64_t i) const {
    const auto value = LoadPack<kWidth>(from + i);
    Pack<uint16_t, kWidth> half;
#pragma unroll
    for (int l = 0; l < kWidth; ++l) half.lane[l] = Kind::Of(value.lane[l]);
    StorePack(to + i, half);
  }
};

template <typename Kind>
struct ToFloatBody {
  const uint16_t* from;
  float* to;
  template <int kWidth>
  __device__ void At(int64_t i) const {
    const auto half = LoadPack<kWidth>(from + i);
    Pack<float, kWidth> value;
#pragma unroll
    for (int l = 0; l < kWidth; ++l) value.lane[l] = Kind::Back(half.lane[l]);
    StorePack(to + i, value);
  }
};

template <typename Kind>
struct RoundBody {
  const float* x;
  float* out;
  template <int kWidth>
  __device__ void At(int64_t i) const {
    auto value = LoadPack<kWidth>(x + i);
#pragma unroll
    for (int l = 0; l < kWidth; ++l) value.lane[l] = Kind::Back(Kind::Of(value.lane[l]));
    StorePack(out + i, value);
  }
};

}  // namespace

void FloatToHalf(Stream& stream, Half half, int64_t n, const float* from, uint16_t* to) {
  const bool vector = Aligned16(from, to);
  if (half == Half::kBf16) {
    ForElements<8>(stream, n, vector, ToHalfBody<Bf16>{from, to});
  } else {
    ForElements<8>(stream, n, vector, ToHalfBody<F16>{from, to});
  }
}

void HalfToFloat(Stream& stream, Half half, int64_t n, const uint16_t* from, float* to) {
  const bool vector = Aligned16(from, to);
  if (half == Half::kBf16) {
    ForElements<8>(stream, n, vector, ToFloatBody<Bf16>{from, to});
  } else {
    ForElements<8>(stream, n, vector, ToFloatBody<F16>{from, to});
  }
}

void RoundToHalf(Stream& stream, Half half, int64_t n, const float* x, float* out) {
  const bool vector = Aligned16(x, out);
  if (half == Half::kBf16) {
    ForElements(stream, n, vector, RoundBody<Bf16>{x, out});
  } else {
    ForElements(stream, n, vector, RoundBody<F16>{x, out});
  }
}

}  // namespace holdfast::kernels::cuda
