#include <gtest/gtest.h>

#include <cstring>

#include "storage/records.h"
#include "tests/storage/store_fixture.h"

namespace holdfast::storage {
namespace {

Manifest Sample() {
  const ChunkGrid grid(OddRegions());
  Manifest m = MakeManifest(grid, {3, 1200, 17},
                            {{0, "host-a", 0, 0, 4, 11, 1000}, {1, "host-b", 2, 4, 7, 22, 2000}});
  m.parent_branch = 2;
  m.branch_step = 1100;
  m.scalars = std::string("\0binary\xff", 8);
  return m;
}

// Puts a correct checksum at the end.
std::string Rehashed(std::string bytes) {
  const Hash128 hash = Hash128Of(bytes.data(), bytes.size() - 16);
  std::memcpy(bytes.data() + bytes.size() - 16, &hash.low, 8);
  std::memcpy(bytes.data() + bytes.size() - 8, &hash.high, 8);
  return bytes;
}

TEST(Manifest, RoundTrip) {
  const Manifest m = Sample();
  const auto back = Manifest::FromBytes(m.ToBytes());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->ToBytes(), m.ToBytes());
  EXPECT_EQ(back->run, "test");
  EXPECT_EQ(back->run_uuid, "uuid");
  EXPECT_EQ(back->fingerprint, "print");
  EXPECT_EQ(back->id, m.id);
  EXPECT_EQ(back->parent_branch, 2u);
  EXPECT_EQ(back->branch_step, 1100);
  EXPECT_EQ(back->world_size, 2);
  EXPECT_EQ(back->regions, m.regions);
  EXPECT_EQ(back->shards, m.shards);
  EXPECT_EQ(back->scalars, m.scalars);
  EXPECT_EQ(back->state_digest, 33u);
}

TEST(Manifest, EveryTruncationIsFound) {
  const std::string bytes = Sample().ToBytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(Manifest::FromBytes(bytes.substr(0, size)).status())) << size;
  }
  EXPECT_TRUE(absl::IsDataLoss(Manifest::FromBytes(bytes + "x").status()));
}

TEST(Manifest, EveryFlippedBitIsFound) {
  std::string bytes = Sample().ToBytes();
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    EXPECT_TRUE(absl::IsDataLoss(Manifest::FromBytes(bytes).status())) << "bit " << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  }
  EXPECT_TRUE(Manifest::FromBytes(bytes).ok());
}

TEST(Manifest, ANewerVersionIsRefusedNamingBoth) {
  std::string bytes = Sample().ToBytes();
  bytes[4] = 9;
  const absl::Status status = Manifest::FromBytes(Rehashed(bytes)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find("version 9"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("version 1"), absl::string_view::npos) << status;
}

TEST(Manifest, TruncationsWithARightChecksumAreFoundToo) {
  const std::string bytes = Sample().ToBytes();
  for (size_t size = 32; size < bytes.size(); ++size) {
    EXPECT_FALSE(Manifest::FromBytes(Rehashed(bytes.substr(0, size))).ok()) << size;
  }
}

TEST(Manifest, CompletenessNamesHolesOverlapsAndWrongSums) {
  Manifest m = Sample();
  EXPECT_TRUE(CheckComplete(m).ok()) << CheckComplete(m);
  m.state_digest = 34;
  EXPECT_NE(CheckComplete(m).message().find("add up"), absl::string_view::npos);
  m = Sample();
  m.shards[1].first = 5;
  EXPECT_NE(CheckComplete(m).message().find("4 to 5 are in no shard"), absl::string_view::npos);
  m.shards[1].first = 3;
  EXPECT_NE(CheckComplete(m).message().find("in two shards"), absl::string_view::npos);
  m = Sample();
  m.shards.pop_back();
  EXPECT_FALSE(CheckComplete(m).ok());
}

TEST(Records, ChunkEveryFlippedBitAndTruncationIsFound) {
  std::string record(kChunkHeaderBytes + 5 * 4, '\0');
  const uint32_t words[5] = {1, 2, 3, 4, 5};
  std::memcpy(record.data() + kChunkHeaderBytes, words, 20);
  ChunkHeader header;
  header.run_hash = 77;
  header.id = {1, 20, 300};
  header.owner = 4;
  header.ordinal = 50;
  header.chunk = {6, 7 * kChunkWords, 5};
  header.grid_digest = 8;
  header.state_digest = 9;
  header.content = Hash128Of(words, 20);
  EncodeChunkHeader(header, record.data());
  const auto back = DecodeChunk(record);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->header.id, header.id);
  EXPECT_EQ(back->header.owner, 4);
  EXPECT_EQ(back->header.ordinal, 50);
  EXPECT_EQ(back->header.chunk.first, 7 * kChunkWords);
  EXPECT_EQ(back->header.state_digest, 9u);
  for (size_t bit = 0; bit < record.size() * 8; ++bit) {
    std::string bad = record;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(DecodeChunk(bad).ok()) << "bit " << bit;
  }
  for (size_t size = 0; size < record.size(); ++size) {
    EXPECT_FALSE(DecodeChunk(record.substr(0, size)).ok()) << size;
  }
}

TEST(Records, ShardRecordsAndMarksRoundTripAndFindDamage) {
  const ShardRecord record{1, {2, 3, 4}, 5, 6, 7, 8, 9, 10};
  const std::string bytes = record.ToBytes();
  const auto back = ShardRecord::FromBytes(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->ToBytes(), bytes);
  const std::string mark = EncodeMark("branch", 12, "value");
  ASSERT_TRUE(DecodeMark("branch", mark).ok());
  EXPECT_EQ(DecodeMark("branch", mark)->value, "value");
  EXPECT_EQ(DecodeMark("branch", mark)->sequence, 12u);
  EXPECT_TRUE(absl::IsDataLoss(DecodeMark("other", mark).status()));
  for (const std::string& whole : {bytes, mark}) {
    for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
      std::string bad = whole;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
      EXPECT_FALSE(ShardRecord::FromBytes(bad).ok()) << bit;
      EXPECT_FALSE(DecodeMark("branch", bad).ok()) << bit;
    }
  }
}

TEST(Records, KeysSortAsTheirNumbers) {
  EXPECT_LT(ChunkKey({0, 99, 5}, 3, 4), ChunkKey({0, 100, 1}, 0, 0));
  EXPECT_LT(ChunkKey({0, 9'999, 1}, 0, 0), ChunkKey({0, 10'000, 1}, 0, 0));
  EXPECT_LT(ChunkKey({0, 1, 255}, 0, 0), ChunkKey({0, 1, 256}, 0, 0));
  EXPECT_LT(ChunkKey({1, 1, 1}, 9, 255), ChunkKey({1, 1, 1}, 9, 256));
  EXPECT_LT(ChunkKey({1, 1, 1}, 9, 0xffffffff), PrefixEnd(IdPrefix({1, 1, 1})));
  EXPECT_EQ(PrefixEnd("a\xff"), "b");
  EXPECT_EQ(PrefixEnd("\xff\xff"), "");
  ChunkKeyParts parts;
  ASSERT_TRUE(ParseChunkKey(ChunkKey({7, 8, 9}, 10, 11), &parts));
  EXPECT_EQ(parts.id, (CheckpointId{7, 8, 9}));
  EXPECT_EQ(parts.owner, 10);
  EXPECT_EQ(parts.ordinal, 11);
}

}  // namespace
}  // namespace holdfast::storage
