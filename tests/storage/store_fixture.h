// Shared by the storage tests: a directory of its own, a synthetic state, and a whole save over
// several stores.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/digest.h"
#include "runtime/base/text.h"
#include "storage/checkpoint_store.h"

namespace holdfast::storage {

// Removed with all in it at the end.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Regions of odd sizes: several chunks, one word, none, exactly one chunk.
std::vector<Region> OddRegions();
// The word at (region, index) of the state at `step`: a function, so that any reader can check any
// chunk.
uint32_t WordAt(int64_t step, int64_t region, int64_t index);
std::function<absl::Status(int64_t, std::span<uint32_t>)> Reader(const ChunkGrid& grid,
                                                                 int64_t step);
uint64_t StateDigest(const ChunkGrid& grid, int64_t step);

Manifest MakeManifest(const ChunkGrid& grid, const CheckpointId& id, std::vector<ShardInfo> shards);
// Each store writes its share, then all write the manifest: what a session of stores.size() workers
// does.
Manifest Save(const std::vector<SlotStore*>& stores, const ChunkGrid& grid, const CheckpointId& id);
// OK when every chunk of `ordinals` in `store` has the words of `step`.
absl::Status CheckWords(const SlotStore& store, const ChunkGrid& grid, const CheckpointId& id,
                        int64_t first, int64_t last);
std::unique_ptr<SlotStore> OpenStore(const std::string& path, const std::string& run = "test");
// Bytes on disk of all files below (or of those with the extension), each inode once.
int64_t DiskUse(const std::string& path, const std::string& extension = "");

}  // namespace holdfast::storage
