// Layer norm for GPUs, against the reference in double and the CPU's operation.
#include "tests/kernels/cuda_run.h"
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

// The inputs where a backend reads them.
struct LayerNormData {
  const float *x, *gain, *bias, *d_out;
};

// Both passes; `add`: to what dx holds.
void Both(Stream& stream, const LayerNormShape& s, const LayerNormData& in, bool add,
          float* memory) {
  const int64_t n = s.rows * s.cols;
  float *out = memory, *dx = out + n, *d_gain = dx + n, *d_bias = d_gain + s.cols;
  float *mean = d_bias + s.cols, *rstd = mean + s.rows;
  LayerNormForward(stream, s, in.x, in.gain, in.bias, out, mean, rstd);
  LayerNormBackward(stream, s, in.x, in.gain, mean, rstd, in.d_out, {dx, d_gain, d_bias, add});
}

LayerNormOutputs NormOnGpu(const LayerNormShape& s, const LayerNormInputs& in, bool add) {
  return Split(s, SameBitsOnGpu(OutputSize(s), [&](CudaRun& run, float* memory) {
                 if (add) run.Write(in.before, memory + s.rows * s.cols);
                 Both(run.stream(), s,
                      {run.On(in.x), run.On(in.gain), run.On(in.bias), run.On(in.d_out)}, add,
                      memory);
               }));
}

LayerNormOutputs NormOnCpu(const LayerNormShape& s, const LayerNormInputs& in) {
  Floats memory(OutputSize(s));
  Compute([&](Stream& stream) {
    Both(stream, s, {in.x.data(), in.gain.data(), in.bias.data(), in.d_out.data()}, false,
         memory.data());
  });
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
    CudaRun run;
    float *in_place = run.On(in.d_out), *d_gain = run.Fresh(cols), *d_bias = run.Fresh(cols);
    LayerNormBackward(run.stream(), s, run.On(in.x), run.On(in.gain), run.On(want.mean),
                      run.On(want.rstd), in_place, {in_place, d_gain, d_bias, false});
    EXPECT_EQ(run.Read(in_place, s.rows * cols), want.dx);
    EXPECT_EQ(run.Read(d_gain, cols), want.d_gain);
    EXPECT_EQ(run.Read(d_bias, cols), want.d_bias);
    float *row = run.Fresh(cols), *mean = run.Fresh(1), *rstd = run.Fresh(1);
    LayerNormForward(run.stream(), {1, cols}, run.On(in.x) + 7 * cols, run.On(in.gain),
                     run.On(in.bias), row, mean, rstd);
    EXPECT_EQ(run.Read(row, cols), Floats(&want.out[7 * cols], &want.out[8 * cols]));
  }
}

TEST(CudaLayerNorm, NoRowsHaveNoGradient) {
  CudaRun run;
  float *d_gain = run.Fresh(8), *d_bias = run.Fresh(8);
  LayerNormForward(run.stream(), {0, 8}, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  LayerNormBackward(run.stream(), {0, 8}, nullptr, nullptr, nullptr, nullptr, nullptr,
                    {nullptr, d_gain, d_bias, false});
  EXPECT_EQ(run.Read(d_gain, 8), Floats(8, 0.0f));
  EXPECT_EQ(run.Read(d_bias, 8), Floats(8, 0.0f));
}

}  // namespace
}  // namespace holdfast::kernels
