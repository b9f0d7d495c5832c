#include "runtime/session/shares.h"

#include <cstddef>

namespace holdfast {

Deal DealMicroBatches(int64_t micro_batches, const std::vector<std::vector<bool>>& held,
                      int rotate) {
  const int world = static_cast<int>(held.size());
  Deal deal;
  deal.compute.resize(world);
  deal.reset.assign(world, false);
  std::vector<bool> taken(micro_batches, false);
  std::vector<int64_t> load(world, 0);
  for (int r = 0; r < world; ++r) {
    bool twice = false;
    for (int64_t j = 0; j < micro_batches; ++j) twice |= held[r][j] && taken[j];
    deal.reset[r] = twice;
    if (twice) continue;
    for (int64_t j = 0; j < micro_batches; ++j) {
      if (!held[r][j]) continue;
      taken[j] = true;
      ++load[r];
    }
  }
  // Each goes to the rank with the least to do, the first of them in (rotated) order: even, and
  // ascending for each rank.
  for (int64_t j = 0; j < micro_batches; ++j) {
    if (taken[j]) continue;
    int best = rotate % world;
    for (int i = 0; i < world; ++i) {
      const int r = (i + rotate) % world;
      if (load[r] < load[best]) best = r;
    }
    deal.compute[best].push_back(static_cast<int32_t>(j));
    ++load[best];
  }
  return deal;
}

}  // namespace holdfast
