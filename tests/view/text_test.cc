// Short texts, and texts of others on a terminal.
#include "runtime/view/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/view/styled.h"

namespace holdfast::view {
namespace {

TEST(Text, ShortTexts) {
  EXPECT_EQ(ShortNumber(0), "0");
  EXPECT_EQ(ShortNumber(999), "999");
  EXPECT_EQ(ShortNumber(3.8e9), "3.8G");
  EXPECT_EQ(ShortNumber(NAN), "?");
  EXPECT_EQ(WithUnit(43.7e9, "FLOP/s"), "43.7 GFLOP/s");
  EXPECT_EQ(WithUnit(912, "FLOP/s"), "912 FLOP/s");
  EXPECT_EQ(WithUnit(NAN, "FLOP/s"), "? FLOP/s");
  EXPECT_EQ(ShortTime(-1), "?");
  EXPECT_EQ(ShortTime(59), "59s");
  EXPECT_EQ(ShortTime(7300), "2h 1m");
  EXPECT_EQ(ShortTime(200'000), "2d 7h");
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1'234'567), "1,234,567");
  EXPECT_EQ(Grouped(-1000), "-1,000");
  EXPECT_EQ(Grouped(-100), "-100");
  EXPECT_EQ(Fixed(2.31412, 4), "2.3141");
  EXPECT_EQ(Fixed(INFINITY, 4), "?");
  EXPECT_EQ(Counted(1, "worker"), "1 worker");
  EXPECT_EQ(Counted(0, "worker"), "0 workers");
}

TEST(Text, NothingThatMovesATerminalGetsThrough) {
  EXPECT_EQ(Clean("a\x1b[2Jb\r\nc\x07", true), "a?[2Jb??c?");
  EXPECT_EQ(Clean("tab\there", true), "tab here");
  EXPECT_EQ(Clean("\xc2\x9b"
                  "2J",
                  true),
            "?2J");  // C1 control sequence introducer
  EXPECT_EQ(Clean("x\xe2\x80\xae"
                  "y",
                  true),
            "x?y");  // right-to-left override
  EXPECT_EQ(Clean("\x7f", true), "?");
}

TEST(Text, BrokenUtf8BecomesQuestionMarks) {
  EXPECT_EQ(Clean("ü", true), "ü");
  EXPECT_EQ(Clean("ü", false), "?");
  EXPECT_EQ(Clean("\xff"
                  "a",
                  true),
            "?a");
  EXPECT_EQ(Clean("\xc0\xaf", true), "??");            // overlong '/'
  EXPECT_EQ(Clean("\xed\xa0\x80", true), "???");       // a surrogate
  EXPECT_EQ(Clean("\xf4\x90\x80\x80", true), "????");  // beyond U+10FFFF
  EXPECT_EQ(Clean("\xe2\x82", true), "??");            // cut off
}

TEST(Text, WideCharactersTakeTwoColumnsAndAreNeverCutInHalf) {
  const std::string text = "数据a";
  EXPECT_EQ(Columns(text), 5);
  EXPECT_EQ(Cut(text, 5), text);
  EXPECT_EQ(Cut(text, 3), "数");
  EXPECT_EQ(Cut(text, 2), "数");
  EXPECT_EQ(Cut(text, 1), "");
  EXPECT_EQ(Cut(text, 0), "");
}

TEST(StyledLine, IsCutToTheWidthAndEscapesDoNotCount) {
  StyledLine line("one ", Style::kBold);
  line.Add("two").Pad(10).Add("three", Style::kBad);
  EXPECT_EQ(line.columns(), 15);
  Capabilities caps;
  caps.width = 12;
  EXPECT_EQ(line.Text(caps), "one two   th");
  caps.colour = true;
  EXPECT_EQ(line.Text(caps), "\x1b[1mone \x1b[0mtwo   \x1b[1;31mth\x1b[0m");
  caps.width = 4;
  EXPECT_EQ(line.Text(caps), "\x1b[1mone \x1b[0m");
}

}  // namespace
}  // namespace holdfast::view
