#include "runtime/base/failpoint.h"

#include "gtest/gtest.h"

namespace holdfast {
namespace {

TEST(Failpoint, OffByDefault) { EXPECT_EQ(Failpoint("test.none"), std::nullopt); }

TEST(Failpoint, CountAndStep) {
  ASSERT_TRUE(SetFailpoints("test.a=2*return(x);test.b=return(y)@7").ok());
  EXPECT_EQ(Failpoint("test.a"), "x");
  EXPECT_EQ(Failpoint("test.a"), "x");
  EXPECT_EQ(Failpoint("test.a"), std::nullopt);
  EXPECT_EQ(FailpointFired("test.a"), 2);
  EXPECT_EQ(Failpoint("test.b", 6), std::nullopt);
  EXPECT_EQ(Failpoint("test.b", 7), "y");
  ASSERT_TRUE(SetFailpoints("").ok());
}

TEST(Failpoint, BadSettingsAreRefusedWhole) {
  ASSERT_TRUE(SetFailpoints("test.c=return(z)").ok());
  EXPECT_FALSE(SetFailpoints("test.c=explode").ok());
  EXPECT_FALSE(SetFailpoints("test.c").ok());
  EXPECT_FALSE(SetFailpoints("test.c=sleep(x)").ok());
  EXPECT_EQ(Failpoint("test.c"), "z");
  ASSERT_TRUE(SetFailpoints("").ok());
}

}  // namespace
}  // namespace holdfast
