// A keyed permutation of 0..size-1 that stores no list: a balanced Feistel network over the
// smallest even number of bits that holds the range, walked along its cycle until it lands inside
// (Black, Rogaway 2002, "Ciphers with arbitrary finite domains"). Fewer than four rounds of walking
// on average. Pure and immutable: any thread.
//
// For shuffling, not for secrecy. Part of the result of a run: changing it changes every sample
// order.
#pragma once

#include <cassert>
#include <cstdint>

#include "runtime/base/digest.h"

namespace holdfast {

class Permutation {
 public:
  // 1 <= size <= 2^62.
  Permutation(uint64_t size, uint64_t key) : size_(size) {
    assert(size >= 1 && size <= (uint64_t{1} << 62));
    while ((uint64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
    mask_ = (uint64_t{1} << half_bits_) - 1;
    for (int r = 0; r < kRounds; ++r) keys_[r] = Mix64(key + static_cast<uint64_t>(r) * kStep);
  }

  // Where `index` goes; 0 <= index < size.
  uint64_t operator()(uint64_t index) const {
    assert(index < size_);
    uint64_t x = index;
    do {
      x = Encrypt(x);
    } while (x >= size_);
    return x;
  }
  uint64_t size() const { return size_; }

 private:
  static constexpr int kRounds = 6;
  static constexpr uint64_t kStep = 0xA0761D6478BD642Full;

  uint64_t Encrypt(uint64_t x) const {
    uint64_t left = x >> half_bits_, right = x & mask_;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (Mix64(right ^ key) & mask_);
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  uint64_t size_;
  int half_bits_ = 1;
  uint64_t mask_ = 0;
  uint64_t keys_[kRounds] = {};
};

// The permutation of the samples of one epoch.
inline Permutation EpochPermutation(uint64_t size, uint64_t seed, uint64_t epoch) {
  return Permutation(size, Mix64(Mix64(seed) ^ (epoch * 0xE7037ED1A0B428DBull)));
}

}  // namespace holdfast
