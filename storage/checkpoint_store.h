// The checkpoint store of one slot (one worker): a RocksDB that one process opens for writing.
// Others read it as a secondary. What is stored, byte by byte, is in FORMAT.md.
//
// The state is a list of regions (one per tensor and component, of 32-bit words), cut into chunks
// of at most 1 MiB on (region, offset) coordinates, numbered by ordinal: independent of the number
// of workers. Rank r of N writes a contiguous run of ordinals. A checkpoint counts only when every
// worker holds its manifest ("saved"); whoever holds the manifest of c deletes nothing of c before
// a newer one was saved. Opening a store deletes nothing.
//
// Threads: one SlotStore may be used by several threads (writes are serialised inside).
// Errors: kResourceExhausted (disk full), kDataLoss (damaged bytes: which file, which chunk),
// kUnavailable (I/O error), kFailedPrecondition (locked by another process, foreign or newer
// format), kNotFound.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::storage {

// Never reused. Branch: every deliberate departure (resume from an older step, accepted change)
// opens a new one.
struct CheckpointId {
  uint32_t branch = 0;
  int64_t step = 0;
  uint64_t generation = 0;
  friend auto operator<=>(const CheckpointId&, const CheckpointId&) = default;
};
std::string ToString(const CheckpointId& id);  // "branch 0, step 100, generation 3"

struct Region {
  std::string name;   // "wte/value", "wte/slot0", ...
  int64_t words = 0;  // 32-bit words
  friend bool operator==(const Region&, const Region&) = default;
};

inline constexpr int64_t kChunkWords = 262'144;  // 1 MiB

struct Chunk {
  int64_t region = 0;  // index of the region
  int64_t first = 0;   // first word inside the region; a multiple of kChunkWords
  int64_t words = 0;
};

// The regions and their chunks. Pure.
class ChunkGrid {
 public:
  explicit ChunkGrid(std::vector<Region> regions);
  const std::vector<Region>& regions() const { return regions_; }
  int64_t chunks() const { return static_cast<int64_t>(chunks_.size()); }
  const Chunk& chunk(int64_t ordinal) const { return chunks_[ordinal]; }
  int64_t total_words() const { return total_words_; }
  // Digest over names and sizes: two states fit only if equal.
  uint64_t digest() const { return digest_; }
  // [first, last) of rank `rank` of `world_size`: contiguous, balanced by words, together all
  // chunks.
  std::pair<int64_t, int64_t> Owned(int rank, int world_size) const;
  int64_t WordsIn(int64_t first, int64_t last) const;

 private:
  std::vector<Region> regions_;
  std::vector<Chunk> chunks_;
  std::vector<int64_t> ends_;  // words up to and with each chunk
  int64_t total_words_ = 0;
  uint64_t digest_ = 0;
};

struct ShardInfo {
  int32_t owner = 0;    // rank that wrote it
  std::string machine;  // where
  int32_t slot = 0;
  int64_t first = 0, last = 0;  // chunk ordinals
  uint64_t state_digest = 0;    // sum of the chunks' state digests (runtime/base/digest.h)
  int64_t bytes = 0;            // stored
  friend bool operator==(const ShardInfo&, const ShardInfo&) = default;
};

// The same bytes on every worker.
struct Manifest {
  std::string run;  // run name
  std::string run_uuid;
  std::string fingerprint;  // of the run's bits
  CheckpointId id;
  uint32_t parent_branch = 0;  // lineage of id.branch
  int64_t branch_step = 0;     // the step at which it forked
  int32_t world_size = 0;
  std::vector<Region> regions;
  std::vector<ShardInfo> shards;
  std::string scalars;        // everything of the state that is no region; opaque here
  uint64_t state_digest = 0;  // regions' digest sum: must equal the sum over shards
  std::string ToBytes() const;
  static absl::StatusOr<Manifest> FromBytes(
      std::string_view bytes);  // kDataLoss, kFailedPrecondition (version)
};

struct StoreOptions {
  std::string run;  // written at creation, compared at opening
  bool create = true;
};

class SlotStore {
 public:
  // For writing; holds RocksDB's lock until destroyed. The ladder for damaged stores is in
  // FORMAT.md; what was skipped is logged.
  static absl::StatusOr<std::unique_ptr<SlotStore>> Open(const std::string& path,
                                                         const StoreOptions& options);
  // For reading beside a live writer. `scratch`: a private directory for the secondary's own files.
  static absl::StatusOr<std::unique_ptr<SlotStore>> OpenSecondary(const std::string& path,
                                                                  const std::string& scratch);
  virtual ~SlotStore() = default;

  // Writes chunks [first, last) as one or more SST files, synced and ingested: durable when OK.
  // `read` copies the words of a chunk (out has chunk(ordinal).words). Several MB/s matter: called
  // on the writer thread, off the training path.
  virtual absl::StatusOr<ShardInfo> WriteShard(
      const CheckpointId& id, int owner, const ChunkGrid& grid, int64_t first, int64_t last,
      const std::function<absl::Status(int64_t ordinal, std::span<uint32_t> out)>& read) = 0;
  [[nodiscard]] virtual absl::Status WriteManifest(const Manifest& manifest) = 0;  // synced

  virtual absl::StatusOr<std::vector<Manifest>> Manifests()
      const = 0;  // oldest first by (branch, step, generation); damaged ones are logged and left
                  // out
  // Every id of which anything lies here, with or without manifest, in order.
  virtual absl::StatusOr<std::vector<CheckpointId>> Ids() const = 0;
  // Chunk ordinals of `id` that lie in this store (keys only, not verified), as half-open ranges.
  virtual absl::StatusOr<std::vector<std::pair<int64_t, int64_t>>> Held(
      const CheckpointId& id) const = 0;
  // Reads and verifies one chunk (record checksum, position, and content hash).
  virtual absl::Status ReadChunk(const CheckpointId& id, const ChunkGrid& grid, int64_t ordinal,
                                 std::span<uint32_t> out) const = 0;
  // Reads every chunk of `id` that lies here; kDataLoss names the first bad one. `progress` may be
  // empty.
  virtual absl::Status Verify(
      const CheckpointId& id,
      const std::function<void(int64_t done, int64_t total)>& progress) const = 0;
  // Drops exactly these checkpoints (whole files). Called only after a newer one was saved.
  [[nodiscard]] virtual absl::Status Prune(std::span<const CheckpointId> ids) = 0;

  // Small durable marks (synced before return): membership's generation, branch.
  [[nodiscard]] virtual absl::Status PutMark(std::string_view key, std::string_view value) = 0;
  virtual absl::StatusOr<std::string> GetMark(std::string_view key) const = 0;

  // The run this store belongs to.
  virtual const std::string& run() const = 0;
};

// The slot stores of one machine's --dir: DIR/slots/N/store. Slots that exist on disk, in order of
// number.
std::vector<int> SlotsIn(const std::string& dir);
std::string StorePath(const std::string& dir, int slot);

}  // namespace holdfast::storage
