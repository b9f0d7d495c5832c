#include "runtime/collectives/communicator.h"

#include <algorithm>

#include "runtime/base/text.h"

namespace holdfast {

std::vector<int64_t> Communicator::Slices(int64_t count, int64_t grain, int world_size) {
  // Whole grains are dealt as evenly as possible, the first ranks getting one more; the last grain
  // may be short.
  const int64_t grains = (count + grain - 1) / grain;
  std::vector<int64_t> borders(static_cast<size_t>(world_size) + 1);
  for (int r = 0; r <= world_size; ++r) {
    const int64_t whole = grains / world_size, extra = grains % world_size;
    borders[r] = std::min(count, (r * whole + std::min<int64_t>(r, extra)) * grain);
  }
  return borders;
}

absl::Status Communicator::CheckBorders(std::span<const int64_t> borders, size_t count,
                                        int world_size) {
  const bool right = borders.size() == static_cast<size_t>(world_size) + 1 &&
                     borders.front() == 0 && borders.back() == static_cast<int64_t>(count) &&
                     std::is_sorted(borders.begin(), borders.end());
  if (right) return absl::OkStatus();
  return absl::InvalidArgumentError(
      Cat("borders must be ", world_size + 1, " numbers that rise from 0 to ", count));
}

}  // namespace holdfast
