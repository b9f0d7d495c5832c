#include <algorithm>
#include <random>

#include "tests/kernels/testing.h"

namespace holdfast::kernels {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers

constexpr FixedScale kScale{40, 8};

struct Accumulated {
  std::vector<int64_t> words;
  FixedFlags flags;
};

Accumulated Sum(const std::vector<Floats>& parts, const FixedScale& scale) {
  Accumulated sum;
  sum.words.resize(parts[0].size(), -1);  // StoreFixed must overwrite this
  Compute([&](Stream& stream) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto n = static_cast<int64_t>(parts[i].size());
      (i == 0 ? StoreFixed : AccumulateFixed)(stream, scale, n, parts[i].data(), sum.words.data(),
                                              &sum.flags);
    }
  });
  return sum;
}

TEST(Fixed, TheOrderOfMicroBatchesMovesNoBit) {
  const int64_t n = 5000;
  std::vector<Floats> parts;
  for (int j = 0; j < 8; ++j) parts.push_back(Normal(j, n, 0.01f * static_cast<float>(j + 1)));
  const Accumulated want = Sum(parts, kScale);
  EXPECT_EQ(want.flags.nonfinite + want.flags.out_of_range, 0);
  std::mt19937 random(1);
  for (int i = 0; i < 10; ++i) {
    std::shuffle(parts.begin(), parts.end(), random);
    const Accumulated got = Sum(parts, kScale);
    EXPECT_EQ(got.words, want.words);
    EXPECT_EQ(got.flags.max_abs, want.flags.max_abs);
  }
  // Two workers, each with its own accumulator, added up.
  Accumulated a = Sum({parts.begin(), parts.begin() + 3}, kScale);
  const Accumulated b = Sum({parts.begin() + 3, parts.end()}, kScale);
  uint64_t sum_a = 0, sum_b = 0, sum_whole = 0;
  Compute([&](Stream& stream) {
    SumWords(stream, n, a.words.data(), &sum_a);
    SumWords(stream, n, b.words.data(), &sum_b);
    AddWords(stream, n, b.words.data(), a.words.data());
    SumWords(stream, n, want.words.data(), &sum_whole);
  });
  EXPECT_EQ(a.words, want.words);
  EXPECT_EQ(sum_a + sum_b, sum_whole);
}

TEST(Fixed, ComesBackWithinOneRounding) {
  const int64_t n = 3000;
  const Floats x = Normal(3, n), y = Normal(4, n);
  const Accumulated sum = Sum({x, y}, kScale);
  const Floats back = SameBits(n, [&](Stream& stream, float* out) {
    FixedToFloat(stream, n, 0x1p-40, sum.words.data(), out);
  });
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_NEAR(back[i], static_cast<double>(x[i]) + y[i], 1e-7 * std::fabs(back[i]) + 0x1p-40);
  }
}

// Each of four values passes the range check and their sum lies beyond 2^51: the way back must
// still be exact.
TEST(Fixed, SumsBeyondTheMagicRangeComeBackExactly) {
  const FixedScale scale{40, 4};
  const Accumulated sum = Sum({{1500.0f}, {1500.0f}, {1500.0f}, {1500.0f}}, scale);
  EXPECT_EQ(sum.flags.out_of_range, 0);
  float back = 0;
  Compute([&](Stream& stream) { FixedToFloat(stream, 1, 0x1p-40, sum.words.data(), &back); });
  EXPECT_EQ(back, 6000.0f);
}

