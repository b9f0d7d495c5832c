#include "runtime/base/digest.h"

#include <vector>

#include "gtest/gtest.h"

namespace holdfast {
namespace {

std::vector<uint32_t> Words(int n) {
  std::vector<uint32_t> words(n);
  for (int i = 0; i < n; ++i) words[i] = static_cast<uint32_t>(Mix64(i));
  return words;
}

TEST(StateDigest, PartsAddUpForEveryCut) {
  const auto words = Words(5 * kDigestBlockWords + 77);
  const int64_t count = static_cast<int64_t>(words.size());
  const uint64_t whole = DigestWords(words.data(), count, 3, 0);
  for (int64_t cut = 0; cut <= count; cut += kDigestBlockWords) {
    EXPECT_EQ(whole, DigestWords(words.data(), cut, 3, 0) +
                         DigestWords(words.data() + cut, count - cut, 3, cut));
  }
}

// The definition of the header, word by word, against the tuned pass.
TEST(StateDigest, FollowsItsDefinition) {
  for (const int count : {0, 1, 7, 1023, 1024, 1025, 3000}) {
    const auto words = Words(count);
    uint64_t want = 0;
    for (int block = 0; block * kDigestBlockWords < count; ++block) {
      uint64_t sum = 0;
      for (int i = 0; i < kDigestBlockWords && block * kDigestBlockWords + i < count; ++i) {
        sum += words[block * kDigestBlockWords + i] * DigestKey(i);
      }
      want += DigestBlock(sum, 9, block + 5);
    }
    EXPECT_EQ(DigestWords(words.data(), count, 9, 5 * kDigestBlockWords), want) << count;
  }
}

TEST(StateDigest, SeesEveryBitOfAWord) {
  auto words = Words(2000);
  const uint64_t before = DigestWords(words.data(), 2000, 0, 0);
  for (const int i : {0, 1, 1023, 1024, 1999}) {
    for (int bit = 0; bit < 32; ++bit) {
      words[i] ^= 1u << bit;
      EXPECT_NE(before, DigestWords(words.data(), 2000, 0, 0)) << i << " bit " << bit;
      words[i] ^= 1u << bit;
    }
  }
}

TEST(StateDigest, SeesSwapsBlockSwapsAndRegions) {
  auto words = Words(4096);
  const uint64_t before = DigestWords(words.data(), 4096, 0, 0);
  EXPECT_NE(before, DigestWords(words.data(), 4096, 1, 0));
  std::swap(words[5], words[6]);
  EXPECT_NE(before, DigestWords(words.data(), 4096, 0, 0));
  std::swap(words[5], words[6]);
  std::swap_ranges(words.begin(), words.begin() + 1024, words.begin() + 1024);
  EXPECT_NE(before, DigestWords(words.data(), 4096, 0, 0));
}

TEST(Hmac, KnownAnswer) {  // RFC 4231, test case 2
  const auto mac = HmacSha256("Jefe", "what do ya want for nothing?");
  EXPECT_EQ(Hex(std::string_view(reinterpret_cast<const char*>(mac.data()), mac.size())),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Hex, ParsesOnlyWhatItWrites) {
  uint64_t value = 0;
  EXPECT_TRUE(ParseHex64(Hex64(0x0123456789ABCDEFull), &value));
  EXPECT_EQ(value, 0x0123456789ABCDEFull);
  EXPECT_FALSE(ParseHex64("0123", &value));
  EXPECT_FALSE(ParseHex64("0123456789abcdeg", &value));
}

}  // namespace
}  // namespace holdfast
