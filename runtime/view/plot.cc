#include "runtime/view/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "runtime/base/text.h"
#include "runtime/view/text.h"

namespace holdfast::view {
namespace {

constexpr int kLabelColumns = 9;  // "  2.3141 |"

// A grid of dots, packed into characters.
class Dots {
 public:
  Dots(int columns, int rows, bool utf8)
      : columns_(columns),
        rows_(rows),
        utf8_(utf8),
        cells_(static_cast<size_t>(columns) * static_cast<size_t>(rows), 0) {}
  int width() const { return columns_ * (utf8_ ? 2 : 1); }
  int height() const { return rows_ * (utf8_ ? 4 : 1); }
  void Set(int x, int y) {  // y counts from the top
    // The order of the dots of a Braille character (Unicode 2800-28FF).
    static constexpr uint8_t kBit[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    if (x < 0 || y < 0 || x >= width() || y >= height()) return;
    if (utf8_) {
      Cell(x / 2, y / 4) |= kBit[y % 4][x % 2];
    } else {
      Cell(x, y) = 1;
    }
  }
  std::string Text(int column, int row) {
    const uint8_t cell = Cell(column, row);
    if (cell == 0) return " ";
    if (!utf8_) return "*";
    // U+2800 + cell in UTF-8.
    return {static_cast<char>(0xE2), static_cast<char>(0xA0 | cell >> 6),
            static_cast<char>(0x80 | (cell & 0x3F))};
  }

 private:
  uint8_t& Cell(int column, int row) {
    return cells_[static_cast<size_t>(row) * static_cast<size_t>(columns_) +
                  static_cast<size_t>(column)];
  }
  const int columns_, rows_;
  const bool utf8_;
  std::vector<uint8_t> cells_;
};

struct Scale {
  int64_t first = 0, last = 1;  // steps
  double low = 0, high = 1;     // values

  double At(int64_t step) const {  // 0..1 from left to right
    return static_cast<double>(step - first) / static_cast<double>(last - first);
  }
  int Row(double value, int rows) const {  // from the top
    return std::clamp(static_cast<int>((high - value) / (high - low) * rows), 0, rows - 1);
  }
};

Scale ScaleOf(const PlotInput& input) {
  Scale s;
  s.first = input.line.front().step;
  s.last = input.line.back().step;
  s.low = s.high = input.line.front().value;
  const auto take = [&](const Point& p) {
    if (p.step < s.first || p.step > s.last || !std::isfinite(p.value)) return;
    s.low = std::min(s.low, p.value);
    s.high = std::max(s.high, p.value);
  };
  for (const Point& p : input.line) take(p);
  for (const Point& p : input.marks) take(p);
  if (s.high - s.low < 1e-9 * std::max(1.0, std::abs(s.high))) {  // a flat line in the middle
    const double pad = std::max(1e-6, std::abs(s.high) * 0.01);
    s.low -= pad;
    s.high += pad;
  }
  return s;
}

// One value for each column of dots: the mean of the points that fall on it, else between its
// neighbours.
std::vector<double> Sample(std::span<const Point> line, const Scale& scale, int width) {
  std::vector<double> sum(static_cast<size_t>(width), 0), values(sum);
  std::vector<int> count(static_cast<size_t>(width), 0);
  for (const Point& p : line) {
    const auto x =
        static_cast<size_t>(std::clamp(static_cast<int>(scale.At(p.step) * width), 0, width - 1));
    sum[x] += p.value;
    ++count[x];
  }
  int before = -1;
  for (int x = 0; x < width; ++x) {
    const auto at = static_cast<size_t>(x);
    if (count[at] == 0) continue;
    values[at] = sum[at] / count[at];
    for (int gap = before + 1; gap < x; ++gap) {
      const double share =
          before < 0 ? 1 : static_cast<double>(gap - before) / static_cast<double>(x - before);
      const double from = before < 0 ? values[at] : values[static_cast<size_t>(before)];
      values[static_cast<size_t>(gap)] = from + share * (values[at] - from);
    }
    before = x;
  }
  for (int x = before + 1; x < width; ++x)
    values[static_cast<size_t>(x)] = values[static_cast<size_t>(before)];
  return values;
}

void DrawCurve(const PlotInput& input, const Scale& scale, Dots* dots) {
  const std::vector<double> values = Sample(input.line, scale, dots->width());
  int previous = -1;
  for (int x = 0; x < dots->width(); ++x) {
    const int y = scale.Row(values[static_cast<size_t>(x)], dots->height());
    // Steep parts stay connected.
    const int from = previous < 0 ? y : std::min(y, previous + (y > previous ? 1 : -1));
    const int to = previous < 0 ? y : std::max(y, previous + (y > previous ? 1 : -1));
    if (previous < 0 || previous == y) {
      dots->Set(x, y);
    } else {
      for (int dot = from; dot <= to; ++dot) dots->Set(x, dot);
    }
    previous = y;
  }
}

std::string Label(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%*.4g ", kLabelColumns - 2, value);
  return std::string(text).substr(0, kLabelColumns - 1);
}

StyledLine StepRow(const PlotInput& input, const Scale& scale, int columns, bool utf8) {
  StyledLine line(std::string(kLabelColumns - 1, ' ').append(utf8 ? "└" : "+"), Style::kDim);
  const std::string first = Cat(" ", Grouped(scale.first)), last = Grouped(scale.last);
  line.Add(first, Style::kDim);
  const int room =
      columns - line.columns() - static_cast<int>(last.size()) - Columns(input.title) - 4;
  if (room >= 0) line.Add(Cat("  ", input.title, "  "));
  line.Pad(columns - static_cast<int>(last.size()));
  return line.Add(last, Style::kDim);
}

}  // namespace

std::vector<StyledLine> Plot(const PlotInput& input, int columns, int rows, bool utf8) {
  std::vector<StyledLine> lines;
  if (input.line.size() < 2 || rows < kPlotRowsMin || columns < kPlotColumnsMin ||
      input.line.front().step >= input.line.back().step)
    return lines;
  const int across = columns - kLabelColumns, down = rows - 1;
  const Scale scale = ScaleOf(input);
  Dots dots(across, down, utf8);
  DrawCurve(input, scale, &dots);
  std::vector<bool> marked(static_cast<size_t>(across) * static_cast<size_t>(down), false);
  for (const Point& p : input.marks) {
    if (p.step < scale.first || p.step > scale.last || !std::isfinite(p.value)) continue;
    const int x = std::clamp(static_cast<int>(scale.At(p.step) * across), 0, across - 1);
    marked[static_cast<size_t>(scale.Row(p.value, down) * across + x)] = true;
  }
  for (int row = 0; row < down; ++row) {
    StyledLine line;
    const bool label = row == 0 || row == down - 1 || (down >= 7 && row == down / 2);
    const double value = scale.high - (scale.high - scale.low) * row / std::max(1, down - 1);
    line.Add(label ? Label(value) : std::string(kLabelColumns - 1, ' '), Style::kDim);
    line.Add(utf8 ? (label ? "┤" : "│") : "|", Style::kDim);
    std::string run;
    for (int x = 0; x < across; ++x) {
      if (!marked[static_cast<size_t>(row * across + x)]) {
        run += dots.Text(x, row);
        continue;
      }
      line.Add(run, Style::kGood).Add("o", Style::kWarn);
      run.clear();
    }
    lines.push_back(line.Add(run, Style::kGood));
  }
  lines.push_back(StepRow(input, scale, columns, utf8));
  return lines;
}

}  // namespace holdfast::view
