#include "runtime/session/best_checkpoint.h"

#include <cmath>
#include <tuple>
#include <utility>

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

bool BestTracker::BetterThanBest(const Candidate& c) const {
  return !best_.known || best_.items != c.items || c.loss < best_.loss;
}

bool BestTracker::Better(double loss, int64_t items) const {
  if (!std::isfinite(loss) || !BetterThanBest({0, loss, items})) return false;
  return candidate_.step < 0 || candidate_.items != items || loss < candidate_.loss;
}

void BestTracker::Propose(int64_t step, double loss, int64_t items) {
  if (candidate_.step >= 0) former_ = candidate_;
  candidate_ = {step, loss, items};
}

bool BestTracker::Saved(const storage::CheckpointId& id) {
  for (Candidate* c : {&former_, &candidate_}) {
    if (c->step != id.step) continue;
    const Candidate saved = std::exchange(*c, Candidate());
    if (!BetterThanBest(saved)) return false;
    best_ = {true, id, saved.loss, saved.items};
    return true;
  }
  return false;
}

void BestTracker::Failed(int64_t step) {
  for (Candidate* c : {&former_, &candidate_}) {
    if (c->step == step) *c = {};
  }
}

void BestTracker::Merge(const BestCheckpoint& best, const Candidate& candidate) {
  best_ = BetterOf(best_, best);
  // Of one step and one data there is one loss.
  if (candidate.step > candidate_.step) candidate_ = candidate;
}

void BestTracker::BeginAt(int64_t step, const rendezvous::Lineage& lineage) {
  if (best_.known && best_.id.step > rendezvous::LastStepOn(lineage, best_.id.branch)) best_ = {};
  former_ = {};  // with the generation its save was given up
  if (candidate_.step != step || !BetterThanBest(candidate_)) candidate_ = {};
}

}  // namespace holdfast
