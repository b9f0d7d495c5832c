// Who computes which micro-batch: a pure function of what every rank of a generation holds already.
// Equal on all ranks, because all of them computed it from the same exchange. It never moves the
// result, only the time.
#pragma once

#include <cstdint>
#include <vector>

namespace holdfast {

struct Deal {
  std::vector<std::vector<int32_t>> compute;  // per rank: micro-batches to compute now, ascending
  std::vector<bool>
      reset;  // per rank: its sums hold a micro-batch that a lower rank holds too: drop all
};

// held[r][j]: rank r's sums contain micro-batch j of the step under way. `rotate` moves every share
// by so many ranks (a recheck is computed by another worker).
Deal DealMicroBatches(int64_t micro_batches, const std::vector<std::vector<bool>>& held,
                      int rotate = 0);

}  // namespace holdfast
