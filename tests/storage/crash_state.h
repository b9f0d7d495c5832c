// The state that store_writer saves and crash_test checks: its words are a function of the step.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/digest.h"
#include "storage/checkpoint_store.h"

namespace holdfast::storage {

inline std::vector<Region> CrashRegions() {
  return {{"a", kChunkWords + 77}, {"b", 999}, {"c", 1}};
}

inline std::function<absl::Status(int64_t, std::span<uint32_t>)> CrashReader(const ChunkGrid& grid,
                                                                             int64_t step) {
  return [&grid, step](int64_t ordinal, std::span<uint32_t> out) {
    const Chunk& chunk = grid.chunk(ordinal);
    uint64_t word = Mix64(static_cast<uint64_t>(step * 100 + chunk.region) ^
                          static_cast<uint64_t>(chunk.first));
    for (uint32_t& value : out) value = static_cast<uint32_t>(word += 0x9E3779B97F4A7C15ull);
    return absl::OkStatus();
  };
}

inline Manifest CrashManifest(const ChunkGrid& grid, const CheckpointId& id,
                              const ShardInfo& shard) {
  Manifest manifest;
  manifest.run = "test";
  manifest.id = id;
  manifest.world_size = 1;
  manifest.regions = grid.regions();
  manifest.shards = {shard};
  manifest.state_digest = shard.state_digest;
  return manifest;
}

}  // namespace holdfast::storage
