// Inside of SlotStore: what is in the database (from the names of its files, without reading them),
// opening, and the implementation. Only storage/ includes this. Directory layout and the ladder at
// opening: FORMAT.md.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "storage/checkpoint_store.h"
#include "storage/files.h"
#include "storage/records.h"
#include "storage/rocks.h"

namespace holdfast::storage {

struct StorePaths {
  std::string root;
  std::string Stamp() const { return root + "/STORE"; }
  std::string Lock() const { return root + "/LOCK"; }
  std::string Db() const { return root + "/db"; }
  std::string Staging() const { return root + "/staging"; }
  std::string AtOpen() const { return root + "/staging/at-open"; }
  std::string Foreign() const { return root + "/foreign"; }
  // Damaged databases and files that opening could not use are moved to root/aside-1, -2, ...
  std::string NextAside() const;
};

// One table file with chunks [first, last) of one (checkpoint, owner).
struct HeldFile {
  int64_t owner = 0, first = 0, last = 0;
  std::string name;
};
struct HeldCheckpoint {
  std::vector<HeldFile> files;  // by owner, first
  std::vector<int64_t> shards;  // owners whose shard record is here
  bool manifest = false;
};
// From the live files' key ranges: no table file mixes checkpoints or owners, and its ordinals have
// no gap.
struct Contents {
  std::map<CheckpointId, HeldCheckpoint> checkpoints;
  std::map<std::string, uint64_t> marks;  // highest sequence of each key
};
Contents ListContents(const Rocks& rocks);

// Later in time: generations only grow, and steps grow inside one.
inline bool Later(const CheckpointId& a, const CheckpointId& b) {
  return std::pair(a.generation, a.step) > std::pair(b.generation, b.step);
}
// The latest checkpoint with a manifest.
std::optional<CheckpointId> NewestManifest(const Contents& contents);

// Opens, repairs as far as the ladder goes, deletes nothing. What it did is logged.
absl::StatusOr<std::unique_ptr<Rocks>> OpenLadder(const StorePaths& paths, uint64_t run_hash);

class SlotStoreImpl final : public SlotStore {
 public:
  SlotStoreImpl(StorePaths paths, std::string run, FileLock lock, std::unique_ptr<Rocks> rocks,
                std::string scratch);
  ~SlotStoreImpl() override;

  using ReadFn = std::function<absl::Status(int64_t, std::span<uint32_t>)>;
  absl::StatusOr<ShardInfo> WriteShard(const CheckpointId& id, int owner, const ChunkGrid& grid,
                                       int64_t first, int64_t last, const ReadFn& read) override;
  absl::Status WriteManifest(const Manifest& manifest) override;
  absl::StatusOr<std::vector<Manifest>> Manifests() const override;
  absl::StatusOr<std::vector<CheckpointId>> Ids() const override;
  absl::StatusOr<std::vector<std::pair<int64_t, int64_t>>> Held(
      const CheckpointId& id) const override;
  absl::Status ReadChunk(const CheckpointId& id, const ChunkGrid& grid, int64_t ordinal,
                         std::span<uint32_t> out) const override;
  absl::Status Verify(const CheckpointId& id,
                      const std::function<void(int64_t, int64_t)>& progress) const override;
  absl::Status Prune(std::span<const CheckpointId> ids) override;
  absl::Status PutMark(std::string_view key, std::string_view value) override;
  absl::StatusOr<std::string> GetMark(std::string_view key) const override;
  const std::string& run() const override { return run_; }
  void set_run(const std::string& run);  // before first use only

 private:
  // The database, kept open while the value lives; kUnavailable when a reopening failed.
  struct Use {
    std::shared_lock<std::shared_mutex> lock;
    Rocks* rocks = nullptr;
    std::shared_ptr<const Contents> contents;
  };
  absl::StatusOr<Use> Begin() const;
  absl::StatusOr<Manifest> ReadManifest(const Use& use, const CheckpointId& id) const;
  absl::StatusOr<std::string> Get(const Use& use, rocksdb::ColumnFamilyHandle* family,
                                  const std::string& key) const;
  // Reads and checks one chunk of `file`; the payload lies in `pinned`.
  absl::StatusOr<DecodedChunk> Load(const Use& use, const CheckpointId& id, const HeldFile& file,
                                    int64_t ordinal, rocksdb::PinnableSlice* pinned) const;
  // All chunks of one owner; the sum of their digests must be the shard record's.
  absl::Status VerifyOwner(const Use& use, const CheckpointId& id, int64_t owner,
                           const Manifest* manifest, const ChunkGrid* grid,
                           const std::function<void()>& chunk_done) const;

  // Below: with write_mutex_ held.
  absl::Status BeginWrite();  // after a failed write: resumes or reopens the database
  void Refresh();             // contents_ from the database
  absl::Status Settle(absl::Status status);  // notes a failure for BeginWrite(), refreshes
  absl::Status WriteFiles(const ShardRecord& record, const ChunkGrid& grid, const ReadFn& read,
                          std::vector<std::unique_ptr<TableFile>>* files, ShardInfo* info);
  absl::Status IngestShard(const ShardRecord& record,
                           const std::vector<std::unique_ptr<TableFile>>& files);
  absl::Status IngestValue(rocksdb::ColumnFamilyHandle* family, const std::string& name,
                           const std::string& key, const std::string& value);
  absl::Status DropShard(const CheckpointId& id, int64_t owner);
  absl::Status DropCheckpoint(const CheckpointId& id);
  absl::Status MakeRoom(const CheckpointId& id, int64_t bytes);
  void DropUncommitted(const CheckpointId& keep, bool also_newer);
  void RemoveStaged();

  const StorePaths paths_;
  std::string run_;
  uint64_t run_hash_;
  const std::string scratch_;  // of a secondary; empty: this is the writer
  FileLock lock_;
  std::mutex write_mutex_;
  mutable std::shared_mutex rocks_mutex_;  // exclusive only while reopening
  std::unique_ptr<Rocks> rocks_;
  mutable std::mutex contents_mutex_;
  std::shared_ptr<const Contents> contents_;
  bool write_failed_ = false;
};

}  // namespace holdfast::storage
