// Embedding, fixed-point sums, digests and updates of the CUDA backend, against the CPU bit by bit.
#include <cmath>
#include <limits>

#include "runtime/base/digest.h"
#include "tests/kernels/cuda_testing.h"

namespace holdfast::kernels {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers

using Words = std::vector<int64_t>;

Words SomeWords(uint64_t seed, int64_t n) {
  Words words(n);
  for (int64_t i = 0; i < n; ++i) {
    const Philox4 lanes = PhiloxBlock(seed, i);
    words[i] = static_cast<int64_t>(uint64_t{lanes.lane[0]} << 32 | lanes.lane[1]);
  }
  return words;
}

void ExpectEmbeddingAsOnCpu(const EmbeddingShape& shape, std::vector<int32_t> tokens) {
  const int64_t rows = shape.batch * shape.context;
  ExpectSameAsCpu({Of(tokens), Of(Normal(1, shape.vocab * shape.width)),
                   Of(Normal(2, shape.context * shape.width)), Of(Floats(rows * shape.width)),
                   Of(Normal(3, rows * shape.width))},
                  [&](Stream& s, const Arrays& p) {
                    EmbeddingForward(s, shape, p.at<int32_t>(0), p.at<float>(1), p.at<float>(2),
                                     p.at<float>(3));
                    EmbeddingBackward(s, shape, p.at<int32_t>(0), p.at<float>(4), p.at<float>(1),
                                      p.at<float>(2));
                  });
}

TEST(CudaEmbedding, AddsTheRowsOfATokenInOrder) {
  for (const EmbeddingShape& shape :
       {EmbeddingShape{3, 5, 7, 11}, EmbeddingShape{0, 5, 8, 11}, EmbeddingShape{1, 1, 1, 1},
        EmbeddingShape{5, 67, 12, 40}, EmbeddingShape{2, 9, 1100, 6}}) {
    ExpectEmbeddingAsOnCpu(
        shape, Integers(9, shape.batch * shape.context, static_cast<int32_t>(shape.vocab)));
  }
}

TEST(CudaEmbedding, OneTokenEverywhereAndNoTokenTwice) {
  const EmbeddingShape shape{4, 80, 4, 400};
  std::vector<int32_t> same(320, 7), all(320);
  for (int32_t i = 0; i < 320; ++i) all[i] = 319 - i;
  ExpectEmbeddingAsOnCpu(shape, same);
  ExpectEmbeddingAsOnCpu(shape, all);
}

TEST(CudaFixed, StoresAndAccumulatesWithTheCpusFlags) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int64_t n : {0, 1, 5, 4096, 10'007}) {
    Floats x = Normal(1, n, 1e-3f), y = Normal(2, n, 10.0f);
    if (n > 4) {
      x[0] = infinity;
      x[n / 2] = std::nanf("");
      x[n - 1] = -3e30f;
      y[1] = 1e-45f;
    }
    const FixedScale scale{.exponent = 40, .micro_batches = 12};
    FixedFlags flags;
    flags.nonfinite = 5;
    flags.max_abs = 0.25f;
    ExpectSameAsCpu({Of(x), Of(y), Of(SomeWords(1, n)), Of(std::vector<FixedFlags>{flags, {}})},
                    [&](Stream& s, const Arrays& p) {
                      auto* seen = p.at<FixedFlags>(3);
                      StoreFixed(s, scale, n, p.at<float>(0), p.at<int64_t>(2), seen);
                      AccumulateFixed(s, scale, n, p.at<float>(1), p.at<int64_t>(2), seen);
                      AccumulateFixed(s, {.exponent = -20}, n, p.at<float>(0), p.at<int64_t>(2),
                                      seen + 1);
                    });
  }
}

TEST(CudaFixed, WordsAndTheWayBack) {
  for (const int64_t n : {0, 1, 7, 3000, 5001}) {
    Words words = SomeWords(3, n);
    if (n > 1) words[0] = INT64_MIN, words[1] = INT64_MAX;
    ExpectSameAsCpu({Of(words), Of(SomeWords(4, n)), Of(Floats(n)), Of(Words{99})},
                    [&](Stream& s, const Arrays& p) {
                      FixedToFloat(s, n, 0x1p-40 / 7, p.at<int64_t>(0), p.at<float>(2));
                      AddWords(s, n, p.at<int64_t>(1), p.at<int64_t>(0));
                      SumWords(s, n, p.at<int64_t>(0), p.at<uint64_t>(3));
                    });
  }
}

TEST(CudaDigest, IsTheDigestOfTheWords) {
  for (const int64_t n : {0, 1, 3, 1023, 1024, 1025, 20'000}) {
    const Floats x = Normal(6, n);
    const int64_t first = 3 * kDigestBlockWords;
    ExpectSameAsCpu({Of(x), Of(Words{99})}, [&](Stream& s, const Arrays& p) {
      Digest(s, p.at<float>(0), n, 42, first, p.at<uint64_t>(1));
    });
    const Memories got = OnDevice({Of(x), Of(Words{99})},
                                  [&](Stream& s, const Arrays& p) {
                                    Digest(s, p.at<float>(0), n, 42, first, p.at<uint64_t>(1));
                                  },
                                  {0});
    EXPECT_EQ(As<uint64_t>(got[1])[0], DigestWords(x.data(), n, 42, first));
  }
}

TEST(CudaOptimizer, UpdatesWithTheCpusBits) {
  for (const int64_t n : {0, 1, 6, 1024, 2051}) {
    AdamWOptions options{.learning_rate = 3e-4, .weight_decay = 0.1, .gradient_scale = 0.7f};
    Floats second = Normal(4, n, 1e-6f);
    for (float& v : second) v = std::fabs(v);
    ExpectSameAsCpu(
        {Of(Normal(1, n, 1e-3f)), Of(Normal(2, n)), Of(Normal(3, n, 1e-3f)), Of(second)},
        [&](Stream& s, const Arrays& p) {
          for (options.step = 1; options.step <= 3; ++options.step)
            AdamW(s, options, n, p.at<float>(0), p.at<float>(1), p.at<float>(2), p.at<float>(3));
          Sgd(s, {.learning_rate = 0.1, .weight_decay = 0.01}, n, p.at<float>(0), p.at<float>(1));
        });
    Words sums = SomeWords(5, n);
    for (int64_t& w : sums) w >>= 24;
    ExpectSameAsCpu({Of(sums), Of(Normal(2, n)), Of(Normal(3, n, 1e-3f)), Of(second)},
                    [&](Stream& s, const Arrays& p) {
                      AdamWFixed(s, options, n, 0x1p-41 / 3, p.at<int64_t>(0), p.at<float>(1),
                                 p.at<float>(2), p.at<float>(3));
                    });
  }
}

TEST(CudaOptimizer, SquaresOfChunks) {
  for (const int64_t n :
       {int64_t{0}, int64_t{1}, int64_t{17}, kNormChunk, 3 * kNormChunk + 1003, 70 * kNormChunk}) {
    ExpectSameAsCpu({Of(Normal(1, n)), Of(Doubles(SquaredNormCount(n), 9.0))},
                    [&](Stream& s, const Arrays& p) {
                      SquaredNormChunks(s, n, p.at<float>(0), p.at<double>(1));
                    });
  }
}

}  // namespace
}  // namespace holdfast::kernels
