// The loss for GPUs, against the reference in double and the CPU's operation.
#include "tests/kernels/cuda_run.h"
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
  const Floats all = SameBitsOnGpu(n + 2 * s.rows, [&](CudaRun& run, float* memory) {
    run.Write(logits, memory);
    float* const losses = memory + n;
    const int32_t* const on = run.On(targets);
    CrossEntropyLoss(run.stream(), s, on, memory, losses + s.rows);
    SoftmaxCrossEntropy(run.stream(), s, on, kScale, memory, losses);
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
  Floats b(6 * 64, 9.0f);
  for (int r = 0; r < 6; ++r) std::copy_n(&logits[r * 50], 50, &b[r * 64]);
  CudaRun run;
  const int32_t* const on = run.On(targets);
  float *on_a = run.On(logits), *on_b = run.On(b), *on_c = run.On(logits);
  float *la = run.Fresh(6), *lb = run.Fresh(6), *lc = run.Fresh(6);
  SoftmaxCrossEntropy(run.stream(), dense, on, 1.0f, on_a, la);
  SoftmaxCrossEntropy(run.stream(), strided, on, 1.0f, on_b, lb);
  for (int r = 0; r < 6; ++r)
    SoftmaxCrossEntropy(run.stream(), row, on + r, 1.0f, on_c + r * 50, lc + r);
  const Floats a = run.Read(on_a, 300), c = run.Read(on_c, 300);
  b = run.Read(on_b, 6 * 64);
  const Floats losses_a = run.Read(la, 6), losses_b = run.Read(lb, 6), losses_c = run.Read(lc, 6);
  EXPECT_EQ(losses_a, losses_b);
  EXPECT_EQ(losses_a, losses_c);
  EXPECT_EQ(a, c);
  for (int r = 0; r < 6; ++r) {
    for (int i = 0; i < 64; ++i) EXPECT_EQ(b[r * 64 + i], i < 50 ? a[r * 50 + i] : 9.0f);
  }
}

// Of one row: the loss and what becomes of the logits.
std::pair<float, Floats> LossOf(const Floats& logits, int32_t target) {
  const auto n = static_cast<int64_t>(logits.size());
  CudaRun run;
  float *on = run.On(logits), *loss = run.Fresh(1);
  SoftmaxCrossEntropy(run.stream(), {1, n}, run.On(std::vector<int32_t>{target}), 1.0f, on, loss);
  return {run.Read(loss, 1)[0], run.Read(on, n)};
}

TEST(CudaCrossEntropy, NonFiniteLogitsShow) {
  for (const float bad : {NAN, kInfinity}) {
    for (const int at : {0, 13, 31, 299}) {
      Floats logits = Normal(1, 300);
      logits[at] = bad;
      const auto [loss, gradient] = LossOf(logits, 3);
      EXPECT_FALSE(std::isfinite(loss)) << bad << " at " << at;
      EXPECT_FALSE(std::isfinite(gradient[3]));
    }
  }
}

TEST(CudaCrossEntropy, HugeAndAbsentLogits) {
  const auto [loss, gradient] = LossOf({1000.0f, -1000.0f, 999.0f, -kInfinity, -kInfinity}, 1);
  EXPECT_NEAR(loss, 2000.3133f, 1e-3);
  EXPECT_NEAR(gradient[0], 0.7310586f, 1e-6);
  EXPECT_EQ(gradient[1], -1.0f);
  EXPECT_EQ(gradient[3], 0.0f);
  Floats none(300, -kInfinity);  // of whole threads, too
  none[0] = 2.0f;
  EXPECT_EQ(LossOf(none, 0), std::make_pair(0.0f, Floats(300, 0.0f)));
}

TEST(CudaArgMaxHits, FirstLargestWins) {
  const Floats logits = {1, 3, 3, 0, 1, 3, 3, 0, NAN, 1, 2, 3, 5, 4, 3, 2};
  const std::vector<int32_t> targets = {1, 2, 0, -1};
  CudaRun run;
  float* const hits = run.Fresh(4);
  ArgMaxHits(run.stream(), {4, 4}, run.On(targets), run.On(logits), hits);
  EXPECT_EQ(run.Read(hits, 4), (Floats{1, 0, 0, 0}));
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
  Floats want(s.rows);
  Compute(
      [&](Stream& stream) { ArgMaxHits(stream, s, targets.data(), logits.data(), want.data()); });
  CudaRun run;
  float* const hits = run.Fresh(s.rows);
  ArgMaxHits(run.stream(), s, run.On(targets), run.On(logits), hits);
  const Floats got = run.Read(hits, s.rows);
  EXPECT_EQ(got, want);
  EXPECT_GT(std::count(got.begin(), got.end(), 1.0f), 10);
}

}  // namespace
}  // namespace holdfast::kernels
