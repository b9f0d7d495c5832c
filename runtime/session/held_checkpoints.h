// The checkpoints that one worker can read: in its own slot's store, and in stores of this machine
// that have no worker now (the run was resumed with fewer). What was found damaged is not offered
// again by this process. Main thread only.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rendezvous/membership.h"
#include "storage/catalog.h"

namespace holdfast {

// The mark under which a slot's store keeps the run's lineage.
inline constexpr char kBranchesMark[] = "branches";

class HeldCheckpoints {
 public:
  // own: this worker's store. Slots >= local_workers are shared out among the workers: slot s is
  // read by worker s % local_workers.
  static absl::StatusOr<std::unique_ptr<HeldCheckpoints>> Open(const std::string& dir,
                                                               const std::string& run, int slot,
                                                               int local_workers,
                                                               storage::SlotStore* own);
  ~HeldCheckpoints();

  // What to offer in a round, newest last. `fingerprint`: manifests of other bits are not offered,
  // nor those of a history that `lineage` has left behind. Reads keys only.
  std::vector<rendezvous::HeldCheckpoint> Offers(const storage::ChunkGrid& grid,
                                                 std::string_view fingerprint,
                                                 const rendezvous::Lineage& lineage = {});
  // The longest record of the run's branches in the stores of this machine that have no worker.
  rendezvous::Lineage OrphansLineage() const;
  // Highest step that any manifest here proves, of whatever fingerprint; 0 when there is none.
  int64_t progress() const { return progress_; }

  absl::StatusOr<storage::Manifest> ManifestOf(const storage::CheckpointId& id) const;
  // kDataLoss / kNotFound: no store here has a good copy.
  absl::Status Read(const storage::CheckpointId& id, const storage::ChunkGrid& grid,
                    int64_t ordinal, std::span<uint32_t> out) const;
  // Not offered any more.
  void MarkBad(const storage::CheckpointId& id, std::string_view why) { catalog_.MarkBad(id, why); }

 private:
  explicit HeldCheckpoints(storage::CatalogOptions options) : catalog_(std::move(options)) {}
  std::vector<std::unique_ptr<storage::SlotStore>> orphans_;
  std::vector<std::string> scratch_;
  storage::Catalog catalog_;  // after the stores: it reads them
  std::vector<storage::Manifest> manifests_;
  int64_t progress_ = 0;
};

}  // namespace holdfast
