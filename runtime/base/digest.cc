#include "runtime/base/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <xxhash.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>

namespace holdfast {
namespace {

// The keys in two halves: 32 x 32 -> 64 bit products are vector instructions, 32 x 64 ones are not.
struct KeyTable {
  alignas(64) uint32_t low[kDigestBlockWords];
  alignas(64) uint32_t high[kDigestBlockWords];
  KeyTable() {
    for (int64_t i = 0; i < kDigestBlockWords; ++i) {
      const uint64_t key = DigestKey(static_cast<uint64_t>(i));
      low[i] = static_cast<uint32_t>(key);
      high[i] = static_cast<uint32_t>(key >> 32);
    }
  }
};

const KeyTable& Keys() {
  static const KeyTable table;
  return table;
}

// word * key = word * low + 2^32 (word * high), and the sums of both parts may be taken apart: all
// mod 2^64.
uint64_t KeyedSumPlain(const uint32_t* words, int64_t count, const uint32_t* key_low,
                       const uint32_t* key_high) {
  uint64_t low = 0, high = 0;
  for (int64_t i = 0; i < count; ++i) {
    low += uint64_t{words[i]} * key_low[i];
    high += uint64_t{words[i]} * key_high[i];
  }
  return low + (high << 32);
}

#if defined(__AVX2__)
// Eight words a turn. The product of 32-bit halves reads the lower half of each 64-bit lane: the
// even words are there already, the odd ones one shift away (the compiler widens every word
// instead: 1.7 times slower).
struct EightSums {
  __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
  void Add(const uint32_t* words, const uint32_t* key_low, const uint32_t* key_high) {
    const auto load = [](const uint32_t* at) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    };
    const __m256i w = load(words), l = load(key_low), h = load(key_high);
    const __m256i odd = _mm256_srli_epi64(w, 32);
    low = _mm256_add_epi64(low, _mm256_mul_epu32(w, l));
    high = _mm256_add_epi64(high, _mm256_mul_epu32(w, h));
    low = _mm256_add_epi64(low, _mm256_mul_epu32(odd, _mm256_srli_epi64(l, 32)));
    high = _mm256_add_epi64(high, _mm256_mul_epu32(odd, _mm256_srli_epi64(h, 32)));
  }
  uint64_t Sum() const {
    alignas(32) uint64_t lanes[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes),
                       _mm256_add_epi64(low, _mm256_slli_epi64(high, 32)));
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
  }
};

uint64_t KeyedSum(const uint32_t* words, int64_t count, const KeyTable& key) {
  EightSums a, b;  // two, so that no addition waits for the one before
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    a.Add(words + i, key.low + i, key.high + i);
    b.Add(words + i + 8, key.low + i + 8, key.high + i + 8);
  }
  return a.Sum() + b.Sum() + KeyedSumPlain(words + i, count - i, key.low + i, key.high + i);
}
#else
uint64_t KeyedSum(const uint32_t* words, int64_t count, const KeyTable& key) {
  return KeyedSumPlain(words, count, key.low, key.high);
}
#endif

}  // namespace

uint64_t DigestWords(const void* data, int64_t count, uint64_t region, int64_t first) {
  assert(first % kDigestBlockWords == 0);
  const auto* words = static_cast<const uint32_t*>(data);
  const KeyTable& key = Keys();
  uint64_t digest = 0;
  uint64_t block = static_cast<uint64_t>(first / kDigestBlockWords);
  for (int64_t done = 0; done < count; done += kDigestBlockWords, ++block) {
    const int64_t n = std::min(kDigestBlockWords, count - done);
    digest += DigestBlock(KeyedSum(words + done, n, key), region, block);
  }
  return digest;
}

uint64_t Hash64(std::string_view bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Hash128 Hash128Of(const void* data, size_t size) {
  const XXH128_hash_t h = XXH3_128bits(data, size);
  return {h.low64, h.high64};
}

std::string Hex64(uint64_t value) {
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

std::string Hex(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const unsigned char c : bytes) {
    text += "0123456789abcdef"[c >> 4];
    text += "0123456789abcdef"[c & 15];
  }
  return text;
}

bool ParseHex64(std::string_view text, uint64_t* value) {
  if (text.size() != 16) return false;
  uint64_t v = 0;
  for (const char c : text) {
    int digit;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      digit = c - 'a' + 10;
    } else {
      return false;
    }
    v = v << 4 | static_cast<uint64_t>(digit);
  }
  *value = v;
  return true;
}

std::array<uint8_t, 32> HmacSha256(std::string_view key, std::string_view message) {
  std::array<uint8_t, 32> out{};
  unsigned size = 0;
  const unsigned char* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                   reinterpret_cast<const unsigned char*>(message.data()),
                                   message.size(), out.data(), &size);
  assert(done != nullptr && size == out.size());
  (void)done;
  return out;
}

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  size_t have = 0;
  while (have < count) {
    const ssize_t n = getrandom(bytes.data() + have, count - have, 0);
    if (n > 0) have += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR) std::abort();  // a kernel without randomness can keep no secret
  }
  return bytes;
}

uint64_t RandomNonce() {
  uint64_t value = 0;
  while (value == 0) std::memcpy(&value, RandomBytes(sizeof value).data(), sizeof value);
  return value;
}

}  // namespace holdfast
