// The checkpoint with the smallest held-out loss, which stays beside the newest ones (--keep-best).
// An evaluation and a checkpoint belong together only when they are of one step: a state that
// evaluates better than all before is a *candidate*, its own step is saved, and when that
// checkpoint counts ("saved" in the control table) it is the *best*.
//
// Everything here is a pure function of what all ranks see alike: evaluations are sums that all
// have reduced, "saved" is a verdict, and at the beginning of a generation all merge what all know.
// So all ranks hold the same record, each writes it into its own store (mark "best"), and no
// message of its own is needed. Main thread only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "rendezvous/lineage.h"
#include "storage/checkpoint_store.h"

namespace holdfast {

inline constexpr char kBestMark[] = "best";

struct BestCheckpoint {
  bool known = false;
  storage::CheckpointId id;
  double loss = 0;    // held-out, mean
  int64_t items = 0;  // that the mean is over: losses over other data cannot be compared

  std::string Encode() const;
  static absl::StatusOr<BestCheckpoint> Decode(std::string_view bytes);  // kDataLoss
  friend bool operator==(const BestCheckpoint&, const BestCheckpoint&) = default;
};

class BestTracker {
 public:
  struct Candidate {
    int64_t step = -1;  // -1: none
    double loss = 0;
    int64_t items = 0;
  };

  // Is a state with this held-out loss better than all before? One over other data begins anew.
  bool Better(double loss, int64_t items) const;
  // The candidate before it stays in mind until its save has come to its end.
  void Propose(int64_t step, double loss, int64_t items);
  // A checkpoint was called saved. True when it was a candidate's: it is the best now.
  bool Saved(const storage::CheckpointId& id);
  // The save of this step has failed.
  void Failed(int64_t step);
  // Takes in what another member (or an own mark) knows; the order does not matter.
  void Merge(const BestCheckpoint& best, const Candidate& candidate);
  // A generation begins with the state of `step`, in this history: a candidate of another step has
  // no state any more, and a checkpoint of a history that was left behind is not the best of this
  // one.
  void BeginAt(int64_t step, const rendezvous::Lineage& lineage);

  const BestCheckpoint& best() const { return best_; }
  const Candidate& candidate() const { return candidate_; }

 private:
  bool BetterThanBest(const Candidate& c) const;
  BestCheckpoint best_;
  Candidate candidate_, former_;  // former_: proposed before, its save may still be under way
};

// Which of two records holds: of equal data the smaller loss, then the older checkpoint; of unequal
// data the later one. Commutative.
BestCheckpoint BetterOf(const BestCheckpoint& a, const BestCheckpoint& b);

}  // namespace holdfast
