// Ring algorithms as plans: for one member, the chunks that it sends to its successor and receives
// from its predecessor, in order, and what each has to wait for. Pure; the communicator only
// carries a plan out. The chunk grid depends on sizes alone, never on timing, so that integer and
// fp32 results are the same in every run with the same world size.
//
// Reduce-scatter: the slices travel round the ring, each member adding its own part on the way
// (Patarasuk, Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations"). A
// slice is cut into rounds of kRoundBytes, so that two scratch halves of that size are enough for
// any size: what was received and added in one step is what is sent in the next one. No deadlock:
// receiving in step t waits at most for own sends of step t - 1, which wait at most for the
// successor's receiving in step t - 1, down to step 0, which waits for nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace holdfast {

inline constexpr int64_t kChunkBytes = 256 << 10;  // one frame
inline constexpr int64_t kRoundBytes = 1 << 20;    // a multiple of kChunkBytes
inline constexpr size_t kScratchBytes = 2 * kRoundBytes;

enum class Arithmetic : uint8_t { kNone, kInt64, kFloat };

struct SendChunk {
  const std::byte* data = nullptr;
  uint32_t bytes = 0;
  uint32_t need_received = 0;  // so many chunks must have been received (and added) before
};

struct ReceiveChunk {
  std::byte* place = nullptr;  // the payload goes here
  uint32_t bytes = 0;
  uint32_t need_sent = 0;  // so many chunks must have been sent before `place` is free
  Arithmetic add = Arithmetic::kNone;
  const std::byte* addend = nullptr;  // then sum = place + addend
  std::byte* sum = nullptr;           // may be `place` or `addend`
};

struct RingPlan {
  std::vector<SendChunk> sends;
  std::vector<ReceiveChunk> receives;
};

struct RingPosition {
  int rank = 0, world = 1;
};

// All borders in bytes, world + 1 of them, multiples of the element size. `scratch` has
// kScratchBytes. out = sum of everybody's slice `rank`; `out` and `in` do not overlap.
RingPlan PlanReduceScatter(RingPosition at, std::span<const int64_t> borders, const std::byte* in,
                           std::byte* out, std::byte* scratch, Arithmetic add);
RingPlan PlanAllGather(RingPosition at, std::span<const int64_t> borders, std::byte* data);
// In place: reduce-scatter of int64 over `borders`, then all-gather.
RingPlan PlanAllReduce(RingPosition at, std::span<const int64_t> borders, std::byte* data,
                       std::byte* scratch);
RingPlan PlanBroadcast(RingPosition at, int root, std::byte* data, int64_t bytes);

// sum[i] = place[i] + addend[i] (int64: mod 2^64).
void AddChunk(const ReceiveChunk& chunk);
void AddWords(Arithmetic add, std::byte* sum, const std::byte* a, const std::byte* b, size_t bytes);

}  // namespace holdfast
