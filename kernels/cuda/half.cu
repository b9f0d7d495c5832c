// Conversions between fp32 and floats of 16 bits: eight elements at a time, so that the 16-bit side
// is accessed by 16 bytes, too.
#include "kernels/cuda/half.cuh"

#include "kernels/cuda/cuda_ops.h"

namespace holdfast::kernels::cuda {
namespace {

template <typename Kind>
struct ToHalfBody {
  const float* from;
  uint16_t* to;
  template <int kWidth>
  __device__ void At(int64_t i) const {
    StoreRounded<Kind>(to + i, LoadPack<kWidth>(from + i));
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
  ForKind(half, [&](auto kind) {
    ForElements<8>(stream, n, Aligned16(from, to), ToHalfBody<decltype(kind)>{from, to});
  });
}

void HalfToFloat(Stream& stream, Half half, int64_t n, const uint16_t* from, float* to) {
  ForKind(half, [&](auto kind) {
    ForElements<8>(stream, n, Aligned16(from, to), ToFloatBody<decltype(kind)>{from, to});
  });
}

void RoundToHalf(Stream& stream, Half half, int64_t n, const float* x, float* out) {
  ForKind(half, [&](auto kind) {
    ForElements(stream, n, Aligned16(x, out), RoundBody<decltype(kind)>{x, out});
  });
}

}  // namespace holdfast::kernels::cuda
