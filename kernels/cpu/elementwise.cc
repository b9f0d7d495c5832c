// Element by element, and row by row with a bias. The loops carry no dependence even where the
// output is an input (element i is read before it is written, by the same iteration): `ivdep` says
// so to the vectoriser.
#include <cstring>

#include "kernels/cpu/columns.h"
#include "kernels/device_ops.h"
#include "kernels/math/activation.h"
#include "kernels/math/philox.h"

namespace holdfast::kernels {
namespace {

void GeluRow(int64_t n, const float* bias, float* pre, float* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const Gelu g = Gelu::Of(pre[i] + bias[i]);
    out[i] = g.value;
    pre[i] = g.derivative;
  }
}

void ProductRow(int64_t n, const float* derivative, const float* d_out, float* d_pre,
                float* partial) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float d = d_out[i] * derivative[i];
    d_pre[i] = d;
    partial[i] += d;
  }
}

void ReluRow(int64_t n, const float* bias, const float* x, float* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = Relu(x[i] + bias[i]);
}

void ReluSlopeRow(int64_t n, const float* out, const float* d_out, float* d_x, float* partial) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float d = out[i] > 0.0f ? d_out[i] : 0.0f;
    d_x[i] = d;
    partial[i] += d;
  }
}

void AddRow(int64_t n, const float* a, const float* b, float* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

void BiasResidualRow(int64_t n, const float* x, const float* bias, const float* residual,
                     float* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = residual[i] + (x[i] + bias[i]);
}

// fn(block, lane, i) for every element i, where first + i is lane `lane` of Philox block `block`.
template <typename Fn>
void ForBlocks(uint64_t key, uint64_t first, int64_t n, const Fn& fn) {
  for (int64_t i = 0; i < n;) {
    const uint64_t index = first + static_cast<uint64_t>(i);
    const Philox4 words = PhiloxBlock(key, index / 4);
    for (uint64_t lane = index % 4; lane < 4 && i < n; ++lane, ++i) fn(words, lane, i);
  }
}

}  // namespace

void AddBias(Stream& stream, const MatrixShape& s, const float* bias, float* x) {
  if (const DeviceOps* ops = stream.ops()) return ops->AddBias(stream, s, bias, x);
  stream.Launch([=] {
    for (int64_t r = 0; r < s.rows; ++r) AddRow(s.cols, x + r * s.cols, bias, x + r * s.cols);
  });
}

void BiasGradient(Stream& stream, const MatrixShape& s, const float* d_out, float* d_bias) {
  if (const DeviceOps* ops = stream.ops()) return ops->BiasGradient(stream, s, d_out, d_bias);
  stream.Launch([=] {
    ColumnSums(s.rows, s.cols, d_bias, [=](int64_t r, int64_t c0, int64_t n, float* partial) {
      AddRow(n, partial, d_out + r * s.cols + c0, partial);
    });
  });
}

void BiasResidualAdd(Stream& stream, const MatrixShape& s, const float* x, const float* bias,
                     const float* residual, float* out) {
  if (const DeviceOps* ops = stream.ops())
    return ops->BiasResidualAdd(stream, s, x, bias, residual, out);
  stream.Launch([=] {
    for (int64_t r = 0; r < s.rows; ++r) {
      const int64_t at = r * s.cols;
      BiasResidualRow(s.cols, x + at, bias, residual + at, out + at);
    }
  });
}

void ResidualAdd(Stream& stream, int64_t n, const float* a, const float* b, float* out) {
  if (const DeviceOps* ops = stream.ops()) return ops->ResidualAdd(stream, n, a, b, out);
  stream.Launch([=] { AddRow(n, a, b, out); });
}

void BiasGeluForward(Stream& stream, const MatrixShape& s, const float* bias, float* pre,
                     float* out) {
  if (const DeviceOps* ops = stream.ops()) return ops->BiasGeluForward(stream, s, bias, pre, out);
  stream.Launch([=] {
    for (int64_t r = 0; r < s.rows; ++r) GeluRow(s.cols, bias, pre + r * s.cols, out + r * s.cols);
  });
}

void BiasGeluBackward(Stream& stream, const MatrixShape& s, const float* derivative,
                      const float* d_out, float* d_pre, float* d_bias) {
  if (const DeviceOps* ops = stream.ops())
    return ops->BiasGeluBackward(stream, s, derivative, d_out, d_pre, d_bias);
  stream.Launch([=] {
    ColumnSums(s.rows, s.cols, d_bias, [=](int64_t r, int64_t c0, int64_t n, float* partial) {
      const int64_t at = r * s.cols + c0;
      ProductRow(n, derivative + at, d_out + at, d_pre + at, partial);
    });
  });
}

