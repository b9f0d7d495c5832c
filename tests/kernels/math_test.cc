#include <cmath>
#include <limits>

#include <immintrin.h>
#include "gtest/gtest.h"

#include "kernels/math/activation.h"
#include "kernels/math/fixed.h"
#include "kernels/math/half.h"
#include "kernels/math/optimizer.h"
#include "kernels/math/philox.h"
#include "runtime/base/digest.h"

namespace holdfast::kernels {
namespace {

// Error in units of the last place of the exact value.
double Ulps(float got, long double exact) {
  const float rounded = static_cast<float>(exact);
  const float next = std::nextafter(std::fabs(rounded), std::numeric_limits<float>::infinity());
  return static_cast<double>(std::fabs(got - exact) /
                             (static_cast<long double>(next) - std::fabs(rounded)));
}

TEST(Scalar, ExpIsGoodToTheLastPlace) {
  double worst = 0;
  for (float x = -86.5f; x < 88.72f; x += 0.00073f)
    worst = std::max(worst, Ulps(Exp(x), std::exp((long double)x)));
  EXPECT_LT(worst, 1.2);
}

TEST(Scalar, ExpAtTheEnds) {
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-88.0f), 0.0f);
  EXPECT_EQ(Exp(-kInfinity), 0.0f);
  EXPECT_EQ(Exp(89.0f), kInfinity);
  EXPECT_EQ(Exp(1e30f), kInfinity);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(Exp(NAN)));
}

TEST(Scalar, LogIsGoodToTheLastPlace) {
  double worst = 0;
  for (float x = 1e-30f; x < 1e30f; x *= 1.00031f)
    worst = std::max(worst, Ulps(Log(x), std::log((long double)x)));
  for (float x = 0.5f; x < 2.0f; x += 1.7e-6f)
    worst = std::max(worst, Ulps(Log(x), std::log((long double)x)));
  EXPECT_LT(worst, 1.5);
  EXPECT_EQ(Log(1.0f), 0.0f);
  EXPECT_EQ(Log(0.0f), -kInfinity);
  EXPECT_EQ(Log(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(Log(NAN)));
  EXPECT_TRUE(std::isnan(Log(-1.0f)));
}

TEST(Scalar, TanhIsGoodToTwoPlaces) {
  double worst = 0;
  for (float x = -12.0f; x < 12.0f; x += 0.000123f) {
    worst = std::max(worst, Ulps(Tanh(x), std::tanh((long double)x)));
  }
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(Tanh(kInfinity), 1.0f);
  EXPECT_EQ(Tanh(-30.0f), -1.0f);
  EXPECT_TRUE(std::isnan(Tanh(NAN)));
}

TEST(Scalar, SinCosOfATurn) {
  double worst = 0;
  for (int i = 0; i < 1 << 24; i += 97) {
    const float u = static_cast<float>(i) * 0x1p-24f;
    float s, c;
    SinCosTurn(u, &s, &c);
    const long double angle = 2 * M_PIl * u;
    worst = std::max(worst, static_cast<double>(std::fabs(s - std::sin(angle))));
    worst = std::max(worst, static_cast<double>(std::fabs(c - std::cos(angle))));
  }
  EXPECT_LT(worst, 1e-7);
}

TEST(Activation, GeluMatchesItsDefinition) {
  for (float u = -12; u < 12; u += 0.00191f) {
    const double z = std::sqrt(2 / M_PI) * (u + 0.044715 * u * u * u), t = std::tanh(z);
    const double value = u / (1 + std::exp(-2 * z));
    const double slope =
        0.5 * (1 + t) + 0.5 * u * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * u * u);
    // Where e^-2z is large, the rounding of 2z alone gives a relative error of |2z| 2^-24.
    EXPECT_NEAR(Gelu::Of(u).value, value,
                (4e-7 + std::max(0.0, -2 * z) * 1.5e-7) * std::fabs(value) + 1e-33)
        << u;
    EXPECT_NEAR(Gelu::Of(u).derivative, slope, 5e-7) << u;
  }
}

TEST(Activation, ExtremesStaySane) {
  EXPECT_EQ(Gelu::Of(1e10f).value, 1e10f);
  EXPECT_EQ(Gelu::Of(100.0f).derivative, 1.0f);
  EXPECT_NEAR(Gelu::Of(-100.0f).value, 0.0f, 1e-30);
  EXPECT_NEAR(Gelu::Of(-100.0f).derivative, 0.0f, 1e-25);
  EXPECT_TRUE(std::isnan(Gelu::Of(NAN).value));
  EXPECT_TRUE(std::isnan(Gelu::Of(NAN).derivative));
  EXPECT_TRUE(std::isnan(Relu(NAN)));
}

