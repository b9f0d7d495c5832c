#include "tests/kernels/reference/reference.h"
#include "tests/kernels/testing.h"

namespace holdfast::kernels {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers

Doubles Reference(const MatMulShape& s, const Floats& a, const Floats& b, const Floats& c) {
  Doubles out = Widen(c);
  reference::MatMul(s.m, s.n, s.k, s.transpose_a, s.transpose_b, s.alpha, Widen(a), Widen(b),
                    s.beta, out);
  return out;
}

TEST(MatMul, MatchesTheReferenceInAllForms) {
  for (const int64_t size : {1, 5, 33, 64}) {
    for (int form = 0; form < 8; ++form) {
      MatMulShape s{size, size + 3, 2 * size + 1};
      s.transpose_a = (form & 1) != 0;
      s.transpose_b = (form & 2) != 0;
      s.beta = (form & 4) != 0 ? 1.0f : 0.0f;
      s.alpha = (form & 4) != 0 ? 0.5f : 1.0f;
      const Floats a = Normal(1, s.m * s.k), b = Normal(2, s.k * s.n), c = Normal(3, s.m * s.n);
      const Floats got = SameBits(s.m * s.n, [&](Stream& stream, float* out) {
        CopyFloat(stream, s.m * s.n, c.data(), out);
        MatMul(stream, s, a.data(), b.data(), out);
      });
      EXPECT_LT(NormError(got, Reference(s, a, b, c)), 1e-6) << size << " form " << form;
    }
  }
}

TEST(MatMul, EmptySidesAreAllowed) {
  Floats c = {1, 2, 3, 4};
  MatMulShape s{2, 2, 0};
  s.beta = 2.0f;
  Compute([&](Stream& stream) { MatMul(stream, s, nullptr, nullptr, c.data()); });
  EXPECT_EQ(c, (Floats{2, 4, 6, 8}));
  s.beta = 0.0f;
  Compute([&](Stream& stream) { MatMul(stream, s, nullptr, nullptr, c.data()); });
  EXPECT_EQ(c, (Floats{0, 0, 0, 0}));
  s.m = 0;
  Compute([&](Stream& stream) { MatMul(stream, s, nullptr, nullptr, c.data()); });
}

TEST(MatMul, LeadingDimensionsLeaveTheRestAlone) {
  constexpr int64_t m = 7, n = 9, k = 11, lda = 20, ldb = 13, ldc = 16;
  const Floats a = Normal(1, m * lda), b = Normal(2, k * ldb);
  Floats c(m * ldc, 5.0f), dense(m * n), dense_a, dense_b;
  for (int64_t i = 0; i < m; ++i) dense_a.insert(dense_a.end(), &a[i * lda], &a[i * lda] + k);
  for (int64_t i = 0; i < k; ++i) dense_b.insert(dense_b.end(), &b[i * ldb], &b[i * ldb] + n);
  MatMulShape s{m, n, k};
  Compute([&](Stream& stream) { MatMul(stream, s, dense_a.data(), dense_b.data(), dense.data()); });
  s.lda = lda, s.ldb = ldb, s.ldc = ldc;
  Compute([&](Stream& stream) { MatMul(stream, s, a.data(), b.data(), c.data()); });
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < ldc; ++j) EXPECT_EQ(c[i * ldc + j], j < n ? dense[i * n + j] : 5.0f);
  }
}

// The shapes of the small GPT at 192 tokens, and of its gradients: the same bits in threads
// (SameBits) and for input data at any alignment.
TEST(MatMul, InputAlignmentMovesNoBit) {
  const MatMulShape shapes[] = {{192, 384, 128},
                                {192, 128, 512},
                                {192, 512, 128, false, true},
                                {128, 512, 192, true, false},
                                {192, 128, 384, false, true},
                                {192, 256, 128, false, true}};
  for (const MatMulShape& s : shapes) {
    const Floats a = Normal(1, s.m * s.k), b = Normal(2, s.k * s.n);
    const Floats want = SameBits(
        s.m * s.n, [&](Stream& stream, float* out) { MatMul(stream, s, a.data(), b.data(), out); });
    for (const int shift : {1, 2, 5, 15}) {
      Floats a2(a.size() + 16), b2(b.size() + 16), c(s.m * s.n + 16);
      std::copy(a.begin(), a.end(), a2.begin() + shift);
      std::copy(b.begin(), b.end(), b2.begin() + 16 - shift);
      Compute([&](Stream& stream) {
        MatMul(stream, s, a2.data() + shift, b2.data() + 16 - shift, c.data() + shift);
      });
      EXPECT_EQ(0, std::memcmp(want.data(), c.data() + shift, want.size() * sizeof(float)))
          << shift;
    }
  }
}

TEST(MatMul, ABlockOfRowsAloneHasTheSameBits) {
  MatMulShape s{192, 384, 128};
  const Floats a = Normal(1, s.m * s.k), b = Normal(2, s.k * s.n);
  Floats whole(s.m * s.n), parts(s.m * s.n);
  Compute([&](Stream& stream) { MatMul(stream, s, a.data(), b.data(), whole.data()); });
  s.m = 64;
  for (int64_t r = 0; r < 192; r += 64) {
    Compute([&](Stream& stream) { MatMul(stream, s, &a[r * s.k], b.data(), &parts[r * s.n]); });
  }
  EXPECT_EQ(whole, parts);
}

TEST(MatMulHalf, MatchesOrSaysThatItIsNotThere) {
  const MatMulShape s{40, 48, 64};
  const Floats a = Normal(1, s.m * s.k), b = Normal(2, s.k * s.n);
  for (const Half half : {Half::kBf16, Half::kF16}) {
    std::vector<uint16_t> a16(a.size()), b16(b.size());
    Floats a_rounded(a.size()), b_rounded(b.size()), again(b.size());
    Compute([&](Stream& stream) {
      FloatToHalf(stream, half, s.m * s.k, a.data(), a16.data());
      FloatToHalf(stream, half, s.k * s.n, b.data(), b16.data());
      HalfToFloat(stream, half, s.m * s.k, a16.data(), a_rounded.data());
      HalfToFloat(stream, half, s.k * s.n, b16.data(), b_rounded.data());
      RoundToHalf(stream, half, s.k * s.n, b.data(), again.data());
    });
    EXPECT_EQ(again, b_rounded);
    EXPECT_LT(NormError(a_rounded, Widen(a)), half == Half::kBf16 ? 3e-3 : 4e-4);
    const auto stream = CpuDevice().NewStream();
    Floats c(s.m * s.n);
    MatMulHalf(*stream, half, s, a16.data(), b16.data(), nullptr, c.data());
    const absl::Status status = stream->Synchronize(Deadline::After(kWaitMs));
    if (!HalfAvailable(*stream, half)) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented)
          << "the refusal is all that this CPU can show";
      continue;
    }
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_LT(NormError(c, Reference(s, a_rounded, b_rounded, c)), 1e-5);
  }
}

}  // namespace
}  // namespace holdfast::kernels
