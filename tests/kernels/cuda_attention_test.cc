// The attention kernels for GPUs: against the reference in double and against the
// CPU's operation; the bf16 path also against a reference that rounds where it rounds.
#include "kernels/math/half.h"
#include "runtime/base/text.h"
#include "tests/kernels/cuda_run.h"
#include "tests/kernels/reference/reference.h"

namespace holdfast::kernels {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers

struct Outputs {
  Floats out, log_sum_exp, d_qkv;
};

Outputs Split(const AttentionShape& s, const Floats& all) {
  const int64_t n_out = s.batch * s.context * s.heads * s.head_dim;
  const auto log = all.begin() + n_out, d_qkv = log + s.batch * s.heads * s.context;
  return {Floats(all.begin(), log), Floats(log, d_qkv), Floats(d_qkv, all.end())};
}

int64_t OutputSize(const AttentionShape& s) {
  return s.batch * s.context * s.heads * (4 * s.head_dim + 1);
}

// qkv and d_out where the stream reads them; on a GPU `scratch` is not used.
void Both(Stream& stream, const AttentionShape& s, const float* qkv, const float* d_out,
          float* memory, void* scratch) {
  float *out = memory, *log = out + s.batch * s.context * s.heads * s.head_dim;
  float* const d_qkv = log + s.batch * s.heads * s.context;
  AttentionForward(stream, s, qkv, out, log, scratch);
  AttentionBackward(stream, s, qkv, out, log, d_out, d_qkv, scratch);
}

Outputs AttentionOnGpu(const AttentionShape& s, const Floats& qkv, const Floats& d_out) {
  CudaRun run;
  float* const memory = run.Fresh(OutputSize(s));
  Both(run.stream(), s, run.On(qkv), run.On(d_out), memory, nullptr);
  return Split(s, run.Read(memory, OutputSize(s)));
}

Outputs AttentionOnCpu(const AttentionShape& s, const Floats& qkv, const Floats& d_out) {
  Floats memory(OutputSize(s));
  Compute([&](Stream& stream) {
    const Buffer scratch = *CpuDevice().Allocate(AttentionScratchBytes(s));
    Both(stream, s, qkv.data(), d_out.data(), memory.data(), scratch.data());
  });
  return Split(s, memory);
}

struct Reference {
  Doubles out, log_sum_exp, d_qkv;
};
Reference ReferenceOf(const AttentionShape& s, const Floats& qkv, const Floats& d_out) {
  const reference::Attention attention{s.batch, s.context, s.heads, s.head_dim};
  Reference r;
  attention.Forward(Widen(qkv), r.out, r.log_sum_exp);
  r.d_qkv = attention.Backward(Widen(qkv), Widen(d_out));
  return r;
}

// A NaN anywhere makes it NaN, which is less than nothing (std::max would let it go by).
double TotalError(const Outputs& got, const Reference& want) {
  return NormError(got.out, want.out) + NormError(got.log_sum_exp, want.log_sum_exp) +
         NormError(got.d_qkv, want.d_qkv);
}

std::string Name(const AttentionShape& s) {
  return Cat("batch ", s.batch, " context ", s.context, " heads ", s.heads, " head_dim ",
             s.head_dim);
}

struct Inputs {
  explicit Inputs(const AttentionShape& s, float deviation = 1.0f)
      : qkv(Normal(11, 3 * s.batch * s.context * s.heads * s.head_dim, deviation)),
        d_out(Normal(12, s.batch * s.context * s.heads * s.head_dim)) {}
  Floats qkv, d_out;
};

// To bf16.
Floats Rounded(Floats x) {
  for (float& v : x) v = FloatOfBf16(Bf16Of(v));
  return x;
}

void CheckExact(const AttentionShape& s, float deviation = 1.0f) {
  SCOPED_TRACE(Name(s));
  const Inputs in(s, deviation);
  const Outputs got = AttentionOnGpu(s, in.qkv, in.d_out);
  EXPECT_LT(TotalError(got, ReferenceOf(s, in.qkv, in.d_out)), 1e-5);
  const Outputs cpu = AttentionOnCpu(s, in.qkv, in.d_out);
  EXPECT_LT(TotalError(got, {Widen(cpu.out), Widen(cpu.log_sum_exp), Widen(cpu.d_qkv)}), 1e-5);
}

TEST(CudaAttention, MatchesTheReference) {
  for (const int64_t dim : {8, 16, 32, 64}) {
    for (const int64_t context : {1, 2, 63, 64, 65, 130}) CheckExact({2, context, 2, dim});
  }
  for (const int64_t dim : {96, 128, 200, 256}) {
    for (const int64_t context : {1, 33, 70}) CheckExact({1, context, 2, dim});
  }
}

TEST(CudaAttention, OddShapesAndLargeScores) {
  CheckExact({1, 70, 3, 5});
  CheckExact({3, 70, 1, 31});
  CheckExact({1, 3, 1, 1});
  CheckExact({1, 140, 2, 32}, 4.0f);  // sharp softmax: the running maximum moves a lot
  Outputs none = AttentionOnGpu({0, 5, 1, 4}, {}, {});
  EXPECT_TRUE(none.out.empty());
}

// Everything that is written, in every order and at every alignment; the bf16 path too.
TEST(CudaAttention, SameBits) {
  for (const bool half : {false, true}) {
    for (const int64_t dim : {20, 64}) {
      AttentionShape s{2, 90, 2, dim};
      s.half_products = half;
      const Inputs in(s);
      const Floats all = SameBitsOnGpu(OutputSize(s), [&](CudaRun& run, float* memory) {
        Both(run.stream(), s, run.On(in.qkv), run.On(in.d_out), memory, nullptr);
      });
      for (const float x : all) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

// e^-log_sum_exp of the last queries is infinite here: those that do not exist must not take it
// over.
TEST(CudaAttention, VeryNegativeScores) {
  AttentionShape s{1, 70, 1, 32};
  Inputs in(s);
  for (int64_t t = 0; t < s.context; ++t) {
    for (int64_t i = 0; i < 32; ++i) {
      in.qkv[t * 96 + i] = t == 0 ? 0.0f : -5.0f;
      in.qkv[t * 96 + 32 + i] += 4.0f;
    }
  }
  for (const bool half : {false, true}) {
    s.half_products = half;
    const Outputs got = AttentionOnGpu(s, in.qkv, in.d_out);
    EXPECT_LT(got.log_sum_exp.back(), -95.0f);
    const Reference want =
        ReferenceOf(s, half ? Rounded(in.qkv) : in.qkv, half ? Rounded(in.d_out) : in.d_out);
    EXPECT_LT(TotalError(got, want), half ? 1e-2 : 1e-4);  // scores of 100 have fewer digits
  }
}

TEST(CudaAttention, ASequenceAloneHasTheSameBits) {
  for (const bool half : {false, true}) {
    AttentionShape two{2, 100, 2, 16}, one{1, 100, 2, 16};
    two.half_products = one.half_products = half;
    const Inputs in(two);
    const int64_t n = 100 * 32;
    const Outputs both = AttentionOnGpu(two, in.qkv, in.d_out);
    const Outputs second = AttentionOnGpu(one, Floats(in.qkv.begin() + 3 * n, in.qkv.end()),
                                          Floats(in.d_out.begin() + n, in.d_out.end()));
    EXPECT_EQ(Floats(both.out.begin() + n, both.out.end()), second.out);
    EXPECT_EQ(Floats(both.d_qkv.begin() + 3 * n, both.d_qkv.end()), second.d_qkv);
  }
}

TEST(CudaAttention, IsCausalToTheBit) {
  for (const bool half : {false, true}) {
    AttentionShape s{1, 100, 1, 16};
    s.half_products = half;
    Inputs in(s);
    const Outputs before = AttentionOnGpu(s, in.qkv, in.d_out);
    for (int64_t i = 3 * 16 * 50; i < 3 * 16 * 100; ++i) in.qkv[i] += 1.0f;
    const Outputs after = AttentionOnGpu(s, in.qkv, in.d_out);
    EXPECT_EQ(Floats(before.out.begin(), before.out.begin() + 800),
              Floats(after.out.begin(), after.out.begin() + 800));
    EXPECT_NE(before.out, after.out);
  }
}

TEST(CudaAttention, NanReachesTheGradient) {
  for (const bool half : {false, true}) {
    AttentionShape s{1, 70, 1, 8};
    s.half_products = half;
    Inputs in(s);
    in.qkv[0] = NAN;
    const Outputs got = AttentionOnGpu(s, in.qkv, in.d_out);
    EXPECT_TRUE(std::isnan(got.out[0]));
    EXPECT_TRUE(std::isnan(got.d_qkv[0]));
  }
}

// ---- bf16

void CheckHalf(const AttentionShape& shape) {
  SCOPED_TRACE(Name(shape));
  AttentionShape s = shape;
  s.half_products = true;
  const Inputs in(s);
  const Outputs got = AttentionOnGpu(s, in.qkv, in.d_out);
  const Reference exact = ReferenceOf(s, in.qkv, in.d_out);
  EXPECT_LT(NormError(got.out, exact.out), 1e-2);
  EXPECT_LT(NormError(got.d_qkv, exact.d_qkv), 1e-2);
  for (size_t i = 0; i < exact.log_sum_exp.size(); ++i)  // may be near zero: absolute
    ASSERT_NEAR(got.log_sum_exp[i], exact.log_sum_exp[i], 0.03);
  // What is left are weights and score gradients rounded to 8 bits.
  const Reference rounded = ReferenceOf(s, Rounded(in.qkv), Rounded(in.d_out));
  EXPECT_LT(NormError(got.out, rounded.out), 2e-3);
  EXPECT_LT(NormError(got.log_sum_exp, rounded.log_sum_exp), 1e-6);
  EXPECT_LT(NormError(got.d_qkv, rounded.d_qkv), 2e-3);
}

TEST(CudaAttention, HalfProductsMatchTheReference) {
  for (const int64_t dim : {8, 20, 32, 64}) {
    for (const int64_t context : {1, 2, 31, 64, 65, 150}) CheckHalf({1, context, 2, dim});
  }
  for (const int64_t dim : {72, 128}) {
    for (const int64_t context : {1, 33, 140}) CheckHalf({1, context, 1, dim});
  }
}

// With at most 32 positions there is one block of keys, so the weights that are rounded are those
// relative to the row's largest score: a reference can round the same values.
TEST(CudaAttention, HalfForwardRoundsWhereItSays) {
  AttentionShape s{1, 32, 1, 64};
  s.half_products = true;
  const Inputs in(s);
  const Floats qkv = Rounded(in.qkv);
  Doubles want(32 * 64);
  for (int64_t t = 0; t < 32; ++t) {
    Floats scores(t + 1);
    for (int64_t j = 0; j <= t; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < 64; ++i)
        sum += static_cast<double>(qkv[t * 192 + i]) * qkv[j * 192 + 64 + i];
      scores[j] = static_cast<float>(sum / 8);
    }
    const float largest = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (int64_t j = 0; j <= t; ++j) {
      const auto weight = static_cast<float>(std::exp(static_cast<double>(scores[j]) - largest));
      total += weight;
      for (int64_t i = 0; i < 64; ++i)
        want[t * 64 + i] +=
            static_cast<double>(FloatOfBf16(Bf16Of(weight))) * qkv[j * 192 + 128 + i];
    }
    for (int64_t i = 0; i < 64; ++i) want[t * 64 + i] /= total;
  }
  EXPECT_LT(NormError(AttentionOnGpu(s, in.qkv, in.d_out).out, want), 5e-5);
}

// Beyond 128 dimensions all products are exact.
TEST(CudaAttention, HalfProductsOfWideHeadsAreExact) {
  AttentionShape s{1, 20, 1, 160};
  const Inputs in(s);
  const Outputs exact = AttentionOnGpu(s, in.qkv, in.d_out);
  s.half_products = true;
  EXPECT_EQ(AttentionOnGpu(s, in.qkv, in.d_out).d_qkv, exact.d_qkv);
}

}  // namespace
}  // namespace holdfast::kernels
