// A curve in characters. Pure: any thread.
#pragma once

#include <span>
#include <vector>

#include "runtime/view/series.h"
#include "runtime/view/styled.h"

namespace holdfast::view {

struct PlotInput {
  std::span<const Point> line;   // ascending steps
  std::span<const Point> marks;  // single values, e.g. on held-out data; those outside of the
                                 // line's steps are left out
  std::string_view title;        // stands in the row of the step labels
};

// Rows below this cannot hold a curve and its labels; columns likewise.
inline constexpr int kPlotRowsMin = 4, kPlotColumnsMin = 24;

// Exactly `rows` lines of at most `columns` columns: labels of the value, the curve (in dots of
// 2 x 4 a character where `utf8`, else in asterisks), marks as 'o', and the steps below. Nothing
// when there are fewer than two points, or the space is below the minimum.
std::vector<StyledLine> Plot(const PlotInput& input, int columns, int rows, bool utf8);

}  // namespace holdfast::view
