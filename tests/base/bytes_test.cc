#include "runtime/base/bytes.h"

#include "gtest/gtest.h"

namespace holdfast {
namespace {

TEST(Bytes, RoundTrip) {
  ByteWriter w;
  w.Put<uint16_t>(7);
  w.PutString("text");
  w.Put<double>(0.5);
  ByteReader r(w.bytes());
  EXPECT_EQ(r.Get<uint16_t>(), 7);
  EXPECT_EQ(r.GetString(), "text");
  EXPECT_EQ(r.Get<double>(), 0.5);
  EXPECT_TRUE(r.AtEnd());
}

TEST(Bytes, EveryTruncationIsSeen) {
  ByteWriter w;
  w.Put<uint64_t>(1);
  w.PutString("some text");
  for (size_t n = 0; n < w.bytes().size(); ++n) {
    ByteReader r(std::string_view(w.bytes()).substr(0, n));
    r.Get<uint64_t>();
    r.GetString();
    EXPECT_FALSE(r.ok()) << n;
  }
}

TEST(Bytes, LengthAboveLimitIsRefused) {
  ByteWriter w;
  w.Put<uint32_t>(0xFFFFFFFF);
  ByteReader r(w.bytes());
  EXPECT_EQ(r.GetString(), "");
  EXPECT_FALSE(r.ok());
}

}  // namespace
}  // namespace holdfast
