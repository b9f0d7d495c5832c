// The branches of a run. A deliberate departure from what the run would have computed (a changed
// schedule that somebody accepted) opens a branch: number, the step at which it forked off the one
// before it, and the schedule that holds from the next step on. A lineage is the whole chain,
// oldest first; branch 0 forks at step 0.
//
// By purity (PROTOCOL.md) a state is a function of (settings, data, lineage, step): two lineages of
// equal contents are the same history, whoever wrote them. A step that is taken again before the
// newest fork has the schedule that it had the first time. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::rendezvous {

struct Fork {
  uint32_t branch = 0;
  int64_t step = 0;      // the last step that is shared with the branch before
  std::string schedule;  // "key = value" lines; opaque here
  friend bool operator==(const Fork&, const Fork&) = default;
};
using Lineage = std::vector<Fork>;

// More accepted changes than this are refused: the lineage stands in every join and every store.
inline constexpr size_t kMaxBranches = 100;

// 0 when nothing is known.
uint32_t NewestBranch(const Lineage& lineage);
// `older` is the beginning of `newer`, or equal to it.
bool IsPrefix(const Lineage& older, const Lineage& newer);
// The last step of `branch` that belongs to this history: -1 for a branch that does not,
// INT64_MAX for the newest. An empty lineage is branch 0 alone.
int64_t LastStepOn(const Lineage& lineage, uint32_t branch);
// Index of the fork whose schedule holds for step `step` (1 is the first step of a run).
size_t RulerOf(const Lineage& lineage, int64_t step);

// For a store's mark; text. Decode: kDataLoss.
std::string EncodeLineage(const Lineage& lineage);
absl::StatusOr<Lineage> DecodeLineage(std::string_view text);
// "branch 1 from step 100, branch 2 from step 250", for messages.
std::string ToString(const Lineage& lineage);

}  // namespace holdfast::rendezvous
