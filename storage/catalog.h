// The checkpoints of one machine: several slot stores seen as one. Which checkpoints exist, which
// chunks of them lie here, reading a chunk from whichever store has a good copy, and the tables
// behind `holdfast checkpoint list|verify`.
//
// Threads: Add and AddSlots first, by one thread; the rest from any thread. A store that is added
// keeps living and may be written meanwhile: every call looks anew. Secondaries show what was there
// when they were opened. Errors: as SlotStore's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "storage/checkpoint_store.h"

namespace holdfast::storage {

struct CatalogOptions {
  std::string run = {};      // stores of other runs are left out, with a warning; empty: all
  std::string machine = {};  // chunks that a manifest places on other machines are not missing
                             // here; empty: all belong here
};

struct CheckpointRow {
  CheckpointId id;
  std::string run;
  int32_t world_size = 0;
  int64_t bytes = 0;  // of all shards, as the manifest says
  int64_t chunks = 0, here = 0, elsewhere = 0;
  bool finished = false;  // a manifest was found
  bool complete = false;  // finished, and every chunk is here or elsewhere
  bool damaged = false;
  std::string note;  // for people: what is missing or damaged, and where
};

class Catalog {
 public:
  explicit Catalog(CatalogOptions options) : options_(std::move(options)) {}
  ~Catalog();
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;

  // A store that the caller keeps open at least as long as the catalog lives.
  void Add(int slot, const SlotStore* store);
  // Opens all slots of `dir` that were not added, as secondaries. A slot that cannot be opened
  // becomes a problem, no error.
  [[nodiscard]] absl::Status AddSlots(const std::string& dir);
  // Slots that could not be opened, one text each.
  const std::vector<std::string>& problems() const { return problems_; }

  // Manifests of checkpoints that are not marked bad, each once, oldest first by (branch, step,
  // generation).
  std::vector<Manifest> Offered() const;
  // Chunk ranges that lie in any of the stores (not verified); nothing of a checkpoint marked bad.
  std::vector<std::pair<int64_t, int64_t>> Held(const CheckpointId& id) const;
  // From the first store with a good copy. When all copies here are damaged the checkpoint is
  // marked bad: kDataLoss.
  absl::Status ReadChunk(const CheckpointId& id, const ChunkGrid& grid, int64_t ordinal,
                         std::span<uint32_t> out) const;
  // The values of this mark in the stores that have it, in order of slots.
  std::vector<std::string> Marks(std::string_view key) const;
  // Until the process ends. Nothing on disk changes.
  void MarkBad(const CheckpointId& id, std::string_view why) const;
  bool IsBad(const CheckpointId& id) const;

  // Newest last; also unfinished saves. Reads manifests only.
  std::vector<CheckpointRow> List() const;
  // Reads every byte of every copy; `row` is called once per checkpoint. OK when every finished
  // checkpoint is complete and undamaged and every store could be read.
  absl::Status Verify(const std::function<void(const CheckpointRow&)>& row) const;

 private:
  struct Source {
    int slot;
    const SlotStore* store;
  };
  CheckpointRow Row(const CheckpointId& id) const;

  const CatalogOptions options_;
  std::vector<Source> sources_;  // by slot
  std::vector<std::unique_ptr<SlotStore>> owned_;
  std::vector<std::string> problems_;
  std::string scratch_;
  mutable std::mutex mutex_;
  mutable std::map<CheckpointId, std::string> bad_;
};

// "branch 0, step 100, generation 3: 3 workers, 36 chunks, 4.6 MB, ok"
std::string ToString(const CheckpointRow& row);

}  // namespace holdfast::storage
