// The segment of one member in one generation: what it tells the others, and room for what it lends
// them. Written by its owner alone; all others have it mapped for reading only. Made anew for every
// generation, so that nothing in it is ever left over.
//
// A member *posts* an operation: what it is, and where its input lies. Input that lies in a
// SharedBlock that was given to the build is read there by the others; any other input is *staged*:
// copied piece by piece through two halves of the segment. The input is read in rounds, pieces of a
// fixed size; `rounds` says how many of them can be read.
//
// All counters only grow. Every store and load of them is sequentially consistent: a reader who
// sees a counter sees what was written before it, and the pair (counter, asleep) cannot be missed
// by both sides at once.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "runtime/collectives/communicator.h"
#include "runtime/collectives/frame.h"
#include "runtime/collectives/shared_block.h"

namespace holdfast {

inline constexpr uint64_t kShmMagic = 0x314D48534648;  // "HFSHM1"
inline constexpr int kShmPosts = 8;                    // operations posted and not yet read by all
inline constexpr int64_t kShmHalfBytes = 1 << 20;
inline constexpr int64_t kShmPieceBytes = 256 << 10;
inline constexpr size_t kShmProofBytes = 32;
using ShmProof = std::array<char, kShmProofBytes>;

// How far a member has read: everything before round `round` of step `step`.
inline constexpr uint64_t ShmMark(uint64_t step, uint64_t round) { return step << 24 | round; }

struct alignas(64) ShmPost {
  std::atomic<uint64_t> step{0};    // written last: the rest is this step's
  std::atomic<uint32_t> rounds{0};  // that can be read
  int32_t block = -1;               // of the owner's blocks, or -1: staged
  int64_t offset = 0;               // of the input in the block
  uint32_t first_slot = 0;          // staged: round t lies in half (first_slot + t) % 2
  FrameHeader header;               // what the operation is
};

struct ShmControl {
  uint64_t magic = kShmMagic;
  uint64_t nonce = 0;  // of the generation
  int32_t rank = 0, world = 0;
  ShmProof proof = {};  // random; told to nobody but through this memory
  // Of every peer the proof that was found in its segment: shows it that this member maps it.
  std::array<ShmProof, TcpEndpoint::kMaxWorldSize> seen = {};
  alignas(64) std::atomic<uint32_t> left{0};    // not 0: the owner's buffers are its own again
  alignas(64) std::atomic<uint32_t> asleep{0};  // odd: ring to wake the owner
  alignas(64) std::atomic<uint64_t> read{ShmMark(1, 0)};
  std::array<ShmPost, kShmPosts> posts;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

inline constexpr int64_t kShmControlBytes = 8192;
static_assert(sizeof(ShmControl) <= kShmControlBytes);
inline constexpr int64_t kShmSegmentBytes = kShmControlBytes + 2 * kShmHalfBytes;

// Own one: ready to be shared. kUnimplemented where the system cannot.
absl::StatusOr<SharedBlock> MakeShmSegment(uint64_t nonce, int rank, int world);
inline ShmControl* ControlOf(const SharedBlock& segment) { return segment.as<ShmControl>(); }

// A peer's: mapped, and its head is that of this generation and rank.
absl::StatusOr<Mapping> MapShmSegment(int fd, uint64_t nonce, int rank, int world);
inline const ShmControl* ControlOf(const Mapping& segment) {
  return reinterpret_cast<const ShmControl*>(segment.data());
}

}  // namespace holdfast