void BiasReluForward(Stream& stream, const MatrixShape& s, const float* bias, const float* x,
                     float* out) {
  if (const DeviceOps* ops = stream.ops()) return ops->BiasReluForward(stream, s, bias, x, out);
  stream.Launch([=] {
    for (int64_t r = 0; r < s.rows; ++r) ReluRow(s.cols, bias, x + r * s.cols, out + r * s.cols);
  });
}

void BiasReluBackward(Stream& stream, const MatrixShape& s, const float* out, const float* d_out,
                      float* d_x, float* d_bias) {
  if (const DeviceOps* ops = stream.ops())
    return ops->BiasReluBackward(stream, s, out, d_out, d_x, d_bias);
  stream.Launch([=] {
    ColumnSums(s.rows, s.cols, d_bias, [=](int64_t r, int64_t c0, int64_t n, float* partial) {
      const int64_t at = r * s.cols + c0;
      ReluSlopeRow(n, out + at, d_out + at, d_x + at, partial);
    });
  });
}

void Dropout(Stream& stream, const DropoutOptions& o, int64_t n, const float* x, float* out) {
  if (const DeviceOps* ops = stream.ops()) return ops->Dropout(stream, o, n, x, out);
  stream.Launch([=] {
    const uint64_t threshold = KeepThreshold(o.keep);
    const float factor = 1.0f / o.keep;
    ForBlocks(o.key, o.first, n, [&](const Philox4& words, uint64_t lane, int64_t i) {
      out[i] = words.lane[lane] < threshold ? x[i] * factor : 0.0f;
    });
  });
}

void RandomNormal(Stream& stream, const RandomOptions& o, float mean, float deviation, int64_t n,
                  float* out) {
  if (const DeviceOps* ops = stream.ops())
    return ops->RandomNormal(stream, o, mean, deviation, n, out);
  stream.Launch([=] {
    ForBlocks(o.key, o.first, n, [&](const Philox4& words, uint64_t lane, int64_t i) {
      float pair[2];
      NormalPair(words.lane[lane & 2], words.lane[(lane & 2) + 1], &pair[0], &pair[1]);
      out[i] = fmaf(deviation, pair[lane & 1], mean);
    });
  });
}

void RandomUniform(Stream& stream, const RandomOptions& o, float low, float high, int64_t n,
                   float* out) {
  if (const DeviceOps* ops = stream.ops()) return ops->RandomUniform(stream, o, low, high, n, out);
  stream.Launch([=] {
    ForBlocks(o.key, o.first, n, [&](const Philox4& words, uint64_t lane, int64_t i) {
      const float value = fmaf(UniformOf(words.lane[lane]), high - low, low);
      out[i] = value < high ? value : low;  // rounding may reach `high`
    });
  });
}

void AccumulateFloat(Stream& stream, int64_t n, const float* x, float* acc) {
  if (const DeviceOps* ops = stream.ops()) return ops->AccumulateFloat(stream, n, x, acc);
  stream.Launch([=] { AddRow(n, acc, x, acc); });
}

void ScaleFloat(Stream& stream, int64_t n, float factor, float* x) {
  if (const DeviceOps* ops = stream.ops()) return ops->ScaleFloat(stream, n, factor, x);
  stream.Launch([=] {
    for (int64_t i = 0; i < n; ++i) x[i] *= factor;
  });
}

void Fill(Stream& stream, int64_t n, float value, float* x) {
  if (const DeviceOps* ops = stream.ops()) return ops->Fill(stream, n, value, x);
  stream.Launch([=] { std::fill_n(x, n, value); });
}

void FillWords(Stream& stream, int64_t n, int64_t value, int64_t* words) {
  if (const DeviceOps* ops = stream.ops()) return ops->FillWords(stream, n, value, words);
  stream.Launch([=] { std::fill_n(words, n, value); });
}

void CopyFloat(Stream& stream, int64_t n, const float* from, float* to) {
  if (const DeviceOps* ops = stream.ops()) return ops->CopyFloat(stream, n, from, to);
  stream.Launch([=] {
    if (n > 0) std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  });
}

}  // namespace holdfast::kernels
