#include "runtime/session/held_checkpoints.h"

#include <algorithm>
#include <filesystem>

#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/session/state.h"

namespace holdfast {

absl::StatusOr<std::unique_ptr<HeldCheckpoints>> HeldCheckpoints::Open(const std::string& dir,
                                                                       const std::string& run,
                                                                       int slot, int local_workers,
                                                                       storage::SlotStore* own) {
  storage::CatalogOptions options;
  options.run = run;
  std::unique_ptr<HeldCheckpoints> held(new HeldCheckpoints(std::move(options)));
  held->catalog_.Add(slot, own);
  for (const int s : storage::SlotsIn(dir)) {
    if (s < local_workers || s % local_workers != slot) continue;
    const std::string scratch = Cat(dir, "/slots/", slot, "/reading-", s);
    std::error_code error;
    std::filesystem::create_directories(scratch, error);
    auto store = storage::SlotStore::OpenSecondary(storage::StorePath(dir, s), scratch);
    if (!store.ok()) {
      LogWarning("the store of slot ", s,
                 " (no worker has it now) cannot be read: ", std::string(store.status().message()));
      continue;
    }
    held->scratch_.push_back(scratch);
    held->catalog_.Add(s, store->get());
    held->orphans_.push_back(*std::move(store));
  }
  return held;
}

HeldCheckpoints::~HeldCheckpoints() {
  orphans_.clear();
  std::error_code error;
  for (const std::string& scratch : scratch_) std::filesystem::remove_all(scratch, error);
}

std::vector<rendezvous::HeldCheckpoint> HeldCheckpoints::Offers(
    const storage::ChunkGrid& grid, std::string_view fingerprint,
    const rendezvous::Lineage& lineage) {
  std::vector<rendezvous::HeldCheckpoint> offers;
  manifests_.clear();
  for (storage::Manifest& m : catalog_.Offered()) {
    progress_ = std::max(progress_, m.id.step);
    if (m.fingerprint != fingerprint || m.regions != grid.regions()) continue;
    if (m.id.step > rendezvous::LastStepOn(lineage, m.id.branch)) continue;
    rendezvous::HeldCheckpoint offer;
    offer.branch = m.id.branch;
    offer.step = m.id.step;
    offer.generation = m.id.generation;
    offer.state_digest = FullDigest(m.state_digest, m.scalars);
    offer.chunks = grid.chunks();
    offer.ranges = catalog_.Held(m.id);
    for (const storage::ShardInfo& s : m.shards) {
      if (std::find(offer.hosts.begin(), offer.hosts.end(), s.machine) == offer.hosts.end()) {
        offer.hosts.push_back(s.machine);
      }
    }
    offers.push_back(std::move(offer));
    manifests_.push_back(std::move(m));
  }
  return offers;
}

rendezvous::Lineage HeldCheckpoints::OrphansLineage() const {
  rendezvous::Lineage longest;
  for (const auto& store : orphans_) {
    const auto mark = store->GetMark(kBranchesMark);
    if (!mark.ok()) continue;
    const auto lineage = rendezvous::DecodeLineage(*mark);
    if (!lineage.ok()) {
      LogWarning("a store that no worker has now: ", std::string(lineage.status().message()));
    } else if (lineage->size() > longest.size()) {
      longest = *lineage;
    }
  }
  return longest;
}

absl::StatusOr<storage::Manifest> HeldCheckpoints::ManifestOf(
    const storage::CheckpointId& id) const {
  for (const storage::Manifest& m : manifests_) {
    if (m.id == id) return m;
  }
  return absl::NotFoundError(Cat("no manifest of ", storage::ToString(id), " here"));
}

absl::Status HeldCheckpoints::Read(const storage::CheckpointId& id, const storage::ChunkGrid& grid,
                                   int64_t ordinal, std::span<uint32_t> out) const {
  return catalog_.ReadChunk(id, grid, ordinal, out);
}

}  // namespace holdfast
