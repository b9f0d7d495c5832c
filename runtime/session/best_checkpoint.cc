#include "runtime/session/best_checkpoint.h"

#include <cmath>
#include <tuple>

#include "runtime/base/bytes.h"
#include "runtime/base/status.h"

namespace holdfast {

std::string BestCheckpoint::Encode() const {
  ByteWriter w;
  w.Put<uint32_t>(1);  // version
  w.Put(id.branch);
  w.Put(id.step);
  w.Put(id.generation);
  w.Put(loss);
  w.Put(items);
  return w.Take();
}

absl::StatusOr<BestCheckpoint> BestCheckpoint::Decode(std::string_view bytes) {
  ByteReader r(bytes);
  BestCheckpoint best;
  const auto version = r.Get<uint32_t>();
  best.id.branch = r.Get<uint32_t>();
  best.id.step = r.Get<int64_t>();
  best.id.generation = r.Get<uint64_t>();
  best.loss = r.Get<double>();
  best.items = r.Get<int64_t>();
  if (version != 1 || !r.AtEnd() || best.id.step < 0 || !std::isfinite(best.loss))
    return absl::DataLossError("the record of the best checkpoint is damaged");
  best.known = true;
  return best;
}

BestCheckpoint BetterOf(const BestCheckpoint& a, const BestCheckpoint& b) {
  if (!a.known || !b.known) return a.known ? a : b;
  if (a.items != b.items) return std::tie(a.id, a.items) > std::tie(b.id, b.items) ? a : b;
  return std::tie(a.loss, a.id) <= std::tie(b.loss, b.id) ? a : b;
}

bool BestTracker::Better(double loss, int64_t items) const {
  if (!std::isfinite(loss)) return false;
  return !best_.known || best_.items != items || loss < best_.loss;
}

bool BestTracker::Saved(const storage::CheckpointId& id) {
  if (candidate_.step != id.step) return false;
  best_ = {true, id, candidate_.loss, candidate_.items};
  Drop();
  return true;
}

void BestTracker::Merge(const BestCheckpoint& best, const Candidate& candidate) {
  best_ = BetterOf(best_, best);
  // Of one step and one data there is one loss.
  if (candidate.step > candidate_.step) candidate_ = candidate;
}

void BestTracker::BeginAt(int64_t step, const rendezvous::Lineage& lineage) {
  if (best_.known && best_.id.step > rendezvous::LastStepOn(lineage, best_.id.branch)) best_ = {};
  if (candidate_.step != step || !Better(candidate_.loss, candidate_.items)) Drop();
}

}  // namespace holdfast