TEST(Fixed, OutOfRangeIsNotNonFinite) {
  Floats x = Normal(1, 5000, 0.1f);
  x[17] = 3000.0f;     // 3000 * 2^40 > 2^51
  x[4000] = -2048.0f;  // on the bound: not below it
  Accumulated got = Sum({x}, kScale);
  EXPECT_EQ(got.flags.out_of_range, 2);
  EXPECT_EQ(got.flags.nonfinite, 0);
  EXPECT_EQ(got.flags.max_abs, 3000.0f);
  EXPECT_EQ(got.words[17], 0);
  EXPECT_EQ(got.words[4000], 0);
  EXPECT_EQ(got.words[18], std::llrint(static_cast<double>(x[18]) * 0x1p40));
  x[17] = std::nextafter(2048.0f, 0.0f);
  x[4000] = NAN;
  x[4001] = kInfinity;
  x[4002] = -kInfinity;
  got = Sum({x}, kScale);
  EXPECT_EQ(got.flags.out_of_range, 0);
  EXPECT_EQ(got.flags.nonfinite, 3);
  EXPECT_EQ(got.flags.max_abs, x[17]);
  got = Sum({x}, {32, 8});  // k lowered by 8: 3000 fits
  EXPECT_EQ(got.flags.out_of_range, 0);
}

TEST(Fixed, TheBoundFallsWithTheNumberOfMicroBatches) {
  const float below = std::nextafter(1024.0f, 0.0f);
  EXPECT_EQ(Sum({{1024.0f}}, {40, 2048}).flags.out_of_range,
            0);  // 2^62 / 2048 = 2^51: the magic bound holds
  EXPECT_EQ(Sum({{1024.0f}}, {40, 4096}).flags.out_of_range, 1);  // 2^62 / 4096 = 2^50
  EXPECT_EQ(Sum({{below}}, {40, 4096}).flags.out_of_range, 0);
  // 4,096 values just below the bound: the sum does not wrap.
  std::vector<int64_t> acc(1, 0);
  FixedFlags flags;
  Compute([&](Stream& stream) {
    for (int j = 0; j < 4096; ++j)
      AccumulateFixed(stream, {40, 4096}, 1, &below, acc.data(), &flags);
  });
  EXPECT_EQ(flags.out_of_range, 0);
  EXPECT_GT(acc[0], int64_t{1} << 61);
  float back = 0;
  Compute([&](Stream& stream) { FixedToFloat(stream, 1, 0x1p-40, acc.data(), &back); });
  EXPECT_EQ(back, below * 4096.0f);
}

TEST(Fixed, SplitAndShiftedRangesAgree) {
  const int64_t n = 10'000;
  const Floats x = Normal(9, n);
  const Accumulated whole = Sum({x}, kScale);
  std::vector<int64_t> parts(n);
  FixedFlags flags;
  Compute([&](Stream& stream) {
    for (int64_t at = 0; at < n; at += 999) {
      StoreFixed(stream, kScale, std::min<int64_t>(999, n - at), &x[at], &parts[at], &flags);
    }
  });
  EXPECT_EQ(parts, whole.words);
  EXPECT_EQ(flags.max_abs, whole.flags.max_abs);
}

TEST(FixedScalars, SumTermsAndBack) {
  const Floats terms = Normal(1, 1000);
  double want = 0;
  for (const float t : terms) want += t;
  EXPECT_EQ(SumTerms(1000, terms.data()), want);
  int64_t fixed = 0;
  ASSERT_TRUE(ScalarToFixed(want, {kTermsExponent, 4096}, &fixed));
  EXPECT_NEAR(FixedToScalar(fixed, kTermsExponent), want, 0x1p-25);
  EXPECT_FALSE(ScalarToFixed(NAN, {kTermsExponent, 1}, &fixed));
  EXPECT_EQ(fixed, 0);
  EXPECT_FALSE(ScalarToFixed(INFINITY, {kTermsExponent, 1}, &fixed));
  EXPECT_FALSE(ScalarToFixed(0x1p26, {kTermsExponent, 4096}, &fixed));
  EXPECT_TRUE(ScalarToFixed(0x1p26 - 1, {kTermsExponent, 4096}, &fixed));
  EXPECT_EQ(FixedToScalar(fixed, kTermsExponent), 0x1p26 - 1);
}

}  // namespace
}  // namespace holdfast::kernels
