#include "tests/storage/store_fixture.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "runtime/base/status.h"

namespace holdfast::storage {

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "holdfast-store-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) std::abort();
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<Region> OddRegions() {
  return {
      {"wte/value", 2 * kChunkWords + 5}, {"bias/value", 1},    {"empty/value", 0},
      {"wte/slot0", kChunkWords},         {"norm/value", 1023}, {"wte/slot1", kChunkWords / 2 + 1}};
}

uint32_t WordAt(int64_t step, int64_t region, int64_t index) {
  return static_cast<uint32_t>(
      Mix64(static_cast<uint64_t>(step) * 1'000'003 + static_cast<uint64_t>(region)) +
      static_cast<uint64_t>(index) * 2'654'435'761u);
}

std::function<absl::Status(int64_t, std::span<uint32_t>)> Reader(const ChunkGrid& grid,
                                                                 int64_t step) {
  return [&grid, step](int64_t ordinal, std::span<uint32_t> out) {
    const Chunk& chunk = grid.chunk(ordinal);
    for (int64_t i = 0; i < chunk.words; ++i) {
      out[static_cast<size_t>(i)] = WordAt(step, chunk.region, chunk.first + i);
    }
    return absl::OkStatus();
  };
}

uint64_t StateDigest(const ChunkGrid& grid, int64_t step) {
  uint64_t digest = 0;
  std::vector<uint32_t> words(kChunkWords);
  for (int64_t ordinal = 0; ordinal < grid.chunks(); ++ordinal) {
    const Chunk& chunk = grid.chunk(ordinal);
    (void)Reader(grid, step)(ordinal, std::span(words.data(), static_cast<size_t>(chunk.words)));
    digest +=
        DigestWords(words.data(), chunk.words, static_cast<uint64_t>(chunk.region), chunk.first);
  }
  return digest;
}

Manifest MakeManifest(const ChunkGrid& grid, const CheckpointId& id,
                      std::vector<ShardInfo> shards) {
  Manifest manifest;
  manifest.run = "test";
  manifest.run_uuid = "uuid";
  manifest.fingerprint = "print";
  manifest.id = id;
  manifest.world_size = std::max<int32_t>(1, static_cast<int32_t>(shards.size()));
  manifest.regions = grid.regions();
  manifest.scalars = Cat("step ", id.step);
  for (const ShardInfo& shard : shards) manifest.state_digest += shard.state_digest;
  manifest.shards = std::move(shards);
  return manifest;
}

Manifest Save(const std::vector<SlotStore*>& stores, const ChunkGrid& grid,
              const CheckpointId& id) {
  std::vector<ShardInfo> shards;
  const int world = static_cast<int>(stores.size());
  for (int rank = 0; rank < world; ++rank) {
    const auto [first, last] = grid.Owned(rank, world);
    auto shard = stores[static_cast<size_t>(rank)]->WriteShard(id, rank, grid, first, last,
                                                               Reader(grid, id.step));
    EXPECT_TRUE(shard.ok()) << shard.status();
    if (!shard.ok()) return {};
    shard->machine = "here";
    shard->slot = rank;
    shards.push_back(*shard);
  }
  const Manifest manifest = MakeManifest(grid, id, std::move(shards));
  for (SlotStore* store : stores) {
    const absl::Status status = store->WriteManifest(manifest);
    EXPECT_TRUE(status.ok()) << status;
  }
  return manifest;
}

absl::Status CheckWords(const SlotStore& store, const ChunkGrid& grid, const CheckpointId& id,
                        int64_t first, int64_t last) {
  std::vector<uint32_t> got(kChunkWords), want(kChunkWords);
  for (int64_t ordinal = first; ordinal < last; ++ordinal) {
    const auto words = static_cast<size_t>(grid.chunk(ordinal).words);
    HF_RETURN_IF_ERROR(store.ReadChunk(id, grid, ordinal, std::span(got.data(), words)));
    HF_RETURN_IF_ERROR(Reader(grid, id.step)(ordinal, std::span(want.data(), words)));
    if (!std::equal(got.begin(), got.begin() + static_cast<int64_t>(words), want.begin())) {
      return absl::InternalError(Cat("chunk ", ordinal, " has other words: a silent error"));
    }
  }
  return absl::OkStatus();
}

std::unique_ptr<SlotStore> OpenStore(const std::string& path, const std::string& run) {
  auto store = SlotStore::Open(path, {.run = run});
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? std::move(*store) : nullptr;
}

int64_t DiskUse(const std::string& path, const std::string& extension) {
  std::set<uint64_t> seen;
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (!extension.empty() && entry.path().extension() != extension) continue;
    struct stat info;
    if (lstat(entry.path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (seen.insert(info.st_ino).second) bytes += info.st_blocks * 512;
  }
  return bytes;
}

}  // namespace holdfast::storage