TEST(Activation, Bf16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(Bf16Of(1.0f), 0x3f80);
  EXPECT_EQ(Bf16Of(FloatOf(0x3f808000u)), 0x3f80);  // a tie, to even
  EXPECT_EQ(Bf16Of(FloatOf(0x3f818000u)), 0x3f82);
  EXPECT_EQ(Bf16Of(FloatOf(0x3f808001u)), 0x3f81);
  EXPECT_EQ(Bf16Of(FloatOf(0x7f7fffffu)), 0x7f80);  // rounds to infinity
  EXPECT_TRUE(std::isnan(FloatOfBf16(Bf16Of(FloatOf(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(FloatOfBf16(Bf16Of(FloatOf(0xffffffffu)))));
}

TEST(Half, F16RoundsLikeTheHardware) {
  // Every half there is comes back, and rounding agrees with _cvtss_sh (F16C) on floats of all
  // sizes.
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float x = FloatOfF16(static_cast<uint16_t>(h));
    if (std::isnan(x)) continue;
    ASSERT_EQ(F16Of(x), h);
    ASSERT_EQ(BitsOf(x), BitsOf(_cvtsh_ss(static_cast<uint16_t>(h))));
  }
  for (uint64_t i = 0; i < 2'000'000; ++i) {
    const float x = FloatOf(PhiloxBlock(7, i).lane[0]);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(FloatOfF16(F16Of(x))));
    } else {
      ASSERT_EQ(F16Of(x), _cvtss_sh(x, 0)) << x;
    }
  }
  EXPECT_EQ(F16Of(65519.0f), 0x7bff);
  EXPECT_EQ(F16Of(65520.0f), 0x7c00);
}

TEST(Fixed, BackEqualsTheHardwareConversion) {
  for (const int64_t v :
       {int64_t{0}, int64_t{1}, int64_t{-1}, INT64_MAX, INT64_MIN, int64_t{1} << 53}) {
    EXPECT_EQ(DoubleOfFixed(v), static_cast<double>(v));
  }
  for (uint64_t i = 0; i < 200'000; ++i) {
    const auto v = static_cast<int64_t>(Mix64(i)) >> (i % 64);
    ASSERT_EQ(DoubleOfFixed(v), static_cast<double>(v)) << v;
  }
}

TEST(Fixed, ForwardRoundsToNearestEven) {
  for (uint64_t i = 0; i < 200'000; ++i) {
    const double x = std::ldexp(static_cast<double>(static_cast<int64_t>(Mix64(i))),
                                -13 - static_cast<int>(i % 60));
    ASSERT_EQ(FixedOf(x), std::llrint(x)) << x;
  }
  EXPECT_EQ(FixedOf(0.5), 0);
  EXPECT_EQ(FixedOf(1.5), 2);
  EXPECT_EQ(FixedOf(-2.5), -2);
}

TEST(Philox, KnownAnswers) {  // from the authors' Random123 distribution
  const auto expect = [](Philox4 counter, uint32_t k0, uint32_t k1, Philox4 want) {
    const Philox4 got = Philox(counter, k0, k1);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(got.lane[i], want.lane[i]) << i;
  };
  expect({{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(Philox, NormalsHaveTheRightMoments) {
  const int n = 200'000;
  double m1 = 0, m2 = 0, m4 = 0, cross = 0;
  for (int i = 0; i < n; ++i) {
    const Philox4 w = PhiloxBlock(7, i);
    float a, b;
    NormalPair(w.lane[0], w.lane[1], &a, &b);
    m1 += a + b;
    m2 += a * a + b * b;
    m4 += std::pow(a, 4) + std::pow(b, 4);
    cross += a * b;
  }
  EXPECT_NEAR(m1 / (2 * n), 0, 0.01);
  EXPECT_NEAR(m2 / (2 * n), 1, 0.02);
  EXPECT_NEAR(m4 / (2 * n), 3, 0.1);
  EXPECT_NEAR(cross / n, 0, 0.015);
}

TEST(Optimizer, IntegerPower) {
  EXPECT_EQ(IntegerPower(0.5, 3), 0.125);
  EXPECT_EQ(IntegerPower(0.9, 0), 1.0);
  EXPECT_NEAR(IntegerPower(0.95, 1000), std::pow(0.95, 1000), 1e-14 * std::pow(0.95, 1000) * 100);
}

}  // namespace
}  // namespace holdfast::kernels
