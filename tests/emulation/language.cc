// What the device language's functions do, in terms of the executor.
#include <cstring>

#include "tests/emulation/executor.h"
#include "tests/emulation/simt.h"

namespace holdfast::emulation {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

struct ShuffleLane {
  uint64_t value, result;
  int source;
};
const char* ExchangeShuffle(void* const* lanes) {
  for (int l = 0; l < kLanes; ++l) {
    auto* lane = static_cast<ShuffleLane*>(lanes[l]);
    if (lane == nullptr) continue;
    if (lane->source < 0 || lane->source >= kLanes || lanes[lane->source] == nullptr)
      return "it reads a lane that is not in the mask";
    lane->result = static_cast<const ShuffleLane*>(lanes[lane->source])->value;
  }
  return nullptr;
}

struct BallotLane {
  bool vote;
  unsigned result;
};
const char* ExchangeBallot(void* const* lanes) {
  unsigned votes = 0;
  for (int l = 0; l < kLanes; ++l) {
    const auto* lane = static_cast<const BallotLane*>(lanes[l]);
    if (lane != nullptr && lane->vote) votes |= 1u << l;
  }
  for (int l = 0; l < kLanes; ++l) {
    if (lanes[l] != nullptr) static_cast<BallotLane*>(lanes[l])->result = votes;
  }
  return nullptr;
}

float FloatOfHalf(uint32_t word, int upper) {
  const uint32_t bits = upper != 0 ? word & 0xffff0000u : word << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The fragments of the PTX manual, "Matrix fragments for mma.m16n8k16 with floating point type":
// with group = lane / 4 and pair = lane % 4, a[r] holds row group + 8 (r % 2), columns 2 pair + 8
// (r / 2) and the next; b[r] rows 2 pair + 8 r and the next, column group; d[r] row group + 8 (r /
// 2), column 2 pair + r % 2.
struct MmaLane {
  float* d;
  const uint32_t *a, *b;
};
const char* ExchangeMma(void* const* lanes) {
  double a[16][16], d[16][8] = {};
  double b[16][8];
  for (int l = 0; l < kLanes; ++l) {
    const auto& lane = *static_cast<const MmaLane*>(lanes[l]);
    const int group = l / 4, pair = l % 4;
    for (int r = 0; r < 4; ++r) {
      for (int h = 0; h < 2; ++h)
        a[group + 8 * (r % 2)][2 * pair + 8 * (r / 2) + h] = FloatOfHalf(lane.a[r], h);
    }
    for (int r = 0; r < 2; ++r) {
      for (int h = 0; h < 2; ++h) b[2 * pair + 8 * r + h][group] = FloatOfHalf(lane.b[r], h);
    }
  }
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 16; ++k) {
      const double x = a[i][k];
      for (int j = 0; j < 8; ++j) d[i][j] += x * b[k][j];
    }
  }
  for (int l = 0; l < kLanes; ++l) {
    float* out = static_cast<const MmaLane*>(lanes[l])->d;
    for (int r = 0; r < 4; ++r)
      out[r] = static_cast<float>(out[r] + d[l / 4 + 8 * (r / 2)][2 * (l % 4) + r % 2]);
  }
  return nullptr;
}

struct MatricesLane {
  const MatrixRow* row;
  uint32_t* out;
  bool transpose;
};
const char* ExchangeMatrices(void* const* lanes) {
  for (int l = 0; l < kLanes; ++l) {
    const auto& mine = *static_cast<const MatricesLane*>(lanes[l]);
    for (int m = 0; m < 4; ++m) {
      uint32_t halves[2];
      for (int h = 0; h < 2; ++h) {
        const int row = mine.transpose ? 2 * (l % 4) + h : l / 4;
        const int col = mine.transpose ? l / 4 : 2 * (l % 4) + h;
        halves[h] = static_cast<const MatricesLane*>(lanes[8 * m + row])->row->half[col];
      }
      mine.out[m] = halves[0] | halves[1] << 16;
    }
  }
  return nullptr;
}

}  // namespace

void* DynamicShared() { return Executor::Mine().shared(); }
int Lane() { return Executor::Mine().lane(); }
void Barrier(Site site) { Executor::Mine().Barrier(site); }
void SyncWarp(unsigned mask, Site site) { Executor::Mine().SyncWarp(mask, site); }

void WarpMeeting(unsigned mask, const char* name, Exchange exchange, void* mine, Site site) {
  Executor::Mine().Meet(mask, name, exchange, mine, site);
}

unsigned Ballot(unsigned mask, bool vote, Site site) {
  BallotLane lane{vote, 0};
  WarpMeeting(mask, "__ballot_sync", &ExchangeBallot, &lane, site);
  return lane.result;
}

uint64_t Shuffle(unsigned mask, uint64_t value, int source, Site site) {
  ShuffleLane lane{value, 0, source};
  WarpMeeting(mask, "__shfl_sync", &ExchangeShuffle, &lane, site);
  return lane.result;
}

void MmaBf16M16N8K16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                     const char* file, int line) {
  MmaLane lane{d, a, b};
  WarpMeeting(kAllLanes, "mma.sync", &ExchangeMma, &lane, {file, line});
}

void LoadMatrices(uint32_t (&out)[4], const MatrixRow& row, bool transpose, Site site) {
  MatricesLane lane{&row, out, transpose};
  WarpMeeting(kAllLanes, "ldmatrix", &ExchangeMatrices, &lane, site);
}

}  // namespace holdfast::emulation
