// Operations whose result is rounded to 16 bits on its way: a tile of a row is computed as in
// elementwise.cc, then rounded while it is in the first-level cache.
#include <algorithm>

#include "kernels/cpu/columns.h"
#include "kernels/device_ops.h"
#include "kernels/math/activation.h"
#include "kernels/math/half.h"

namespace holdfast::kernels {
namespace {

void RoundRow(Half half, int64_t n, const float* from, uint16_t* to) {
  if (half == Half::kBf16) {
    for (int64_t i = 0; i < n; ++i) to[i] = Bf16Of(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = F16Of(from[i]);
  }
}

void AddInto(int64_t n, const float* x, float* sums) {
  for (int64_t i = 0; i < n; ++i) sums[i] += x[i];
}

}  // namespace

void BiasGeluForwardHalf(Stream& stream, Half half, const MatrixShape& s, const float* bias,
                         float* pre, uint16_t* out) {
  if (const DeviceOps* ops = stream.ops())
    return ops->BiasGeluForwardHalf(stream, half, s, bias, pre, out);
  stream.Launch([=] {
    float value[kColumnTile];
    for (int64_t at = 0; at < s.rows * s.cols; at += s.cols) {
      for (int64_t c0 = 0; c0 < s.cols; c0 += kColumnTile) {
        const int64_t n = std::min(kColumnTile, s.cols - c0);
        float* const row = pre + at + c0;
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) {
          const Gelu g = Gelu::Of(row[i] + bias[c0 + i]);
          value[i] = g.value;
          row[i] = g.derivative;
        }
        RoundRow(half, n, value, out + at + c0);
      }
    }
  });
}

void BiasGeluBackwardHalf(Stream& stream, Half half, const MatrixShape& s, const float* derivative,
                          const float* d_out, uint16_t* d_pre, float* d_bias) {
  if (const DeviceOps* ops = stream.ops())
    return ops->BiasGeluBackwardHalf(stream, half, s, derivative, d_out, d_pre, d_bias);
  stream.Launch([=] {
    ColumnSums(s.rows, s.cols, d_bias, [=](int64_t r, int64_t c0, int64_t n, float* partial) {
      float value[kColumnTile];
      const int64_t at = r * s.cols + c0;
      for (int64_t i = 0; i < n; ++i) value[i] = d_out[at + i] * derivative[at + i];
      AddInto(n, value, partial);
      RoundRow(half, n, value, d_pre + at);
    });
  });
}

void BiasGradientHalf(Stream& stream, Half half, const MatrixShape& s, const float* d_out,
                      uint16_t* rounded, float* d_bias) {
  if (const DeviceOps* ops = stream.ops())
    return ops->BiasGradientHalf(stream, half, s, d_out, rounded, d_bias);
  stream.Launch([=] {
    ColumnSums(s.rows, s.cols, d_bias, [=](int64_t r, int64_t c0, int64_t n, float* partial) {
      const int64_t at = r * s.cols + c0;
      AddInto(n, d_out + at, partial);
      RoundRow(half, n, d_out + at, rounded + at);
    });
  });
}

}  // namespace holdfast::kernels
