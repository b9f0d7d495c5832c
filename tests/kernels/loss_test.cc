#include "tests/kernels/reference/reference.h"
#include "tests/kernels/testing.h"

namespace holdfast::kernels {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers

TEST(CrossEntropy, MatchesTheReference) {
  for (const int64_t vocab : {1, 5, 8, 100, 256, 1500}) {
    const LogitsShape s{37, vocab};
    const int64_t n = s.rows * vocab;
    const Floats logits = Normal(1, n, 3.0f);
    auto targets = Integers(2, s.rows, static_cast<int32_t>(vocab));
    targets[4] = -1;
    const float scale = 0.25f;
    const Floats got = SameBits(n + 2 * s.rows, [&](Stream& stream, float* memory) {
      CopyFloat(stream, n, logits.data(), memory);
      CrossEntropyLoss(stream, s, targets.data(), memory, memory + n + s.rows);
      SoftmaxCrossEntropy(stream, s, targets.data(), scale, memory, memory + n);
    });
    Doubles gradient;
    const Doubles losses =
        reference::CrossEntropy(s.rows, vocab, targets, Widen(logits), &gradient);
    for (double& g : gradient) g *= scale;
    const Floats got_losses(&got[n], &got[n] + s.rows), alone(got.end() - s.rows, got.end());
    EXPECT_LT(NormError(got_losses, losses), 1e-6) << vocab;
    EXPECT_LT(NormError(Floats(&got[0], &got[0] + n), gradient), 1e-6) << vocab;
    EXPECT_EQ(got_losses, alone) << "the forward-only loss must have the same bits";
  }
}

TEST(CrossEntropy, LeadingDimensionAndRowsAlone) {
  const LogitsShape dense{6, 50}, strided{6, 50, 64}, row{1, 50};
  const Floats logits = Normal(1, 300);
  const auto targets = Integers(2, 6, 50);
  Floats a = logits, b(6 * 64, 9.0f), c = logits, losses_a(6), losses_b(6), losses_c(6);
  for (int r = 0; r < 6; ++r) std::copy_n(&logits[r * 50], 50, &b[r * 64]);
  Compute([&](Stream& stream) {
    SoftmaxCrossEntropy(stream, dense, targets.data(), 1.0f, a.data(), losses_a.data());
    SoftmaxCrossEntropy(stream, strided, targets.data(), 1.0f, b.data(), losses_b.data());
    for (int r = 0; r < 6; ++r)
      SoftmaxCrossEntropy(stream, row, &targets[r], 1.0f, &c[r * 50], &losses_c[r]);
  });
  EXPECT_EQ(losses_a, losses_b);
  EXPECT_EQ(losses_a, losses_c);
  EXPECT_EQ(a, c);
  for (int r = 0; r < 6; ++r) {
    for (int i = 0; i < 64; ++i) EXPECT_EQ(b[r * 64 + i], i < 50 ? a[r * 50 + i] : 9.0f);
  }
}

TEST(CrossEntropy, NonFiniteLogitsShow) {
  for (const float bad : {NAN, kInfinity}) {
    for (const int at : {0, 13, 31}) {
      Floats logits = Normal(1, 32), losses(1);
      const int32_t target = 3;
      logits[at] = bad;
      Compute([&](Stream& stream) {
        SoftmaxCrossEntropy(stream, {1, 32}, &target, 1.0f, logits.data(), losses.data());
      });
      EXPECT_FALSE(std::isfinite(losses[0])) << bad << " at " << at;
      EXPECT_FALSE(std::isfinite(logits[3]));
    }
  }
}

TEST(CrossEntropy, HugeLogitsAreSafe) {
  Floats logits = {1000.0f, -1000.0f, 999.0f}, losses(1);
  const int32_t target = 1;
  Compute([&](Stream& stream) {
    SoftmaxCrossEntropy(stream, {1, 3}, &target, 1.0f, logits.data(), losses.data());
  });
  EXPECT_NEAR(losses[0], 2000.3133f, 1e-3);
  EXPECT_NEAR(logits[0], 0.7310586f, 1e-6);
  EXPECT_EQ(logits[1], -1.0f);
}

TEST(ArgMaxHits, FirstLargestWins) {
  const Floats logits = {1, 3, 3, 0, 1, 3, 3, 0, NAN, 1, 2, 3, 5, 4, 3, 2};
  const std::vector<int32_t> targets = {1, 2, 0, -1};
  Floats hits(4);
  Compute([&](Stream& stream) {
    ArgMaxHits(stream, {4, 4}, targets.data(), logits.data(), hits.data());
  });
  EXPECT_EQ(hits, (Floats{1, 0, 0, 0}));
}

}  // namespace
}  // namespace holdfast::kernels
