// How the members of a new generation come to an NCCL communicator: out of a former one that has
// lost members (ncclCommShrink), or anew under a fresh unique id. A pure function of what all
// members know of all, so that all decide alike.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace holdfast {

// What a member says of itself. Exchanged over the links as it lies in memory.
struct JoinRow {
  static constexpr uint32_t kMagic = 0x4a4e4331;  // "1CNJ": of this layout
  uint32_t magic = kMagic;
  int32_t nccl_version = 0;        // as ncclGetVersion has it: 22809
  uint64_t parent_generation = 0;  // of the communicator that it still has; 0: none
  int32_t parent_rank = -1, parent_world = 0;
  // It is as NCCL left it when a member was lost: no error of NCCL's own, nothing pending.
  uint8_t parent_healthy = 0;
  uint8_t can_shrink = 0;  // this NCCL has ncclCommShrink
  uint8_t unused[6] = {};
};
static_assert(sizeof(JoinRow) == 32);

struct JoinPlan {
  bool shrink = false;
  std::vector<int> excluded;  // ranks of the parent that are not with us, in order
  std::string why;            // for people
};

// The ranks of the new generation are the indices. kFailedPrecondition: two NCCL versions, both
// named; kAborted: rows of another layout.
[[nodiscard]] absl::Status CheckJoinRows(std::span<const JoinRow> rows);
JoinPlan DecideJoin(std::span<const JoinRow> rows);

// 22809 -> "2.28.9".
std::string NcclVersionText(int version);

}  // namespace holdfast
