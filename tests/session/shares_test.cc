#include "runtime/session/shares.h"

#include <algorithm>
#include <random>

#include "gtest/gtest.h"

namespace holdfast {
namespace {

using Held = std::vector<std::vector<bool>>;

Held Nothing(int world, int64_t count) { return Held(world, std::vector<bool>(count, false)); }

// Every micro-batch is in exactly one rank's sums afterwards.
void CheckWhole(const Held& held, const Deal& deal, int64_t count) {
  std::vector<int> times(count, 0);
  for (size_t r = 0; r < held.size(); ++r) {
    EXPECT_TRUE(std::is_sorted(deal.compute[r].begin(), deal.compute[r].end()));
    for (const int32_t j : deal.compute[r]) ++times[j];
    for (int64_t j = 0; j < count && !deal.reset[r]; ++j) times[j] += held[r][j];
  }
  for (int64_t j = 0; j < count; ++j) EXPECT_EQ(times[j], 1) << "micro-batch " << j;
}

TEST(Shares, EachMicroBatchOnceWhateverIsHeld) {
  std::mt19937 random(20261201);
  for (int round = 0; round < 500; ++round) {
    const int world = 1 + static_cast<int>(random() % 7);
    const int64_t count = 1 + random() % 40;
    Held held = Nothing(world, count);
    const unsigned density = random() % 8;
    for (auto& bits : held) {
      for (int64_t j = 0; j < count; ++j) bits[j] = random() % 8 < density && random() % 3 == 0;
    }
    SCOPED_TRACE(round);
    CheckWhole(held, DealMicroBatches(count, held, static_cast<int>(random() % 9)), count);
  }
}

TEST(Shares, DoublesResetTheHigherRank) {
  Held held = Nothing(3, 6);
  held[0][1] = held[2][1] = true;  // twice
  held[1][3] = held[2][4] = true;
  const Deal deal = DealMicroBatches(6, held);
  EXPECT_EQ(deal.reset, (std::vector<bool>{false, false, true}));
  CheckWhole(held, deal, 6);
}

TEST(Shares, BalancedWithinOne) {
  for (int world = 1; world <= 9; ++world) {
    for (int64_t count = world; count < 40; ++count) {
      const Deal deal = DealMicroBatches(count, Nothing(world, count));
      const auto [least, most] =
          std::minmax_element(deal.compute.begin(), deal.compute.end(),
                              [](const auto& a, const auto& b) { return a.size() < b.size(); });
      EXPECT_LE(most->size() - least->size(), 1u);
    }
  }
}

TEST(Shares, WhoHoldsMoreComputesLess) {
  Held held = Nothing(2, 8);
  for (int j = 0; j < 4; ++j) held[0][j] = true;  // the third member, with 4..7, has died
  const Deal deal = DealMicroBatches(8, held);
  EXPECT_TRUE(deal.compute[0].empty());
  EXPECT_EQ(deal.compute[1], (std::vector<int32_t>{4, 5, 6, 7}));
}

TEST(Shares, RotationMovesEveryShare) {
  const Deal straight = DealMicroBatches(9, Nothing(3, 9), 0);
  const Deal moved = DealMicroBatches(9, Nothing(3, 9), 1);
  for (int r = 0; r < 3; ++r) EXPECT_EQ(moved.compute[(r + 1) % 3], straight.compute[r]);
  EXPECT_EQ(DealMicroBatches(9, Nothing(3, 9), 3).compute, straight.compute);
}

}  // namespace
}  // namespace holdfast
