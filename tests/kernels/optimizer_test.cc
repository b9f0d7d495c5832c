#include <numeric>

#include "tests/kernels/reference/reference.h"
#include "tests/kernels/testing.h"

namespace holdfast::kernels {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers

TEST(AdamW, FollowsTheReferenceForManySteps) {
  const int64_t n = 333;
  AdamWOptions options{
      .learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  options.gradient_scale = 0.5f;
  const Floats start = Normal(1, n);
  const Floats got = SameBits(3 * n, [&](Stream& stream, float* memory) {
    CopyFloat(stream, n, start.data(), memory);
    Fill(stream, 2 * n, 0.0f, memory + n);
    AdamWOptions o = options;
    for (o.step = 1; o.step <= 50; ++o.step) {
      auto gradient = std::make_shared<Floats>(Normal(100 + o.step, n));
      AdamW(stream, o, n, gradient->data(), memory, memory + n, memory + 2 * n);
      stream.Launch([gradient] {});
    }
  });
  const reference::AdamW rule{1e-2, 0.9, 0.95, 1e-8, 0.1};
  Doubles value = Widen(start), m(n), v(n);
  for (int step = 1; step <= 50; ++step) {
    const Floats gradient = Normal(100 + step, n);
    for (int64_t i = 0; i < n; ++i) rule.Apply(step, 0.5 * gradient[i], value[i], m[i], v[i]);
  }
  EXPECT_LT(NormError(Floats(&got[0], &got[n]), value), 1e-6);
  EXPECT_LT(NormError(Floats(&got[n], &got[2 * n]), m), 1e-6);
  EXPECT_LT(NormError(Floats(&got[2 * n], &got[2 * n] + n), v), 1e-6);
}

TEST(AdamW, SlicesHaveTheSameBits) {
  const int64_t n = 1000;
  const Floats gradient = Normal(1, n), start = Normal(2, n);
  Floats whole = start, m(n), v(n), parts = start, m2(n), v2(n);
  const AdamWOptions options{.learning_rate = 1e-3, .step = 7};
  Compute([&](Stream& stream) {
    AdamW(stream, options, n, gradient.data(), whole.data(), m.data(), v.data());
    for (int64_t at = 0; at < n; at += 37) {
      AdamW(stream, options, std::min<int64_t>(37, n - at), &gradient[at], &parts[at], &m2[at],
            &v2[at]);
    }
  });
  EXPECT_EQ(whole, parts);
  EXPECT_EQ(v, v2);
}

TEST(AdamW, OfFixedPointSumsIsTheConversionAndThenAdamW) {
  const int64_t n = 1001;
  const Floats gradient = Normal(3, n, 1e-3f), start = Normal(4, n);
  const AdamWOptions options{.learning_rate = 1e-3, .weight_decay = 0.1, .step = 3};
  const double factor = 0x1p-40 / 3;
  std::vector<int64_t> sums(n);
  FixedFlags flags;
  Floats converted(n), value = start, m(n, 0.5f), v(n, 0.25f);
  Compute([&](Stream& stream) {
    StoreFixed(stream, {.exponent = 40, .micro_batches = 4}, n, gradient.data(), sums.data(),
               &flags);
    sums[7] = INT64_MAX;
    sums[8] = INT64_MIN;
    FixedToFloat(stream, n, factor, sums.data(), converted.data());
    AdamW(stream, options, n, converted.data(), value.data(), m.data(), v.data());
  });
  const Floats got = SameBits(3 * n, [&](Stream& stream, float* memory) {
    CopyFloat(stream, n, start.data(), memory);
    Fill(stream, n, 0.5f, memory + n);
    Fill(stream, n, 0.25f, memory + 2 * n);
    AdamWFixed(stream, options, n, factor, sums.data(), memory, memory + n, memory + 2 * n);
  });
  EXPECT_EQ(Floats(&got[0], &got[n]), value);
  EXPECT_EQ(Floats(&got[n], &got[2 * n]), m);
  EXPECT_EQ(Floats(&got[2 * n], &got[2 * n] + n), v);
}

TEST(Sgd, MatchesItsDefinition) {
  const Floats gradient = Normal(1, 100), start = Normal(2, 100);
  const Floats got = SameBits(100, [&](Stream& stream, float* memory) {
    CopyFloat(stream, 100, start.data(), memory);
    Sgd(stream, {.learning_rate = 0.1, .weight_decay = 0.01, .gradient_scale = 2.0f}, 100,
        gradient.data(), memory);
  });
  Doubles want(100);
  for (int i = 0; i < 100; ++i) want[i] = start[i] - 0.1 * (2.0 * gradient[i] + 0.01 * start[i]);
  EXPECT_LT(NormError(got, want), 1e-6);
}

TEST(SquaredNorm, ChunksOfAShardAreTheChunksOfTheWhole) {
  const int64_t n = 3 * kNormChunk + 77;
  const Floats x = Normal(1, n);
  ASSERT_EQ(SquaredNormCount(n), 4);
  EXPECT_EQ(SquaredNormCount(0), 0);
  Doubles chunks(4), shard(3);
  Compute([&](Stream& stream) {
    SquaredNormChunks(stream, n, x.data(), chunks.data());
    SquaredNormChunks(stream, n - kNormChunk, &x[kNormChunk], shard.data());
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(chunks[1 + i], shard[i]);
  double want = 0;
  for (const float v : x) want += static_cast<double>(v) * v;
  EXPECT_NEAR(std::accumulate(chunks.begin(), chunks.end(), 0.0), want, 1e-12 * want);
}

}  // namespace
}  // namespace holdfast::kernels
