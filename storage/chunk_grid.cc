#include <algorithm>
#include <cassert>

#include "runtime/base/bytes.h"
#include "runtime/base/digest.h"
#include "runtime/base/text.h"
#include "storage/checkpoint_store.h"

namespace holdfast::storage {

std::string ToString(const CheckpointId& id) {
  return Cat("branch ", id.branch, ", step ", id.step, ", generation ", id.generation);
}

ChunkGrid::ChunkGrid(std::vector<Region> regions) : regions_(std::move(regions)) {
  ByteWriter names;
  for (size_t r = 0; r < regions_.size(); ++r) {
    assert(regions_[r].words >= 0);
    names.PutString(regions_[r].name);
    names.Put<int64_t>(regions_[r].words);
    for (int64_t first = 0; first < regions_[r].words; first += kChunkWords) {
      const int64_t words = std::min(kChunkWords, regions_[r].words - first);
      chunks_.push_back({static_cast<int64_t>(r), first, words});
      ends_.push_back(total_words_ += words);
    }
  }
  digest_ = Hash64(names.bytes());
}

std::pair<int64_t, int64_t> ChunkGrid::Owned(int rank, int world_size) const {
  assert(world_size > 0 && rank >= 0 && rank < world_size);
  // A chunk belongs to the rank in whose equal share of the words its middle lies. The middles
  // ascend, so that the runs are contiguous and no share is off by more than one chunk.
  const auto cut = [&](int64_t part) {
    const auto reached = [&](int64_t ordinal) {
      const __int128 twice_middle =
          2 * static_cast<__int128>(ends_[ordinal]) - chunks_[ordinal].words;
      return twice_middle * world_size >= 2 * static_cast<__int128>(part) * total_words_;
    };
    int64_t low = 0, high = chunks();
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      (reached(middle) ? high : low) = reached(middle) ? middle : middle + 1;
    }
    return low;
  };
  return {rank == 0 ? 0 : cut(rank), rank + 1 == world_size ? chunks() : cut(rank + 1)};
}

int64_t ChunkGrid::WordsIn(int64_t first, int64_t last) const {
  assert(0 <= first && first <= last && last <= chunks());
  if (first == last) return 0;
  return ends_[last - 1] - (first == 0 ? 0 : ends_[first - 1]);
}

}  // namespace holdfast::storage
