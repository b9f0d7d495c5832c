#include "runtime/collectives/shm_segment.h"

#include <algorithm>
#include <new>

#include "runtime/base/digest.h"
#include "runtime/base/status.h"

namespace holdfast {

absl::StatusOr<SharedBlock> MakeShmSegment(uint64_t nonce, int rank, int world) {
  HF_ASSIGN_OR_RETURN(SharedBlock segment, SharedBlock::Create(kShmSegmentBytes, true));
  if (segment.fd() < 0)
    return absl::UnimplementedError("this system has no sealed memory files (Linux 5.1)");
  ShmControl* control = new (segment.data()) ShmControl;
  control->nonce = nonce;
  control->rank = rank;
  control->world = world;
  const std::string proof = RandomBytes(kShmProofBytes);
  std::copy(proof.begin(), proof.end(), control->proof.begin());
  return segment;
}

absl::StatusOr<Mapping> MapShmSegment(int fd, uint64_t nonce, int rank, int world) {
  HF_ASSIGN_OR_RETURN(Mapping segment, Mapping::ForReading(fd, kShmSegmentBytes));
  const ShmControl* control = ControlOf(segment);
  if (control->magic != kShmMagic || control->nonce != nonce || control->rank != rank ||
      control->world != world) {
    return absl::InvalidArgumentError("its segment is not that of this generation and rank");
  }
  return segment;
}

}  // namespace holdfast
