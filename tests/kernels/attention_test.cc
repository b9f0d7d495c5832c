#include "tests/kernels/reference/reference.h"
#include "tests/kernels/testing.h"

namespace holdfast::kernels {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers

struct Outputs {
  Floats out, log_sum_exp, d_qkv;
};

// Forward and backward in one go, with the same-bits check over everything that is written.
Outputs RunAttention(const AttentionShape& s, const Floats& qkv, const Floats& d_out) {
  const int64_t width = s.heads * s.head_dim;
  const int64_t n_out = s.batch * s.context * width, n_log = s.batch * s.heads * s.context,
                n_qkv = 3 * n_out;
  const Floats all = SameBits(n_out + n_log + n_qkv, [&](Stream& stream, float* memory) {
    // One scratch per call; a threaded stream may still use it when this function returns.
    auto scratch = std::make_shared<Buffer>(*CpuDevice().Allocate(AttentionScratchBytes(s)));
    std::memset(scratch->data(), 0xff,
                static_cast<size_t>(scratch->bytes()));  // NaN: what is read must be written
    float *out = memory, *log = out + n_out, *d_qkv = log + n_log;
    AttentionForward(stream, s, qkv.data(), out, log, scratch->data());
    AttentionBackward(stream, s, qkv.data(), out, log, d_out.data(), d_qkv, scratch->data());
    stream.Launch([scratch] {});
  });
  return {Floats(all.begin(), all.begin() + n_out),
          Floats(all.begin() + n_out, all.begin() + n_out + n_log),
          Floats(all.begin() + n_out + n_log, all.end())};
}

void CheckShape(const AttentionShape& s, float deviation = 1.0f) {
  SCOPED_TRACE(::testing::Message() << "context " << s.context << " head_dim " << s.head_dim);
  const int64_t n = s.batch * s.context * s.heads * s.head_dim;
  const Floats qkv = Normal(11, 3 * n, deviation), d_out = Normal(12, n);
  const Outputs got = RunAttention(s, qkv, d_out);
  const reference::Attention attention{s.batch, s.context, s.heads, s.head_dim};
  Doubles out, log_sum_exp;
  attention.Forward(Widen(qkv), out, log_sum_exp);
  EXPECT_LT(NormError(got.out, out), 1e-6);
  EXPECT_LT(NormError(got.log_sum_exp, log_sum_exp), 1e-6);
  const Doubles d_qkv = attention.Backward(Widen(qkv), Widen(d_out));
  EXPECT_LT(NormError(got.d_qkv, d_qkv), 1e-5);
}

TEST(Attention, MatchesTheReference) {
  for (const int64_t context : {1, 2, 63, 64, 65, 130, 200}) {
    for (const int64_t dim : {8, 16, 32, 64}) CheckShape({2, context, 2, dim});
  }
}

TEST(Attention, OddHeadsAndLargeScores) {
  CheckShape({1, 70, 3, 5});
  CheckShape({1, 70, 1, 100});
  CheckShape({1, 3, 1, 1});
  CheckShape({1, 140, 2, 32}, 4.0f);  // sharp softmax: the running maximum moves a lot
}

// A sequence's result does not depend on its neighbours, nor a position's on what comes after it.
TEST(Attention, ASequenceAloneHasTheSameBits) {
  const AttentionShape two{2, 100, 2, 16}, one{1, 100, 2, 16};
  const int64_t n = 100 * 32;
  const Floats qkv = Normal(5, 2 * 3 * n), d_out = Normal(6, 2 * n);
  const Outputs both = RunAttention(two, qkv, d_out);
  const Outputs second = RunAttention(one, Floats(qkv.begin() + 3 * n, qkv.end()),
                                      Floats(d_out.begin() + n, d_out.end()));
  EXPECT_EQ(Floats(both.out.begin() + n, both.out.end()), second.out);
  EXPECT_EQ(Floats(both.d_qkv.begin() + 3 * n, both.d_qkv.end()), second.d_qkv);
}

TEST(Attention, IsCausalToTheBit) {
  const AttentionShape s{1, 100, 1, 16};
  Floats qkv = Normal(5, 3 * 1600);
  const Floats d_out = Normal(6, 1600);
  const Outputs before = RunAttention(s, qkv, d_out);
  for (int64_t i = 3 * 16 * 50; i < 3 * 16 * 100; ++i) qkv[i] += 1.0f;
  const Outputs after = RunAttention(s, qkv, d_out);
  EXPECT_EQ(Floats(before.out.begin(), before.out.begin() + 800),
            Floats(after.out.begin(), after.out.begin() + 800));
  EXPECT_NE(before.out, after.out);
}

TEST(Attention, NanReachesTheGradient) {
  const AttentionShape s{1, 70, 1, 8};
  Floats qkv = Normal(5, 3 * 70 * 8);
  qkv[0] = NAN;
  const Outputs got = RunAttention(s, qkv, Normal(6, 70 * 8));
  EXPECT_TRUE(std::isnan(got.out[0]));
  EXPECT_TRUE(std::isnan(got.d_qkv[0]));
}

TEST(Attention, ScratchDoesNotGrowWithContext) {
  EXPECT_EQ(AttentionScratchBytes({1, 64, 4, 32}), AttentionScratchBytes({100, 65536, 4, 32}));
  EXPECT_LT(AttentionScratchBytes({1, 64, 4, 32}), 120 * 1024);
}

}  // namespace
}  // namespace holdfast::kernels
