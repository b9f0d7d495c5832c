// Digests. Three kinds, for three uses:
//   StateDigest   64 bits over 32-bit words with positions; parts add up (mod 2^64), so any split
//   of the state gives the
//                 same root. Defined here for host and device; the tuned pass over an array is
//                 DigestWords below.
//   Hash64/128    XXH3 over bytes: finds damage, not malice.
//   HmacSha256    authentication with a secret.
// All functions are pure and may be called from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/hd.h"

namespace holdfast {

// A bijective 64-bit mixer (the finaliser of splitmix64, Steele, Lea, Flood 2014).
HOLDFAST_HD inline uint64_t Mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Words are digested in blocks of this many; a part of a region may be digested alone when it
// starts on a block border.
inline constexpr int64_t kDigestBlockWords = 1024;

// The odd key of position `i` inside a block (0 <= i < kDigestBlockWords).
HOLDFAST_HD inline uint64_t DigestKey(uint64_t i) { return Mix64(i ^ 0x5851F42D4C957F2Dull) | 1; }

// The digest of one block from its keyed sum  s = sum_i word[i] * DigestKey(i)  (mod 2^64).
HOLDFAST_HD inline uint64_t DigestBlock(uint64_t keyed_sum, uint64_t region, uint64_t block) {
  return Mix64(keyed_sum ^ Mix64(region * 0xD1342543DE82EF95ull ^ Mix64(block)));
}

// Sum of the block digests of words[0..count) of region `region`, where words[0] is the region's
// word `first` (first % kDigestBlockWords == 0). A last block that is short counts its missing
// words as zero. DigestWords(whole) == DigestWords(part 1) + DigestWords(part 2) for any cut on a
// block border.
uint64_t DigestWords(const void* words, int64_t count, uint64_t region, int64_t first);

uint64_t Hash64(std::string_view bytes, uint64_t seed = 0);
struct Hash128 {
  uint64_t low = 0, high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};
Hash128 Hash128Of(const void* data, size_t size);

// Lower-case hexadecimal, 16 digits.
std::string Hex64(uint64_t value);
std::string Hex(std::string_view bytes);
// False when `text` is not exactly 16 hexadecimal digits.
bool ParseHex64(std::string_view text, uint64_t* value);

std::array<uint8_t, 32> HmacSha256(std::string_view key, std::string_view message);
// Compares in time that does not depend on the contents.
bool EqualInConstantTime(std::string_view a, std::string_view b);

// Bytes from the kernel's random generator: for secrets, nonces and ids only, never for anything
// that moves the state.
std::string RandomBytes(size_t count);
uint64_t RandomNonce();  // never 0

}  // namespace holdfast
