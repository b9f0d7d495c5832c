#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd.h"
#include "kernels/device_ops.h"
#include "kernels/math/activation.h"

namespace holdfast::kernels {
namespace {

// Sum of term(i) over a row: 32 lanes (four registers), then groups of 8 into the first, then what
// is left one by one. `wide(i)` gives elements i..i+7, `one(i)` element i.
template <typename Wide, typename One>
float RowSum(int64_t n, const Wide& wide, const One& one) {
  F8 a = F8::Zero(), b = F8::Zero(), c = F8::Zero(), d = F8::Zero();
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    a = a + wide(i);
    b = b + wide(i + 8);
    c = c + wide(i + 16);
    d = d + wide(i + 24);
  }
  for (; i + 8 <= n; i += 8) a = a + wide(i);
  float sum = SumLanes((a + b) + (c + d));
  for (; i < n; ++i) sum += one(i);
  return sum;
}

void ForwardRow(int64_t n, float epsilon, const float* x, const float* gain, const float* bias,
                float* out, float* mean_out, float* rstd_out) {
  const float count = static_cast<float>(n);
  const float mean =
      RowSum(
          n, [&](int64_t i) { return F8::Load(x + i); }, [&](int64_t i) { return x[i]; }) /
      count;
  const F8 means = F8::All(mean);
  const float variance = RowSum(
                             n,
                             [&](int64_t i) {
                               const F8 d = F8::Load(x + i) - means;
                               return d * d;
                             },
                             [&](int64_t i) { return (x[i] - mean) * (x[i] - mean); }) /
                         count;
  const float rstd = 1.0f / sqrtf(variance + epsilon);
  for (int64_t i = 0; i < n; ++i)
    out[i] = LayerNormValue(Normalise(x[i], mean, rstd), gain[i], bias[i]);
  *mean_out = mean;
  *rstd_out = rstd;
}

struct Backward {
  int64_t cols;
  const float *x, *gain, *mean, *rstd, *d_out;
  LayerNormGradients out;

  // Rows whose gain and bias gradients are added up in registers before the totals are touched: a
  // block of this many rows stays in the cache between the passes.
  static constexpr int64_t kRows = 16;

  // d_gain and d_bias of 8 * kWide columns at c, rows r0..r1-1 ascending.
  template <int kWide>
  void Columns(int64_t r0, int64_t r1, int64_t c) const {
    F8 gains[kWide], biases[kWide];
    for (int w = 0; w < kWide; ++w) gains[w] = biases[w] = F8::Zero();
    for (int64_t r = r0; r < r1; ++r) {
      const F8 m = F8::All(mean[r]), s = F8::All(rstd[r]);
      for (int w = 0; w < kWide; ++w) {
        const int64_t at = r * cols + c + 8 * w;
        const F8 d = F8::Load(d_out + at);
        gains[w] = MulAdd(d, (F8::Load(x + at) - m) * s, gains[w]);
        biases[w] = biases[w] + d;
      }
    }
    for (int w = 0; w < kWide; ++w) {
      float* gain_at = out.d_gain + c + 8 * w;
      float* bias_at = out.d_bias + c + 8 * w;
      (F8::Load(gain_at) + gains[w]).Store(gain_at);
      (F8::Load(bias_at) + biases[w]).Store(bias_at);
    }
  }

  void Column(int64_t r0, int64_t r1, int64_t c) const {
    float gains = 0, biases = 0;
    for (int64_t r = r0; r < r1; ++r) {
      const float d = d_out[r * cols + c];
      gains = fmaf(d, Normalise(x[r * cols + c], mean[r], rstd[r]), gains);
      biases += d;
    }
    out.d_gain[c] += gains;
    out.d_bias[c] += biases;
  }

  void Row(int64_t r) const {
    const float *xr = x + r * cols, *dr = d_out + r * cols;
    const float m = mean[r], s = rstd[r];
    const F8 ms = F8::All(m), ss = F8::All(s);
    const float count = static_cast<float>(cols);
    const float mean_g = RowSum(
                             cols, [&](int64_t i) { return F8::Load(dr + i) * F8::Load(gain + i); },
                             [&](int64_t i) { return dr[i] * gain[i]; }) /
                         count;
    const float mean_gx =
        RowSum(
            cols,
            [&](int64_t i) {
              return (F8::Load(dr + i) * F8::Load(gain + i)) * ((F8::Load(xr + i) - ms) * ss);
            },
            [&](int64_t i) { return (dr[i] * gain[i]) * Normalise(xr[i], m, s); }) /
        count;
    float* dx = out.dx + r * cols;
    const bool add = out.add_into_dx;
#pragma GCC ivdep
    for (int64_t i = 0; i < cols; ++i) {
      const float slope =
          LayerNormSlope(dr[i] * gain[i], Normalise(xr[i], m, s), mean_g, mean_gx, s);
      dx[i] = add ? dx[i] + slope : slope;
    }
  }

  void Run(int64_t rows) const {
    std::fill_n(out.d_gain, cols, 0.0f);
    std::fill_n(out.d_bias, cols, 0.0f);
    for (int64_t r0 = 0; r0 < rows; r0 += kRows) {
      const int64_t r1 = std::min(rows, r0 + kRows);
      int64_t c = 0;
      for (; c + 32 <= cols; c += 32) Columns<4>(r0, r1, c);
      for (; c + 8 <= cols; c += 8) Columns<1>(r0, r1, c);
      for (; c < cols; ++c) Column(r0, r1, c);
      for (int64_t r = r0; r < r1; ++r) Row(r);  // last: dx may be d_out
    }
  }
};

}  // namespace

void LayerNormForward(Stream& stream, const LayerNormShape& s, const float* x, const float* gain,
                      const float* bias, float* out, float* mean, float* rstd) {
  if (const DeviceOps* ops = stream.ops())
    return ops->LayerNormForward(stream, s, x, gain, bias, out, mean, rstd);
  stream.Launch([=] {
    for (int64_t r = 0; r < s.rows; ++r) {
      ForwardRow(s.cols, s.epsilon, x + r * s.cols, gain, bias, out + r * s.cols, mean + r,
                 rstd + r);
    }
  });
}

void LayerNormBackward(Stream& stream, const LayerNormShape& s, const float* x, const float* gain,
                       const float* mean, const float* rstd, const float* d_out,
                       const LayerNormGradients& out) {
  if (const DeviceOps* ops = stream.ops())
    return ops->LayerNormBackward(stream, s, x, gain, mean, rstd, d_out, out);
  const Backward backward{s.cols, x, gain, mean, rstd, d_out, out};
  stream.Launch([=] { backward.Run(s.rows); });
}

}  // namespace holdfast::kernels
