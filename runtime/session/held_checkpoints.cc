#include "runtime/session/held_checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "runtime/base/digest.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/session/state.h"

namespace holdfast {
namespace {

// Sorted, overlapping and touching ranges joined.
void Join(std::vector<std::pair<int64_t, int64_t>>& ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<std::pair<int64_t, int64_t>> joined;
  for (const auto& r : ranges) {
    if (!joined.empty() && r.first <= joined.back().second) {
      joined.back().second = std::max(joined.back().second, r.second);
    } else {
      joined.push_back(r);
    }
  }
  ranges = std::move(joined);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HeldCheckpoints>> HeldCheckpoints::Open(const std::string& dir,
                                                                       int slot, int local_workers,
                                                                       storage::SlotStore* own) {
  std::unique_ptr<HeldCheckpoints> held(new HeldCheckpoints());
  held->stores_.push_back(own);
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
    held->stores_.push_back(store->get());
    held->orphans_.push_back(*std::move(store));
  }
  return held;
}

HeldCheckpoints::~HeldCheckpoints() {
  orphans_.clear();
  std::error_code error;
  for (const std::string& scratch : scratch_) std::filesystem::remove_all(scratch, error);
}

std::vector<rendezvous::HeldCheckpoint> HeldCheckpoints::Offers(const storage::ChunkGrid& grid,
                                                                std::string_view fingerprint) {
  std::map<storage::CheckpointId, rendezvous::HeldCheckpoint> found;
  manifests_.clear();
  for (const storage::SlotStore* store : stores_) {
    auto manifests = store->Manifests();
    if (!manifests.ok()) {
      LogWarning("checkpoints of one store cannot be listed: ",
                 std::string(manifests.status().message()));
      continue;
    }
    for (storage::Manifest& m : *manifests) {
      progress_ = std::max(progress_, m.id.step);
      newest_branch_ = std::max(newest_branch_, m.id.branch);
      if (bad_.count(m.id) || m.fingerprint != fingerprint || m.regions != grid.regions()) continue;
      auto ranges = store->Held(m.id);
      if (!ranges.ok()) continue;
      rendezvous::HeldCheckpoint& offer = found[m.id];
      if (offer.chunks == 0) {
        offer.branch = m.id.branch;
        offer.step = m.id.step;
        offer.generation = m.id.generation;
        offer.state_digest = FullDigest(m.state_digest, m.scalars);
        offer.chunks = grid.chunks();
        for (const storage::ShardInfo& s : m.shards) {
          if (std::find(offer.hosts.begin(), offer.hosts.end(), s.machine) == offer.hosts.end()) {
            offer.hosts.push_back(s.machine);
          }
        }
        manifests_.push_back(std::move(m));
      }
      offer.ranges.insert(offer.ranges.end(), ranges->begin(), ranges->end());
    }
  }
  std::vector<rendezvous::HeldCheckpoint> offers;
  for (auto& [id, offer] : found) {
    Join(offer.ranges);
    offers.push_back(std::move(offer));
  }
  return offers;
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
  absl::Status worst = absl::NotFoundError(
      Cat("chunk ", ordinal, " of ", storage::ToString(id), " is in no store here"));
  for (const storage::SlotStore* store : stores_) {
    const absl::Status status = store->ReadChunk(id, grid, ordinal, out);
    if (status.ok()) return status;
    if (!absl::IsNotFound(status)) worst = status;
  }
  return worst;
}

}  // namespace holdfast
