// The references themselves: their gradients against central finite differences of the loss sum(out
// * weight).
#include "tests/kernels/reference/reference.h"

#include <functional>

#include "tests/kernels/testing.h"

namespace holdfast::kernels {
namespace {

using reference::Vector;

constexpr double kTolerance = 1e-6;

Vector Data(uint64_t seed, int64_t n) { return testing::Widen(testing::Normal(seed, n)); }

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Norm-wise relative difference of `gradient` and the central differences of `loss` at x, each
// element by `step`.
double DifferenceError(Vector x, const Vector& gradient,
                       const std::function<double(const Vector&)>& loss, double step = 1e-5) {
  EXPECT_EQ(x.size(), gradient.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + step;
    const double up = loss(x);
    x[i] = at - step;
    const double down = loss(x);
    x[i] = at;
    const double slope = (up - down) / (2 * step);
    error += (slope - gradient[i]) * (slope - gradient[i]);
    size += slope * slope;
  }
  return std::sqrt(error / size);
}

TEST(Reference, MatMulGradientsAreProducts) {
  constexpr int64_t m = 5, n = 4, k = 6;
  const Vector a = Data(1, m * k), b = Data(2, k * n), w = Data(3, m * n);
  const auto loss = [&](const Vector& x, const Vector& y) {
    Vector c(m * n);
    reference::MatMul(m, n, k, false, false, 1, x, y, 0, c);
    return Dot(c, w);
  };
  Vector da(m * k), db(k * n);
  reference::MatMul(m, k, n, false, true, 1, w, b, 0, da);
  reference::MatMul(k, n, m, true, false, 1, a, w, 0, db);
  EXPECT_LT(DifferenceError(a, da, [&](const Vector& x) { return loss(x, b); }), kTolerance);
  EXPECT_LT(DifferenceError(b, db, [&](const Vector& y) { return loss(a, y); }), kTolerance);
}

TEST(Reference, EmbeddingGradient) {
  constexpr int64_t context = 3, rows = 6, width = 4, vocab = 5;
  const std::vector<int32_t> tokens = {0, 4, 4, 2, 0, 4};
  const Vector table = Data(1, vocab * width), positions = Data(2, context * width),
               w = Data(3, rows * width);
  Vector d_table(vocab * width), d_positions(context * width);
  reference::EmbeddingGradient(rows, context, width, tokens, w, d_table, d_positions);
  EXPECT_LT(DifferenceError(
                table, d_table,
                [&](const Vector& x) {
                  return Dot(reference::Embedding(rows, context, width, tokens, x, positions), w);
                }),
            kTolerance);
  EXPECT_LT(DifferenceError(positions, d_positions,
                            [&](const Vector& x) {
                              return Dot(
                                  reference::Embedding(rows, context, width, tokens, table, x), w);
                            }),
            kTolerance);
}

TEST(Reference, LayerNormGradient) {
  constexpr int64_t rows = 3, cols = 10;
  constexpr double epsilon = 1e-5;
  const Vector x = Data(1, rows * cols), gain = Data(2, cols), bias = Data(3, cols),
               w = Data(4, rows * cols);
  const auto d = reference::LayerNormBackward(rows, cols, epsilon, x, gain, w);
  const auto loss = [&](const Vector& x_, const Vector& gain_, const Vector& bias_) {
    return Dot(reference::LayerNorm(rows, cols, epsilon, x_, gain_, bias_), w);
  };
  EXPECT_LT(DifferenceError(x, d.dx, [&](const Vector& v) { return loss(v, gain, bias); }),
            kTolerance);
  EXPECT_LT(DifferenceError(gain, d.d_gain, [&](const Vector& v) { return loss(x, v, bias); }),
            kTolerance);
  EXPECT_LT(DifferenceError(bias, d.d_bias, [&](const Vector& v) { return loss(x, gain, v); }),
            kTolerance);
}

TEST(Reference, GeluGradient) {
  const Vector u = Data(1, 50), w = Data(2, 50);
  Vector slopes(50);
  for (int i = 0; i < 50; ++i) slopes[i] = w[i] * reference::GeluSlope(u[i]);
  EXPECT_LT(DifferenceError(u, slopes,
                            [&](const Vector& x) {
                              Vector out(50);
                              for (int i = 0; i < 50; ++i) out[i] = reference::Gelu(x[i]);
                              return Dot(out, w);
                            }),
            kTolerance);
}

TEST(Reference, AttentionGradient) {
  const reference::Attention attention{2, 5, 2, 3};
  const int64_t n = 2 * 5 * 3 * attention.width();
  const Vector qkv = Data(1, n), w = Data(2, n / 3);
  const Vector d = attention.Backward(qkv, w);
  EXPECT_LT(DifferenceError(qkv, d,
                            [&](const Vector& x) {
                              Vector out, log_sum_exp;
                              attention.Forward(x, out, log_sum_exp);
                              return Dot(out, w);
                            }),
            kTolerance);
}

TEST(Reference, CrossEntropyGradient) {
  constexpr int64_t rows = 4, vocab = 7;
  const std::vector<int32_t> targets = {3, -1, 0, 6};
  const Vector logits = Data(1, rows * vocab);
  Vector d;
  reference::CrossEntropy(rows, vocab, targets, logits, &d);
  EXPECT_LT(DifferenceError(logits, d,
                            [&](const Vector& x) {
                              double sum = 0;
                              for (const double l :
                                   reference::CrossEntropy(rows, vocab, targets, x, nullptr))
                                sum += l;
                              return sum;
                            }),
            kTolerance);
}

}  // namespace
}  // namespace holdfast::kernels
