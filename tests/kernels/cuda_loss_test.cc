// The loss for GPUs, run on the CPU, against the reference in double and the CPU's operation.
#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/reference/reference.h"

namespace holdfast::kernels {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers

void Check(const LogitsShape& s) {
  SCOPED_TRACE(::testing::Message() << s.rows << " x " << s.vocab);
  const int64_t n = s.rows * s.vocab;
  const Floats logits = Normal(1, n, 3.0f);
  auto targets = Integers(2, s.rows, static_cast<int32_t>(s.vocab));
  if (s.rows > 4) targets[4] = -1;
  constexpr float kScale = 0.25f;
  const Floats all = SameBitsOnGpu(n + 2 * s.rows, [&](Stream& stream, float* memory) {
    std::copy(logits.begin(), logits.end(), memory);
    float* const losses = memory + n;
    CrossEntropyLoss(stream, s, targets.data(), memory, losses + s.rows);
    SoftmaxCrossEntropy(stream, s, targets.data(), kScale, memory, losses);
  });
  const Floats gradient(all.begin(), all.begin() + n);
  const Floats losses(all.begin() + n, all.begin() + n + s.rows),
      alone(all.end() - s.rows, all.end());
  EXPECT_EQ(losses, alone) << "the forward-only loss must have the same bits";

  Doubles want;
  const Doubles want_losses =
      reference::CrossEntropy(s.rows, s.vocab, targets, Widen(logits), &want);
  for (double& g : want) g *= kScale;
  EXPECT_LT(NormError(losses, want_losses), 1e-6);
  EXPECT_LT(NormError(gradient, want), 1e-6);

  Floats cpu = logits, cpu_losses(s.rows);
  Compute([&](Stream& stream) {
    SoftmaxCrossEntropy(stream, s, targets.data(), kScale, cpu.data(), cpu_losses.data());
  });
  EXPECT_LT(NormError(losses, Widen(cpu_losses)), 1e-6);
  EXPECT_LT(NormError(gradient, Widen(cpu)), 1e-6);
}

// The last one: rows that are longer than what shared memory keeps, and of odd length.
TEST(CudaCrossEntropy, MatchesTheReference) {
  for (const int64_t vocab : {1, 5, 8, 100, 129, 1500}) Check({37, vocab});
  Check({2, 50257});
}

TEST(CudaCrossEntropy, LeadingDimensionAndRowsAlone) {
  const LogitsShape dense{6, 50}, strided{6, 50, 64}, row{1, 50};
  const Floats logits = Normal(1, 300);
  const auto targets = Integers(2, 6, 50);
  Floats a = logits, b(6 * 64, 9.0f), c = logits, losses_a(6), losses_b(6), losses_c(6);
  for (int r = 0; r < 6; ++r) std::copy_n(&logits[r * 50], 50, &b[r * 64]);
  OnGpu([&](Stream& stream) {
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

TEST(CudaCrossEntropy, NonFiniteLogitsShow) {
  for (const float bad : {NAN, kInfinity}) {
    for (const int at : {0, 13, 31, 299}) {
      Floats logits = Normal(1, 300), losses(1);
      const int32_t target = 3;
      logits[at] = bad;
      OnGpu([&](Stream& stream) {
        SoftmaxCrossEntropy(stream, {1, 300}, &target, 1.0f, logits.data(), losses.data());
      });
      EXPECT_FALSE(std::isfinite(losses[0])) << bad << " at " << at;
      EXPECT_FALSE(std::isfinite(logits[3]));
    }
  }
}

TEST(CudaCrossEntropy, HugeAndAbsentLogits) {
  Floats logits = {1000.0f, -1000.0f, 999.0f, -kInfinity, -kInfinity}, losses(1);
  const int32_t target = 1;
  OnGpu([&](Stream& stream) {
    SoftmaxCrossEntropy(stream, {1, 5}, &target, 1.0f, logits.data(), losses.data());
  });
  EXPECT_NEAR(losses[0], 2000.3133f, 1e-3);
  EXPECT_NEAR(logits[0], 0.7310586f, 1e-6);
  EXPECT_EQ(logits[1], -1.0f);
  EXPECT_EQ(logits[3], 0.0f);
  Floats none(300, -kInfinity);  // of whole threads, too
  none[0] = 2.0f;
  const int32_t first = 0;
  OnGpu([&](Stream& stream) {
    SoftmaxCrossEntropy(stream, {1, 300}, &first, 1.0f, none.data(), losses.data());
  });
  EXPECT_EQ(losses[0], 0.0f);
  EXPECT_EQ(none, Floats(300, 0.0f));
}

TEST(CudaArgMaxHits, FirstLargestWins) {
  const Floats logits = {1, 3, 3, 0, 1, 3, 3, 0, NAN, 1, 2, 3, 5, 4, 3, 2};
  const std::vector<int32_t> targets = {1, 2, 0, -1};
  Floats hits(4);
  OnGpu([&](Stream& stream) {
    ArgMaxHits(stream, {4, 4}, targets.data(), logits.data(), hits.data());
  });
  EXPECT_EQ(hits, (Floats{1, 0, 0, 0}));
}

TEST(CudaArgMaxHits, AgreesWithTheCpu) {
  const LogitsShape s{60, 1001, 1004};
  Floats logits = Normal(3, s.rows * s.leading);
  std::vector<int32_t> targets(s.rows);
  for (int64_t r = 0; r < s.rows; ++r) {  // half of them hits, wherever they lie
    const auto begin = logits.begin() + r * s.leading;
    const auto largest = std::max_element(begin, begin + s.vocab) - begin;
    targets[r] = static_cast<int32_t>(r % 2 == 0 ? largest : (largest + 1) % s.vocab);
    if (r % 5 == 0 && largest > 0) begin[largest - 1] = begin[largest];  // an equal one before
    if (r == 31) begin[777] = NAN;
  }
  Floats want(s.rows), got(s.rows, NAN);
  Compute(
      [&](Stream& stream) { ArgMaxHits(stream, s, targets.data(), logits.data(), want.data()); });
  OnGpu([&](Stream& stream) { ArgMaxHits(stream, s, targets.data(), logits.data(), got.data()); });
  EXPECT_EQ(got, want);
  EXPECT_GT(std::count(got.begin(), got.end(), 1.0f), 10);
}

}  // namespace
}  // namespace holdfast::kernels
