// Layer norm for GPUs, run on the CPU, against the reference in double and the CPU's operation.
#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/reference/reference.h"

namespace holdfast::kernels {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers

struct LayerNormInputs {
  explicit LayerNormInputs(const LayerNormShape& s)
      : x(Normal(1, s.rows * s.cols, 2.0f)),
        gain(Normal(2, s.cols)),
        bias(Normal(3, s.cols)),
        d_out(Normal(4, s.rows * s.cols)),
        before(Normal(5, s.rows * s.cols)) {
    for (float& v : x) v += 3.0f;
  }
  Floats x, gain, bias, d_out, before;
};

struct LayerNormOutputs {
  Floats out, dx, d_gain, d_bias, mean, rstd;
};
LayerNormOutputs Split(const LayerNormShape& s, const Floats& all) {
  LayerNormOutputs o;
  auto at = all.begin();
  const auto take = [&at](int64_t n) {
    const auto from = at;
    at += n;
    return Floats(from, at);
  };
  o.out = take(s.rows * s.cols);
  o.dx = take(s.rows * s.cols);
  o.d_gain = take(s.cols);
  o.d_bias = take(s.cols);
  o.mean = take(s.rows);
  o.rstd = take(s.rows);
  return o;
}
int64_t OutputSize(const LayerNormShape& s) { return 2 * (s.rows * s.cols + s.cols + s.rows); }

// Both passes; added to `before` where asked for.
void Both(const LayerNormShape& s, const LayerNormInputs& in, bool add, Stream& stream,
          float* memory) {
  const int64_t n = s.rows * s.cols;
  float *out = memory, *dx = out + n, *d_gain = dx + n, *d_bias = d_gain + s.cols;
  float *mean = d_bias + s.cols, *rstd = mean + s.rows;
  if (add) std::copy(in.before.begin(), in.before.end(), dx);
  LayerNormForward(stream, s, in.x.data(), in.gain.data(), in.bias.data(), out, mean, rstd);
  LayerNormBackward(stream, s, in.x.data(), in.gain.data(), mean, rstd, in.d_out.data(),
                    {dx, d_gain, d_bias, add});
}

LayerNormOutputs NormOnGpu(const LayerNormShape& s, const LayerNormInputs& in, bool add) {
  return Split(s, SameBitsOnGpu(OutputSize(s), [&](Stream& stream, float* memory) {
                 Both(s, in, add, stream, memory);
               }));
}

LayerNormOutputs NormOnCpu(const LayerNormShape& s, const LayerNormInputs& in) {
  Floats memory(OutputSize(s));
  Compute([&](Stream& stream) { Both(s, in, false, stream, memory.data()); });
  return Split(s, memory);
}

void CheckGradients(const LayerNormShape& s, const LayerNormOutputs& got, const Doubles& dx,
                    const Doubles& d_gain, const Doubles& d_bias) {
  EXPECT_LT(NormError(got.d_bias, d_bias), 1e-5);
  if (s.cols == 1) return;  // the exact gradient of x and gain is zero
  EXPECT_LT(NormError(got.dx, dx), 1e-5);
  EXPECT_LT(NormError(got.d_gain, d_gain), 1e-5);
}

void Check(const LayerNormShape& s) {
  SCOPED_TRACE(::testing::Message() << s.rows << " x " << s.cols);
  const LayerNormInputs in(s);
  const LayerNormOutputs got = NormOnGpu(s, in, false);
  const Doubles x = Widen(in.x), gain = Widen(in.gain);
  EXPECT_LT(
      NormError(got.out, reference::LayerNorm(s.rows, s.cols, s.epsilon, x, gain, Widen(in.bias))),
      1e-6);
  const auto want =
      reference::LayerNormBackward(s.rows, s.cols, s.epsilon, x, gain, Widen(in.d_out));
  CheckGradients(s, got, want.dx, want.d_gain, want.d_bias);

  const LayerNormOutputs cpu = NormOnCpu(s, in);
  EXPECT_LT(NormError(got.out, Widen(cpu.out)), 1e-6);
  EXPECT_LT(NormError(got.mean, Widen(cpu.mean)), 1e-6);
  EXPECT_LT(NormError(got.rstd, Widen(cpu.rstd)), 1e-6);
  CheckGradients(s, got, Widen(cpu.dx), Widen(cpu.d_gain), Widen(cpu.d_bias));

  const LayerNormOutputs added = NormOnGpu(s, in, true);
  for (int64_t i = 0; i < s.rows * s.cols; ++i) ASSERT_EQ(added.dx[i], in.before[i] + got.dx[i]);
  EXPECT_EQ(added.d_gain, got.d_gain);
}

// One of every way to hold a row: 1 to 1,024 columns with a warp, to 8,192 with a block, beyond.
TEST(CudaLayerNorm, MatchesTheReference) {
  for (const int64_t cols : {1, 7, 32, 77, 256, 300, 768, 1000}) Check({70, cols});
  for (const int64_t cols : {1028, 2052, 4101, 8196}) Check({35, cols});
  Check({1, 64});
}

TEST(CudaLayerNorm, ManyRowsAddUpInOneOrder) { Check({1700, 24}); }

TEST(CudaLayerNorm, BackwardInPlaceAndRowsAlone) {
  for (const int64_t cols : {96, 1030, 8200}) {
    const LayerNormShape s{40, cols};
    const LayerNormInputs in(s);
    const LayerNormOutputs want = NormOnGpu(s, in, false);
    Floats in_place = in.d_out, d_gain(cols), d_bias(cols);
    Floats row(cols), mean(1), rstd(1);
    OnGpu([&](Stream& stream) {
      LayerNormBackward(stream, s, in.x.data(), in.gain.data(), want.mean.data(), want.rstd.data(),
                        in_place.data(), {in_place.data(), d_gain.data(), d_bias.data(), false});
      LayerNormForward(stream, {1, cols}, &in.x[7 * cols], in.gain.data(), in.bias.data(),
                       row.data(), mean.data(), rstd.data());
    });
    EXPECT_EQ(in_place, want.dx);
    EXPECT_EQ(d_gain, want.d_gain);
    EXPECT_EQ(d_bias, want.d_bias);
    EXPECT_EQ(row, Floats(&want.out[7 * cols], &want.out[8 * cols]));
  }
}

TEST(CudaLayerNorm, NoRowsHaveNoGradient) {
  Floats d_gain(8, NAN), d_bias(8, NAN);
  OnGpu([&](Stream& stream) {
    LayerNormForward(stream, {0, 8}, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
    LayerNormBackward(stream, {0, 8}, nullptr, nullptr, nullptr, nullptr, nullptr,
                      {nullptr, d_gain.data(), d_bias.data(), false});
  });
  EXPECT_EQ(d_gain, Floats(8, 0.0f));
  EXPECT_EQ(d_bias, Floats(8, 0.0f));
}

}  // namespace
}  // namespace holdfast::kernels
