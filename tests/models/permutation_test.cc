#include "runtime/models/data/permutation.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace holdfast {
namespace {

std::vector<uint64_t> List(const Permutation& p) {
  std::vector<uint64_t> out(p.size());
  for (uint64_t i = 0; i < p.size(); ++i) out[i] = p(i);
  return out;
}

TEST(Permutation, IsABijectionForEverySize) {
  std::vector<uint64_t> sizes;
  for (uint64_t n = 1; n <= 130; ++n) sizes.push_back(n);
  for (const uint64_t n :
       {255, 256, 257, 1023, 1024, 1025, 4095, 4097, 15685, 65536, 65537, 100003}) {
    sizes.push_back(static_cast<uint64_t>(n));
  }
  for (const uint64_t n : sizes) {
    const Permutation p(n, 17 * n + 3);
    std::vector<bool> seen(n, false);
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t to = p(i);
      ASSERT_LT(to, n) << "size " << n;
      ASSERT_FALSE(seen[to]) << "size " << n << ": two indices go to " << to;
      seen[to] = true;
    }
  }
}

TEST(Permutation, LargeRangesStayInside) {
  for (const uint64_t n : {(uint64_t{1} << 40) + 1, uint64_t{1} << 62, uint64_t{1000000000000}}) {
    const Permutation p(n, 5);
    for (uint64_t i = 0; i < 1000; ++i) {
      ASSERT_LT(p(i), n);
      ASSERT_LT(p(n - 1 - i), n);
    }
  }
}

TEST(Permutation, DiffersByEpochAndSeedAndIsRepeatable) {
  const auto base = List(EpochPermutation(1000, 1, 0));
  EXPECT_EQ(base, List(EpochPermutation(1000, 1, 0)));
  const auto fixed_points = [&base](const std::vector<uint64_t>& other) {
    int n = 0;
    for (size_t i = 0; i < base.size(); ++i) n += base[i] == other[i];
    return n;
  };
  EXPECT_LT(fixed_points(List(EpochPermutation(1000, 1, 1))), 15);
  EXPECT_LT(fixed_points(List(EpochPermutation(1000, 2, 0))), 15);
  EXPECT_LT(fixed_points(List(EpochPermutation(1000, 0, 1))), 15);
}

// Over many epochs every place is about equally often in every tenth of the range: chi-squared of
// 10 cells for 50 places.
TEST(Permutation, SpreadsEvenly) {
  constexpr uint64_t kSize = 1000, kEpochs = 2000;
  for (uint64_t place = 0; place < kSize; place += 20) {
    std::vector<int> cells(10, 0);
    for (uint64_t e = 0; e < kEpochs; ++e) ++cells[EpochPermutation(kSize, 9, e)(place) / 100];
    double chi = 0;
    for (const int c : cells) chi += (c - 200.0) * (c - 200.0) / 200.0;
    EXPECT_LT(chi, 33.7) << "place " << place;  // 9 degrees of freedom: p = 1e-4
  }
}

// Neighbours do not stay together: the distance between the images of i and i + 1 is that of random
// pairs.
TEST(Permutation, SeparatesNeighbours) {
  constexpr uint64_t kSize = 15685;
  const auto list = List(EpochPermutation(kSize, 3, 4));
  double sum = 0;
  for (size_t i = 0; i + 1 < list.size(); ++i) {
    sum += std::abs(static_cast<double>(list[i]) - static_cast<double>(list[i + 1]));
  }
  EXPECT_NEAR(sum / static_cast<double>(kSize - 1) / static_cast<double>(kSize), 1.0 / 3.0, 0.01);
}

// The order is part of every run's result.
TEST(Permutation, KeepsItsValues) {
  const Permutation p = EpochPermutation(10, 1, 0);
  std::vector<uint64_t> first = List(p);
  EXPECT_EQ(first, (std::vector<uint64_t>{6, 9, 1, 2, 4, 8, 7, 5, 0, 3}));
}

}  // namespace
}  // namespace holdfast
