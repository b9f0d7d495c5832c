// Which state a new generation starts from, and who reads which chunks of a checkpoint. Pure
// functions. The rules are those of PROTOCOL.md ("Where the state comes from").
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/record.h"

namespace holdfast::rendezvous {

struct SourceChoice {
  enum class Kind : uint8_t { kUse, kWait, kRefuse };
  Kind kind = Kind::kUse;
  std::string why;  // kWait, kRefuse: for people. kUse: what was passed over, may be empty
  Source source = Source::kFresh;
  uint32_t branch = 0;
  int64_t step = 0;
  uint64_t digest = 0;
  HeldCheckpoint checkpoint;  // kCheckpoint; its ranges are the union over all joiners
};

// How a kRefuse's text begins. Whoever is refused so ends with another exit code than one whose
// settings differ.
inline constexpr char kNoUsableState[] = "no usable state: ";

// `joiners`: every eligible process of the round, member or not, spares included. `in_generation`:
// ids of the newest sealed generation. `recorded_progress`: highest step that the record proves.
// `may_wait`: restore_wait is not over yet.
SourceChoice ChooseSource(const std::vector<const Waiting*>& joiners,
                          const std::set<std::string>& in_generation, int64_t recorded_progress,
                          bool may_wait);

bool HoldsState(const Offer& offer, const SourceChoice& choice);
// The ranges of `checkpoint` that `offer` can read; empty when it holds none of it.
std::vector<std::pair<int64_t, int64_t>> HeldRanges(const Offer& offer,
                                                    const HeldCheckpoint& checkpoint);
bool SameCheckpoint(const HeldCheckpoint& a, const HeldCheckpoint& b);
// True when the union of all `ranges` is [0, chunks).
bool Covers(std::vector<std::pair<int64_t, int64_t>> ranges, int64_t chunks);

// Gives every chunk of [0, chunks) that somebody holds to exactly one of its holders; the loads are
// as even as the holdings allow when each stretch is dealt to its least loaded holders, scarce
// stretches first. held[i]: what reader i can read. Result: ascending, merged ranges per reader.
std::vector<std::vector<std::pair<int64_t, int64_t>>> AssignRanges(
    const std::vector<std::vector<std::pair<int64_t, int64_t>>>& held, int64_t chunks);

}  // namespace holdfast::rendezvous
