// Curves in bounded memory and in characters.
#include "runtime/view/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/view/text.h"

namespace holdfast::view {
namespace {

TEST(Series, KeepsTheWholeRunInBoundedMemory) {
  Series series(100);
  for (int64_t step = 1; step <= 100'000; ++step) series.Add(step, static_cast<double>(step));
  const std::vector<Point> points = series.Points();
  EXPECT_LE(points.size(), 100u);
  EXPECT_GE(points.size(), 50u);
  EXPECT_EQ(points.back().step, 100'000);
  for (size_t i = 1; i < points.size(); ++i) {
    EXPECT_LT(points[i - 1].step, points[i].step);
    EXPECT_LT(points[i - 1].value, points[i].value);
  }
  // Means: half a stretch behind the last step of it.
  EXPECT_NEAR(points[10].value,
              static_cast<double>(points[10].step - (points[10].step - points[9].step) / 2), 2.0);
}

TEST(Series, RepeatedStepsAndWhatIsNoNumberAreLeftOut) {
  Series series(100);
  for (const int64_t step : {1, 2, 3, 2, 3, 4}) series.Add(step, static_cast<double>(step));
  series.Add(5, NAN);
  series.Add(6, INFINITY);
  EXPECT_EQ(series.Points(), (std::vector<Point>{{1, 1}, {2, 2}, {3, 3}, {4, 4}}));
}

TEST(Series, GoesOnFromWhereItIsCut) {
  Series series(100);
  for (int64_t step = 1; step <= 10; ++step) series.Add(step, 5);
  series.CutAfter(6);
  series.Add(6, 1);  // known
  series.Add(7, 4);
  EXPECT_EQ(series.Points().size(), 7u);
  EXPECT_EQ(series.Points().back(), (Point{7, 4}));
  series.CutAfter(100);
  EXPECT_EQ(series.last_step(), 7);
  series.CutAfter(0);
  EXPECT_TRUE(series.Points().empty());
}

std::vector<std::string> Lines(const PlotInput& input, int columns, int rows, bool utf8) {
  Capabilities caps;
  caps.width = columns;
  caps.utf8 = utf8;
  std::vector<std::string> lines;
  for (const StyledLine& line : Plot(input, columns, rows, utf8)) {
    EXPECT_LE(line.columns(), columns);
    lines.push_back(line.Text(caps));
  }
  return lines;
}

TEST(Plot, AFallingLineGoesFromTheTopLeftToTheBottomRight) {
  std::vector<Point> line;
  for (int i = 0; i <= 100; ++i) line.push_back({i, 5.0 - 0.03 * i});
  const auto lines = Lines({line, {}, "loss"}, 40, 8, false);
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[0].substr(0, 13), "      5 |****");
  EXPECT_EQ(lines[6].substr(0, 9), "      2 |");
  EXPECT_EQ(lines[6].substr(9, 20), std::string(20, ' '));
  EXPECT_EQ(lines[6].back(), '*');
  EXPECT_THAT(lines[7], ::testing::HasSubstr("+ 0"));
  EXPECT_THAT(lines[7], ::testing::HasSubstr("loss"));
  EXPECT_THAT(lines[7], ::testing::EndsWith("100"));
  // Each column of a monotone line holds a dot, lower or equal than the one before.
  size_t last = 0;
  for (size_t x = 9; x < 40; ++x) {
    size_t row = 0;
    while (row < 7 && (lines[row].size() <= x || lines[row][x] != '*')) ++row;
    ASSERT_LT(row, 7u) << x;
    EXPECT_GE(row, last);
    last = row;
  }
}

TEST(Plot, DotsOfEightToACharacter) {
  const std::vector<Point> line = {{0, 1.0}, {10, 0.0}};
  const auto lines = Lines({line, {}, ""}, 30, 4, true);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_THAT(lines[0], ::testing::HasSubstr("┤⠉"));  // the top two dots of the first character
  EXPECT_THAT(lines[2], ::testing::EndsWith("⣀"));
}

TEST(Plot, MarksStandWhereTheyBelong) {
  const std::vector<Point> line = {{0, 1.0}, {100, 0.0}}, marks = {{50, 1.0}, {100, 0.0}, {200, 9}};
  const auto lines = Lines({line, marks, ""}, 49, 6, false);
  EXPECT_EQ(lines[0][9 + 20], 'o');
  EXPECT_EQ(lines[4][9 + 39], 'o');
  EXPECT_THAT(lines[0], ::testing::HasSubstr("      1 |"));  // the mark beyond does not stretch it
}

TEST(Plot, FlatEmptyAndTiny) {
  const std::vector<Point> flat = {{1, 2.0}, {2, 2.0}, {9, 2.0}};
  EXPECT_EQ(Lines({flat, {}, "x"}, 30, 5, false).size(), 5u);
  EXPECT_TRUE(Plot({{}, {}, ""}, 80, 10, true).empty());
  EXPECT_TRUE(Plot({std::span(flat).first(1), {}, ""}, 80, 10, true).empty());
  EXPECT_TRUE(Plot({flat, {}, ""}, kPlotColumnsMin - 1, 10, true).empty());
  EXPECT_TRUE(Plot({flat, {}, ""}, 80, kPlotRowsMin - 1, true).empty());
}

TEST(Plot, FitsAnySize) {
  std::vector<Point> line;
  for (int i = 0; i < 500; ++i) line.push_back({i * 7919, 5 * std::exp(-i / 99.0) - 2});
  for (int columns = 1; columns < 120; ++columns) {
    for (int rows = 0; rows < 30; ++rows) {
      for (const bool utf8 : {false, true}) {
        const auto lines = Plot({line, line, "loss, o held-out"}, columns, rows, utf8);
        ASSERT_TRUE(lines.empty() || static_cast<int>(lines.size()) == rows);
        for (const StyledLine& l : lines) ASSERT_LE(l.columns(), columns);
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::view
