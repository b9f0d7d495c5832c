// Seeded random mutations against everything that decodes stored bytes. Half of them get a right
// checksum again, so that the code behind the checksum is reached. The point is that nothing
// crashes, hangs or reads outside.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "runtime/base/clock.h"
#include "storage/records.h"
#include "tests/storage/store_fixture.h"

namespace holdfast::storage {
namespace {

std::string Mutated(std::string bytes, std::mt19937_64* random) {
  const int edits = 1 + static_cast<int>((*random)() % 4);
  for (int edit = 0; edit < edits && !bytes.empty(); ++edit) {
    const size_t at = (*random)() % bytes.size();
    switch ((*random)() % 6) {
      case 0:
        bytes[at] = static_cast<char>((*random)());
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.insert(at, 1 + (*random)() % 16, static_cast<char>((*random)()));
        break;
      case 3:
        bytes.erase(at, 1 + (*random)() % 16);
        break;
      case 4:
        bytes.replace(at, std::min<size_t>(8, bytes.size() - at),
                      std::min<size_t>(8, bytes.size() - at), '\xff');
        break;
      default:
        bytes += bytes.substr(at);
        break;
    }
    if (bytes.size() > (1 << 16)) bytes.resize(1 << 16);
  }
  return bytes;
}

void Rehash128(std::string* bytes) {
  if (bytes->size() < 16) return;
  const Hash128 hash = Hash128Of(bytes->data(), bytes->size() - 16);
  std::memcpy(bytes->data() + bytes->size() - 16, &hash.low, 8);
  std::memcpy(bytes->data() + bytes->size() - 8, &hash.high, 8);
}

void Rehash64(std::string* bytes, size_t end, std::string_view key = {}) {
  if (bytes->size() < end || end < 8) return;
  const uint64_t hash = Hash64(std::string_view(*bytes).substr(0, end - 8), Hash64(key));
  std::memcpy(bytes->data() + end - 8, &hash, 8);
}

template <typename Check>
void Fuzz(const std::string& seed_bytes, uint64_t seed, const Check& check) {
  std::mt19937_64 random(seed);
  const Deadline deadline = Deadline::After(3'000);
  for (int i = 0; i < 60'000 && !deadline.passed(); ++i) {
    check(Mutated(seed_bytes, &random), i % 2 == 0);
  }
}

TEST(FormatFuzz, Manifests) {
  const ChunkGrid grid(OddRegions());
  const std::string bytes =
      MakeManifest(grid, {1, 2, 3}, {{0, "a", 0, 0, 3, 1, 1}, {1, "b", 1, 3, 7, 2, 2}}).ToBytes();
  Fuzz(bytes, 11, [&](std::string bad, bool rehash) {
    if (rehash) Rehash128(&bad);
    const auto manifest = Manifest::FromBytes(bad);
    if (!manifest.ok()) return;
    EXPECT_EQ(manifest->ToBytes(), bad);  // what is accepted has one spelling
    (void)CheckComplete(*manifest);
    EXPECT_LE(ChunkGrid(manifest->regions).chunks(), kMaxChunks);
  });
}

TEST(FormatFuzz, ChunkRecords) {
  std::string record(kChunkHeaderBytes + 64, '\7');
  ChunkHeader header;
  header.chunk = {1, 0, 16};
  header.content = Hash128Of(record.data() + kChunkHeaderBytes, 64);
  EncodeChunkHeader(header, record.data());
  ASSERT_TRUE(DecodeChunk(record).ok());
  Fuzz(record, 12, [&](std::string bad, bool rehash) {
    if (rehash) Rehash64(&bad, kChunkHeaderBytes);
    const auto chunk = DecodeChunk(bad);
    if (!chunk.ok()) return;
    EXPECT_EQ(static_cast<int64_t>(chunk->payload.size()), chunk->header.chunk.words * 4);
    EXPECT_EQ(Hash128Of(chunk->payload.data(), chunk->payload.size()), chunk->header.content);
  });
}

TEST(FormatFuzz, ShardRecordsMarksAndKeys) {
  Fuzz(ShardRecord{1, {2, 3, 4}, 5, 6, 7, 8, 9, 10}.ToBytes(), 13,
       [](std::string bad, bool rehash) {
         if (rehash) Rehash64(&bad, bad.size());
         const auto record = ShardRecord::FromBytes(bad);
         EXPECT_TRUE(!record.ok() || record->first <= record->last);
       });
  Fuzz(EncodeMark("key", 1, "value"), 14, [](std::string bad, bool rehash) {
    if (rehash) Rehash64(&bad, bad.size(), "key");
    (void)DecodeMark("key", bad);
  });
  for (const std::string& key :
       {ChunkKey({1, 2, 3}, 4, 5), ShardKey({1, 2, 3}, 4), MarkKey("m", 3)}) {
    Fuzz(key, 15, [](const std::string& bad, bool) {
      ChunkKeyParts parts;
      CheckpointId id;
      char kind;
      std::string name;
      uint64_t sequence;
      const bool chunk = ParseChunkKey(bad, &parts);
      EXPECT_TRUE(!chunk || ChunkKey(parts.id, parts.owner, parts.ordinal) == bad);
      (void)ParseMetaKey(bad, &id, &kind);
      const bool mark = ParseMarkKey(bad, &name, &sequence);
      EXPECT_TRUE(!mark || MarkKey(name, sequence) == bad);
    });
  }
}

}  // namespace
}  // namespace holdfast::storage
