// Philox4x32-10, a counter-based generator (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
// as easy as 1, 2, 3", SC 2011). Element i of a stream is lane i % 4 of block i / 4: any split of
// an array draws the same values.
#pragma once

#include "kernels/math/scalar.h"

namespace holdfast::kernels {

struct Philox4 {
  uint32_t lane[4] = {0, 0, 0, 0};
};

HOLDFAST_HD inline Philox4 Philox(Philox4 counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter.lane[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter.lane[2];
    const Philox4 next = {
        {static_cast<uint32_t>(b >> 32) ^ counter.lane[1] ^ key0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ counter.lane[3] ^ key1, static_cast<uint32_t>(a)}};
    counter = next;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Block `block` of the stream of `key`. The upper counter half is free for a caller that needs
// several streams.
HOLDFAST_HD inline Philox4 PhiloxBlock(uint64_t key, uint64_t block, uint64_t stream = 0) {
  const Philox4 counter = {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                            static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)}};
  return Philox(counter, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

// Uniform in [0, 1): 24 bits, every value exact.
HOLDFAST_HD inline float UniformOf(uint32_t word) {
  return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f;
}

// An event of probability `keep` is word < KeepThreshold(keep).
HOLDFAST_HD inline uint64_t KeepThreshold(float keep) {
  return static_cast<uint64_t>(static_cast<double>(keep) * 0x1p32);
}

// Two independent values of N(0, 1) from two words (Box, Muller 1958); |value| < 5.9.
HOLDFAST_HD inline void NormalPair(uint32_t word0, uint32_t word1, float* first, float* second) {
  const float u = (static_cast<float>(static_cast<int32_t>(word0 >> 8)) + 0.5f) * 0x1p-24f;
  const float radius = sqrtf(-2.0f * Log(u));
  float sine, cosine;
  SinCosTurn(UniformOf(word1), &sine, &cosine);
  *first = radius * cosine;
  *second = radius * sine;
}

}  // namespace holdfast::kernels
