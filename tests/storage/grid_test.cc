#include <gtest/gtest.h>

#include <random>

#include "tests/storage/store_fixture.h"

namespace holdfast::storage {
namespace {

TEST(ChunkGrid, CutsRegionsOnChunkBordersWithoutMixingThem) {
  const ChunkGrid grid(OddRegions());
  ASSERT_EQ(grid.chunks(), 7);
  EXPECT_EQ(grid.total_words(), 2 * kChunkWords + 5 + 1 + kChunkWords + 1023 + kChunkWords / 2 + 1);
  EXPECT_EQ(grid.chunk(2).region, 0);
  EXPECT_EQ(grid.chunk(2).first, 2 * kChunkWords);
  EXPECT_EQ(grid.chunk(2).words, 5);
  EXPECT_EQ(grid.chunk(4).region, 3);
  EXPECT_EQ(grid.WordsIn(0, 7), grid.total_words());
  EXPECT_EQ(grid.WordsIn(3, 3), 0);
}

TEST(ChunkGrid, SharesTileAllChunksAndAreBalancedForEveryWorldSize) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<Region> regions;
    for (uint64_t r = 0; r < 1 + random() % 20; ++r) {
      regions.push_back({Cat("r", r), static_cast<int64_t>(random() % (4 * kChunkWords))});
    }
    const ChunkGrid grid(regions);
    for (int world = 1; world <= 9; ++world) {
      int64_t reached = 0;
      for (int rank = 0; rank < world; ++rank) {
        const auto [first, last] = grid.Owned(rank, world);
        ASSERT_EQ(first, reached);
        ASSERT_LE(first, last);
        reached = last;
        const double share = static_cast<double>(grid.total_words()) / world;
        EXPECT_LE(std::abs(static_cast<double>(grid.WordsIn(first, last)) - share),
                  static_cast<double>(kChunkWords));
      }
      ASSERT_EQ(reached, grid.chunks());
    }
  }
}

TEST(ChunkGrid, MoreWorkersThanChunksAndNoChunksAtAll) {
  const ChunkGrid one({{"a", 3}});
  int64_t chunks = 0;
  for (int rank = 0; rank < 9; ++rank)
    chunks += one.Owned(rank, 9).second - one.Owned(rank, 9).first;
  EXPECT_EQ(chunks, 1);
  const ChunkGrid none({{"a", 0}});
  EXPECT_EQ(none.chunks(), 0);
  EXPECT_EQ(none.Owned(1, 3), (std::pair<int64_t, int64_t>(0, 0)));
}

TEST(ChunkGrid, DigestTellsNamesSizesAndOrderApart) {
  const uint64_t digest = ChunkGrid({{"a", 3}, {"b", 4}}).digest();
  EXPECT_EQ(digest, ChunkGrid({{"a", 3}, {"b", 4}}).digest());
  EXPECT_NE(digest, ChunkGrid({{"b", 4}, {"a", 3}}).digest());
  EXPECT_NE(digest, ChunkGrid({{"a", 3}, {"b", 5}}).digest());
  EXPECT_NE(digest, ChunkGrid({{"a", 3}, {"c", 4}}).digest());
}

}  // namespace
}  // namespace holdfast::storage
