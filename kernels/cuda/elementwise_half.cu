// Operations whose result is rounded to 16 bits on its way.
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/half.cuh"
#include "kernels/math/activation.h"

namespace holdfast::kernels::cuda {
namespace {

template <typename Kind>
struct BiasGeluHalfBody {
  const float* bias;
  float* pre;
  uint16_t* out;
  template <int kWidth>
  __device__ void At(int64_t i, int64_t c) const {
    auto value = LoadPack<kWidth>(pre + i);
    const auto b = LoadPack<kWidth>(bias + c);
    Pack<float, kWidth> slope;
#pragma unroll
    for (int l = 0; l < kWidth; ++l) {
      const Gelu gelu = Gelu::Of(value.lane[l] + b.lane[l]);
      value.lane[l] = gelu.value;
      slope.lane[l] = gelu.derivative;
    }
    StoreRounded<Kind>(out + i, value);
    StorePack(pre + i, slope);
  }
};

template <typename Kind>
struct GeluHalfTerm {
  const float *derivative, *d_out;
  uint16_t* d_pre;
  template <int kWidth>
  __device__ Pack<float, kWidth> At(int64_t i) const {
    auto value = LoadPack<kWidth>(d_out + i);
    const auto slope = LoadPack<kWidth>(derivative + i);
#pragma unroll
    for (int l = 0; l < kWidth; ++l) value.lane[l] *= slope.lane[l];
    StoreRounded<Kind>(d_pre + i, value);
    return value;
  }
};

template <typename Kind>
struct RoundedTerm {
  const float* d_out;
  uint16_t* rounded;
  template <int kWidth>
  __device__ Pack<float, kWidth> At(int64_t i) const {
    const auto value = LoadPack<kWidth>(d_out + i);
    StoreRounded<Kind>(rounded + i, value);
    return value;
  }
};

}  // namespace

void BiasGeluForwardHalf(Stream& stream, Half half, const MatrixShape& s, const float* bias,
                         float* pre, uint16_t* out) {
  ForKind(half, [&](auto kind) {
    ForRows(stream, s.rows, s.cols, Aligned16(bias, pre, out),
            BiasGeluHalfBody<decltype(kind)>{bias, pre, out});
  });
}

void BiasGeluBackwardHalf(Stream& stream, Half half, const MatrixShape& s, const float* derivative,
                          const float* d_out, uint16_t* d_pre, float* d_bias) {
  ForKind(half, [&](auto kind) {
    ColumnSums(stream, s.rows, s.cols, Aligned16(derivative, d_out, d_pre),
               GeluHalfTerm<decltype(kind)>{derivative, d_out, d_pre}, d_bias);
  });
}

void BiasGradientHalf(Stream& stream, Half half, const MatrixShape& s, const float* d_out,
                      uint16_t* rounded, float* d_bias) {
  ForKind(half, [&](auto kind) {
    ColumnSums(stream, s.rows, s.cols, Aligned16(d_out, rounded),
               RoundedTerm<decltype(kind)>{d_out, rounded}, d_bias);
  });
}

}  // namespace holdfast::kernels::cuda
