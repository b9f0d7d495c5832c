#include "tests/kernels/reference/reference.h"
#include "tests/kernels/testing.h"

namespace holdfast::kernels {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers

TEST(Embedding, MatchesTheReference) {
  const EmbeddingShape s{3, 7, 20, 11};
  const int64_t rows = s.batch * s.context;
  const auto tokens = Integers(1, rows, 11);
  const Floats table = Normal(2, s.vocab * s.width), positions = Normal(3, s.context * s.width);
  const Floats out = SameBits(rows * s.width, [&](Stream& stream, float* memory) {
    EmbeddingForward(stream, s, tokens.data(), table.data(), positions.data(), memory);
  });
  EXPECT_LT(NormError(out, reference::Embedding(rows, s.context, s.width, tokens, Widen(table),
                                                Widen(positions))),
            1e-7);

  const Floats d_out = Normal(4, rows * s.width), head = Normal(5, s.vocab * s.width);
  const Floats got = SameBits((s.vocab + s.context) * s.width, [&](Stream& stream, float* memory) {
    CopyFloat(stream, s.vocab * s.width, head.data(),
              memory);  // a tied head's gradient, kept and added to
    EmbeddingBackward(stream, s, tokens.data(), d_out.data(), memory, memory + s.vocab * s.width);
  });
  Doubles d_table = Widen(head), d_positions(s.context * s.width);
  reference::EmbeddingGradient(rows, s.context, s.width, tokens, Widen(d_out), d_table,
                               d_positions);
  EXPECT_LT(NormError(Floats(got.begin(), got.begin() + s.vocab * s.width), d_table), 1e-6);
  EXPECT_LT(NormError(Floats(got.begin() + s.vocab * s.width, got.end()), d_positions), 1e-6);
}

struct LayerNormRun {
  Floats out, dx, d_gain, d_bias;
};

LayerNormRun RunLayerNorm(const LayerNormShape& s, const Floats& x, const Floats& gain,
                          const Floats& bias, const Floats& d_out, const Floats* add_to) {
  const int64_t n = s.rows * s.cols;
  const Floats all = SameBits(2 * n + 2 * s.cols + 2 * s.rows, [&](Stream& stream, float* memory) {
    float *out = memory, *dx = out + n, *d_gain = dx + n, *d_bias = d_gain + s.cols;
    float *mean = d_bias + s.cols, *rstd = mean + s.rows;
    if (add_to != nullptr) CopyFloat(stream, n, add_to->data(), dx);
    LayerNormForward(stream, s, x.data(), gain.data(), bias.data(), out, mean, rstd);
    LayerNormBackward(stream, s, x.data(), gain.data(), mean, rstd, d_out.data(),
                      {dx, d_gain, d_bias, add_to != nullptr});
  });
  const auto part = [&](int64_t from, int64_t size) {
    return Floats(&all[from], &all[from] + size);
  };
  return {part(0, n), part(n, n), part(2 * n, s.cols), part(2 * n + s.cols, s.cols)};
}

TEST(LayerNorm, MatchesTheReference) {
  for (const int64_t cols : {1, 7, 8, 32, 77, 128, 768}) {
    const LayerNormShape s{70, cols};
    const int64_t n = s.rows * cols;
    Floats x = Normal(1, n, 2.0f);
    for (float& v : x) v += 3.0f;
    const Floats gain = Normal(2, cols), bias = Normal(3, cols), d_out = Normal(4, n),
                 before = Normal(5, n);
    const LayerNormRun got = RunLayerNorm(s, x, gain, bias, d_out, nullptr);
    EXPECT_LT(NormError(got.out, reference::LayerNorm(s.rows, cols, s.epsilon, Widen(x),
                                                      Widen(gain), Widen(bias))),
              1e-6);
    auto want =
        reference::LayerNormBackward(s.rows, cols, s.epsilon, Widen(x), Widen(gain), Widen(d_out));
    if (cols > 1) {  // with one column the exact gradient of x and gain is zero
      EXPECT_LT(NormError(got.dx, want.dx), 1e-5) << cols;
      EXPECT_LT(NormError(got.d_gain, want.d_gain), 1e-5) << cols;
    }
    EXPECT_LT(NormError(got.d_bias, want.d_bias), 1e-5) << cols;
    const LayerNormRun added = RunLayerNorm(s, x, gain, bias, d_out, &before);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(added.dx[i], before[i] + got.dx[i]);
    EXPECT_EQ(added.d_gain, got.d_gain);
  }
}

TEST(LayerNorm, BackwardInPlaceAndRowsAlone) {
  const LayerNormShape s{40, 96}, half{20, 96};
  const int64_t n = 40 * 96;
  const Floats x = Normal(1, n), gain = Normal(2, 96), bias = Normal(3, 96), d_out = Normal(4, n);
  const LayerNormRun want = RunLayerNorm(s, x, gain, bias, d_out, nullptr);
  Floats in_place = d_out, out(n), mean(40), rstd(40), d_gain(96), d_bias(96);
  Compute([&](Stream& stream) {
    LayerNormForward(stream, half, x.data(), gain.data(), bias.data(), out.data(), mean.data(),
                     rstd.data());
    LayerNormForward(stream, half, &x[n / 2], gain.data(), bias.data(), &out[n / 2], &mean[20],
                     &rstd[20]);
    LayerNormBackward(stream, s, x.data(), gain.data(), mean.data(), rstd.data(), in_place.data(),
                      {in_place.data(), d_gain.data(), d_bias.data(), false});
  });
  EXPECT_EQ(out, want.out);
  EXPECT_EQ(in_place, want.dx);
  EXPECT_EQ(d_gain, want.d_gain);
  EXPECT_EQ(d_bias, want.d_bias);
}

Doubles ColumnSumsOf(const MatrixShape& s, const Doubles& x) {
  Doubles sums(s.cols);
  for (int64_t i = 0; i < s.rows * s.cols; ++i) sums[i % s.cols] += x[i];
  return sums;
}

class Columns : public ::testing::TestWithParam<MatrixShape> {
 protected:
  const MatrixShape s = GetParam();
  const int64_t n = s.rows * s.cols;
  const Floats x = Normal(1, n), bias = Normal(2, s.cols), d_out = Normal(3, n);
};

TEST_P(Columns, BiasAndItsGradient) {
  const Floats got = SameBits(n + s.cols, [&](Stream& stream, float* memory) {
    CopyFloat(stream, n, x.data(), memory);
    AddBias(stream, s, bias.data(), memory);
    BiasGradient(stream, s, d_out.data(), memory + n);
  });
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(got[i], x[i] + bias[i % s.cols]);
  EXPECT_LT(NormError(Floats(got.begin() + n, got.end()), ColumnSumsOf(s, Widen(d_out))), 1e-5);
}

TEST_P(Columns, GeluMatchesTheReference) {
  const Floats got = SameBits(3 * n + s.cols, [&](Stream& stream, float* memory) {
    float *pre = memory, *out = pre + n, *d_pre = out + n, *d_bias = d_pre + n;
    CopyFloat(stream, n, x.data(), pre);
    BiasGeluForward(stream, s, bias.data(), pre, out);
    BiasGeluBackward(stream, s, pre, d_out.data(), d_pre, d_bias);
  });
  Doubles out(n), d_pre(n);
  for (int64_t i = 0; i < n; ++i) {
    const double u = static_cast<double>(x[i]) + bias[i % s.cols];
    out[i] = reference::Gelu(u);
    d_pre[i] = d_out[i] * reference::GeluSlope(u);
  }
  EXPECT_LT(NormError(Floats(&got[n], &got[2 * n]), out), 1e-6);
  EXPECT_LT(NormError(Floats(&got[2 * n], &got[3 * n]), d_pre), 1e-6);
  EXPECT_LT(NormError(Floats(got.begin() + 3 * n, got.end()), ColumnSumsOf(s, d_pre)), 1e-5);

  Floats in_place = d_out, d_bias(s.cols);
  Compute([&](Stream& stream) {
    BiasGeluBackward(stream, s, got.data(), in_place.data(), in_place.data(), d_bias.data());
  });
  EXPECT_EQ(in_place, Floats(&got[2 * n], &got[3 * n]));
}

TEST_P(Columns, ReluMatchesItsDefinition) {
  const Floats got = SameBits(2 * n + s.cols, [&](Stream& stream, float* memory) {
    BiasReluForward(stream, s, bias.data(), x.data(), memory);
    BiasReluBackward(stream, s, memory, d_out.data(), memory + n, memory + 2 * n);
  });
  Doubles d(n);
  for (int64_t i = 0; i < n; ++i) {
    const float u = x[i] + bias[i % s.cols];
    ASSERT_EQ(got[i], std::max(u, 0.0f));
    d[i] = u > 0 ? d_out[i] : 0;
    ASSERT_EQ(got[n + i], d[i]);
  }
  EXPECT_LT(NormError(Floats(got.begin() + 2 * n, got.end()), ColumnSumsOf(s, d)), 1e-5);
}

TEST_P(Columns, ResidualsAdd) {
  const Floats got = SameBits(2 * n, [&](Stream& stream, float* memory) {
    BiasResidualAdd(stream, s, x.data(), bias.data(), d_out.data(), memory);
    CopyFloat(stream, n, x.data(), memory + n);
    ResidualAdd(stream, n, memory + n, d_out.data(), memory + n);
  });
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(got[i], d_out[i] + (x[i] + bias[i % s.cols]));
    ASSERT_EQ(got[n + i], x[i] + d_out[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Columns,
                         ::testing::Values(MatrixShape{1, 1}, MatrixShape{3, 5},
                                           MatrixShape{64, 512}, MatrixShape{65, 513},
                                           MatrixShape{200, 100}));

TEST(Dropout, KeepsTheShareAndSplitsAnywhere) {
  const int64_t n = 40'001;
  const Floats x(n, 1.0f);
  const DropoutOptions options{.key = 99, .keep = 0.75f, .first = 6};
  const Floats whole =
      SameBits(n, [&](Stream& stream, float* out) { Dropout(stream, options, n, x.data(), out); });
  int64_t kept = 0;
  for (const float v : whole) {
    ASSERT_TRUE(v == 0.0f || v == 1.0f / 0.75f);
    kept += v != 0.0f;
  }
  EXPECT_NEAR(static_cast<double>(kept) / n, 0.75, 0.01);
  Floats parts = x;
  Compute([&](Stream& stream) {
    for (int64_t at = 0; at < n; at += 1001) {
      const int64_t count = std::min<int64_t>(1001, n - at);
      Dropout(stream, {options.key, options.keep, options.first + at}, count, &parts[at],
              &parts[at]);
    }
  });
  EXPECT_EQ(whole, parts);
  Compute([&](Stream& stream) { Dropout(stream, {1, 1.0f, 0}, n, x.data(), parts.data()); });
  EXPECT_EQ(parts, x);
  Compute([&](Stream& stream) { Dropout(stream, {1, 0.0f, 0}, n, x.data(), parts.data()); });
  EXPECT_EQ(parts, Floats(n, 0.0f));
}

TEST(Random, SplitsAnywhereAndHasItsMoments) {
  const int64_t n = 30'000;
  const Floats whole = SameBits(2 * n, [&](Stream& stream, float* out) {
    RandomNormal(stream, {42, 0}, 1.0f, 0.02f, n, out);
    RandomUniform(stream, {42, 0}, -2.0f, 3.0f, n, out + n);
  });
  Floats parts(2 * n);
  Compute([&](Stream& stream) {
    for (int64_t at = 0; at < n; at += 7001) {
      const int64_t count = std::min<int64_t>(7001, n - at);
      RandomNormal(stream, {42, static_cast<uint64_t>(at)}, 1.0f, 0.02f, count, &parts[at]);
      RandomUniform(stream, {42, static_cast<uint64_t>(at)}, -2.0f, 3.0f, count, &parts[n + at]);
    }
  });
  EXPECT_EQ(whole, parts);
  double mean = 0, square = 0, uniform = 0;
  for (int64_t i = 0; i < n; ++i) {
    mean += whole[i] / n;
    square += (whole[i] - 1.0) * (whole[i] - 1.0) / n;
    uniform += whole[n + i] / n;
    ASSERT_TRUE(whole[n + i] >= -2.0f && whole[n + i] < 3.0f);
  }
  EXPECT_NEAR(mean, 1, 0.001);
  EXPECT_NEAR(std::sqrt(square), 0.02, 0.0005);
  EXPECT_NEAR(uniform, 0.5, 0.03);
}

TEST(Arrays, PlainWork) {
  Floats x = {1, 2, 3}, acc = {10, 20, 30};
  std::vector<int64_t> words(3);
  Compute([&](Stream& stream) {
    AccumulateFloat(stream, 3, x.data(), acc.data());
    ScaleFloat(stream, 3, 0.5f, acc.data());
    Fill(stream, 3, 4.0f, x.data());
    FillWords(stream, 3, -9, words.data());
  });
  EXPECT_EQ(acc, (Floats{5.5f, 11, 16.5f}));
  EXPECT_EQ(x, (Floats{4, 4, 4}));
  EXPECT_EQ(words, (std::vector<int64_t>{-9, -9, -9}));
}

// What is rounded on its way has the bits of two passes.
TEST(RoundedResults, AreThoseOfTwoPasses) {
  const MatrixShape shape{67, 1030};
  const int64_t n = shape.rows * shape.cols;
  const Floats x = Normal(1, n), d_out = Normal(2, n), bias = Normal(3, shape.cols);
  for (const Half half : {Half::kBf16, Half::kF16}) {
    std::vector<uint16_t> once(n), twice(n);
    Floats pre = x, pre2 = x, out(n), sums(shape.cols), sums2(shape.cols);
    Compute([&](Stream& s) {
      BiasGeluForwardHalf(s, half, shape, bias.data(), pre.data(), once.data());
      BiasGeluForward(s, shape, bias.data(), pre2.data(), out.data());
      FloatToHalf(s, half, n, out.data(), twice.data());
    });
    EXPECT_EQ(once, twice);
    EXPECT_EQ(pre, pre2);
    Compute([&](Stream& s) {
      BiasGeluBackwardHalf(s, half, shape, pre.data(), d_out.data(), once.data(), sums.data());
      BiasGeluBackward(s, shape, pre.data(), d_out.data(), out.data(), sums2.data());
      FloatToHalf(s, half, n, out.data(), twice.data());
    });
    EXPECT_EQ(once, twice);
    EXPECT_EQ(sums, sums2);
    Compute([&](Stream& s) {
      BiasGradientHalf(s, half, shape, d_out.data(), once.data(), sums.data());
      BiasGradient(s, shape, d_out.data(), sums2.data());
      FloatToHalf(s, half, n, d_out.data(), twice.data());
    });
    EXPECT_EQ(once, twice);
    EXPECT_EQ(sums, sums2);
  }
}

}  // namespace
}  // namespace holdfast::kernels
