// Element by element, and row by row with a bias.
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/math/activation.h"

namespace holdfast::kernels::cuda {
namespace {

struct AddBiasBody {
  const float* bias;
  float* x;
  template <int kWidth>
  __device__ void At(int64_t i, int64_t c) const {
    auto value = LoadPack<kWidth>(x + i);
    const auto b = LoadPack<kWidth>(bias + c);
#pragma unroll
    for (int l = 0; l < kWidth; ++l) value.lane[l] += b.lane[l];
    StorePack(x + i, value);
  }
};

struct BiasResidualBody {
  const float *x, *bias, *residual;
  float* out;
  template <int kWidth>
  __device__ void At(int64_t i, int64_t c) const {
    auto value = LoadPack<kWidth>(x + i);
    const auto b = LoadPack<kWidth>(bias + c);
    const auto r = LoadPack<kWidth>(residual + i);
#pragma unroll
    for (int l = 0; l < kWidth; ++l) value.lane[l] = r.lane[l] + (value.lane[l] + b.lane[l]);
    StorePack(out + i, value);
  }
};

struct BiasGeluBody {
  const float* bias;
  float *pre, *out;
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
    StorePack(out + i, value);
    StorePack(pre + i, slope);
  }
};

struct BiasReluBody {
  const float *bias, *x;
  float* out;
  template <int kWidth>
  __device__ void At(int64_t i, int64_t c) const {
    auto value = LoadPack<kWidth>(x + i);
    const auto b = LoadPack<kWidth>(bias + c);
#pragma unroll
    for (int l = 0; l < kWidth; ++l) value.lane[l] = Relu(value.lane[l] + b.lane[l]);
    StorePack(out + i, value);
  }
};

struct PlainTerm {
  const float* d_out;
  template <int kWidth>
  __device__ Pack<float, kWidth> At(int64_t i) const {
    return LoadPack<kWidth>(d_out + i);
  }
};

struct GeluTerm {
  const float *derivative, *d_out;
  float* d_pre;
  template <int kWidth>
  __device__ Pack<float, kWidth> At(int64_t i) const {
    auto value = LoadPack<kWidth>(d_out + i);
    const auto slope = LoadPack<kWidth>(derivative + i);
#pragma unroll
    for (int l = 0; l < kWidth; ++l) value.lane[l] *= slope.lane[l];
    StorePack(d_pre + i, value);
    return value;
  }
};

struct ReluTerm {
  const float *out, *d_out;
  float* d_x;
  template <int kWidth>
  __device__ Pack<float, kWidth> At(int64_t i) const {
    auto value = LoadPack<kWidth>(d_out + i);
    const auto kept = LoadPack<kWidth>(out + i);
#pragma unroll
    for (int l = 0; l < kWidth; ++l) value.lane[l] = kept.lane[l] > 0.0f ? value.lane[l] : 0.0f;
    StorePack(d_x + i, value);
    return value;
  }
};

struct AddBody {
  const float *a, *b;
  float* out;
  template <int kWidth>
  __device__ void At(int64_t i) const {
    auto value = LoadPack<kWidth>(a + i);
    const auto other = LoadPack<kWidth>(b + i);
#pragma unroll
    for (int l = 0; l < kWidth; ++l) value.lane[l] += other.lane[l];
    StorePack(out + i, value);
  }
};

struct ScaleBody {
  float factor;
  float* x;
  template <int kWidth>
  __device__ void At(int64_t i) const {
    auto value = LoadPack<kWidth>(x + i);
#pragma unroll
    for (int l = 0; l < kWidth; ++l) value.lane[l] *= factor;
    StorePack(x + i, value);
  }
};

template <typename T>
struct FillBody {
  T value;
  T* to;
  template <int kWidth>
  __device__ void At(int64_t i) const {
    Pack<T, kWidth> pack;
#pragma unroll
    for (int l = 0; l < kWidth; ++l) pack.lane[l] = value;
    StorePack(to + i, pack);
  }
};

struct CopyBody {
  const float* from;
  float* to;
  template <int kWidth>
  __device__ void At(int64_t i) const {
    StorePack(to + i, LoadPack<kWidth>(from + i));
  }
};

}  // namespace

void AddBias(Stream& stream, const MatrixShape& s, const float* bias, float* x) {
  ForRows(stream, s.rows, s.cols, Aligned16(bias, x), AddBiasBody{bias, x});
}

void BiasGradient(Stream& stream, const MatrixShape& s, const float* d_out, float* d_bias) {
  ColumnSums(stream, s.rows, s.cols, Aligned16(d_out), PlainTerm{d_out}, d_bias);
}

void BiasResidualAdd(Stream& stream, const MatrixShape& s, const float* x, const float* bias,
                     const float* residual, float* out) {
  ForRows(stream, s.rows, s.cols, Aligned16(x, bias, residual, out),
          BiasResidualBody{x, bias, residual, out});
}

void ResidualAdd(Stream& stream, int64_t n, const float* a, const float* b, float* out) {
  ForElements(stream, n, Aligned16(a, b, out), AddBody{a, b, out});
}

void BiasGeluForward(Stream& stream, const MatrixShape& s, const float* bias, float* pre,
                     float* out) {
  ForRows(stream, s.rows, s.cols, Aligned16(bias, pre, out), BiasGeluBody{bias, pre, out});
}

void BiasGeluBackward(Stream& stream, const MatrixShape& s, const float* derivative,
                      const float* d_out, float* d_pre, float* d_bias) {
  ColumnSums(stream, s.rows, s.cols, Aligned16(derivative, d_out, d_pre),
             GeluTerm{derivative, d_out, d_pre}, d_bias);
}

void BiasReluForward(Stream& stream, const MatrixShape& s, const float* bias, const float* x,
                     float* out) {
  ForRows(stream, s.rows, s.cols, Aligned16(bias, x, out), BiasReluBody{bias, x, out});
}

void BiasReluBackward(Stream& stream, const MatrixShape& s, const float* out, const float* d_out,
                      float* d_x, float* d_bias) {
  ColumnSums(stream, s.rows, s.cols, Aligned16(out, d_out, d_x), ReluTerm{out, d_out, d_x}, d_bias);
}

void AccumulateFloat(Stream& stream, int64_t n, const float* x, float* acc) {
  ForElements(stream, n, Aligned16(x, acc), AddBody{acc, x, acc});
}

void ScaleFloat(Stream& stream, int64_t n, float factor, float* x) {
  ForElements(stream, n, Aligned16(x), ScaleBody{factor, x});
}

void Fill(Stream& stream, int64_t n, float value, float* x) {
  ForElements(stream, n, Aligned16(x), FillBody<float>{value, x});
}

void FillWords(Stream& stream, int64_t n, int64_t value, int64_t* words) {
  ForElements<2>(stream, n, Aligned16(words), FillBody<int64_t>{value, words});
}

void CopyFloat(Stream& stream, int64_t n, const float* from, float* to) {
  ForElements(stream, n, Aligned16(from, to), CopyBody{from, to});
}

}  // namespace holdfast::kernels::cuda
