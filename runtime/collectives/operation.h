// One queued collective operation of a TCP communicator. Small ones are *direct*: every member
// sends its part to every other at once. Large ones are *bulk*: a ring plan, begun when all members
// have announced that they have queued it. Which of the two is decided from sizes that are equal on
// all members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/collectives/communicator.h"
#include "runtime/collectives/frame.h"
#include "runtime/collectives/ring_plan.h"

namespace holdfast {

enum class OpKind : uint8_t {
  kReduceScatter = 1,
  kReduceScatterFloat,
  kAllReduce,
  kAllGather,
  kBroadcast,
  kBarrier,
  kClose
};

struct Operation {
  OpKind kind = OpKind::kBarrier;
  OpTag tag;
  uint64_t index = 0;
  uint64_t shape = 0;
  bool direct = true;
  int root = 0;
  const std::byte* in = nullptr;  // reduce-scatter only
  std::byte* data = nullptr;      // output, or in place
  std::vector<int64_t> borders;  // bytes, world + 1; all-reduce: equal slices; broadcast: [0, size]

  FrameHeader Header(FrameType type) const;
  // "operation 12 (all-gather, step 3 attempt 0 bucket 1)"
  std::string Text() const;
  // OK when a frame of a peer belongs to this operation; otherwise says what differs.
  absl::Status Match(const FrameHeader& header, const std::string& peer) const;

  // Direct: bytes of this member that `to` gets, and how many bytes come from `from`.
  std::span<const std::byte> DirectPart(RingPosition at, int to) const;
  uint32_t DirectLength(RingPosition at, int from) const;
  // Direct, when all parts are here: puts the result together in rank order. parts[rank of this
  // member] is not used.
  void Finish(RingPosition at, const std::vector<const std::byte*>& parts) const;
  // Bulk.
  RingPlan Plan(RingPosition at, std::byte* scratch) const;
};

// Sets shape and direct from kind, borders and root.
void FixShape(Operation* op, int world);

}  // namespace holdfast
