#include "runtime/collectives/communicator.h"

#include <algorithm>

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

}  // namespace holdfast
