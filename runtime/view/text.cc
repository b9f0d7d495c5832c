#include "runtime/view/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "runtime/base/text.h"

namespace holdfast::view {
namespace {

struct Range {
  uint32_t first, last;
};

// Blocks of wide characters (East Asian Width W or F, Unicode annex 11), rounded to whole blocks.
constexpr std::array<Range, 10> kWide = {{{0x1100, 0x115F},
                                          {0x2E80, 0x303E},
                                          {0x3041, 0xA4CF},
                                          {0xA960, 0xA97F},
                                          {0xAC00, 0xD7A3},
                                          {0xF900, 0xFAFF},
                                          {0xFE30, 0xFE6F},
                                          {0xFF00, 0xFF60},
                                          {0xFFE0, 0xFFE6},
                                          {0x1F300, 0x3FFFD}}};
// What takes no column, or turns the direction of writing: not worth the risk in a table.
constexpr std::array<Range, 8> kRefused = {{{0x80, 0x9F},
                                            {0x300, 0x36F},
                                            {0x200B, 0x200F},
                                            {0x2028, 0x202E},
                                            {0x2060, 0x2069},
                                            {0xE000, 0xF8FF},
                                            {0xFE00, 0xFE0F},
                                            {0xFEFF, 0xFEFF}}};

template <size_t N>
bool In(const std::array<Range, N>& ranges, uint32_t c) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [c](const Range& r) { return c >= r.first && c <= r.last; });
}

// The character that `text` begins with, and its length in bytes; length 0: no valid UTF-8
// (RFC 3629: no overlong form, no surrogate, at most U+10FFFF).
struct Character {
  uint32_t code = 0;
  size_t bytes = 0;
};
Character First(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 0;
  if (size == 0 || lead > 0xF4 || text.size() < size) return {};
  uint32_t code = lead & (0x7F >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[size] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return {code, size};
}

}  // namespace

std::string ShortNumber(double value) {
  if (!std::isfinite(value)) return "?";
  const char* units[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  while (std::abs(value) >= 1000 && unit + 1 < std::size(units)) {
    value /= 1000;
    ++unit;
  }
  char text[64];
  std::snprintf(text, sizeof text, value >= 100 || unit == 0 ? "%.0f%s" : "%.1f%s", value,
                units[unit]);
  return text;
}

std::string WithUnit(double value, std::string_view unit) {
  std::string text = ShortNumber(value);
  const size_t digits = std::min(text.size(), text.find_last_of("0123456789?") + 1);
  return Cat(text.substr(0, digits), " ", text.substr(digits), unit);
}

std::string ShortTime(int64_t s) {
  if (s < 0) return "?";
  if (s < 60) return Cat(s, "s");
  if (s < 3600) return Cat(s / 60, "m ", s % 60, "s");
  if (s < 86'400) return Cat(s / 3600, "h ", s % 3600 / 60, "m");
  return Cat(s / 86'400, "d ", s % 86'400 / 3600, "h");
}

std::string Grouped(int64_t value) {
  std::string text = Cat(value);
  const int first = value < 0 ? 1 : 0;
  for (int i = static_cast<int>(text.size()) - 3; i > first; i -= 3)
    text.insert(static_cast<size_t>(i), 1, ',');
  return text;
}

std::string Fixed(double value, int digits) {
  if (!std::isfinite(value)) return "?";
  char text[64];
  std::snprintf(text, sizeof text, std::abs(value) < 1e9 ? "%.*f" : "%.*e", digits, value);
  return text;
}

std::string Counted(int64_t count, std::string_view noun) {
  return Cat(Grouped(count), " ", noun, count == 1 ? "" : "s");
}

std::string Clean(std::string_view text, bool utf8) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const Character c = First(text);
    const bool good = c.bytes > 0 && c.code >= 0x20 && c.code != 0x7F &&
                      (c.code < 0x7F || (utf8 && !In(kRefused, c.code)));
    if (good) {
      clean.append(text.substr(0, c.bytes));
    } else {
      clean += c.code == '\t' ? ' ' : '?';
    }
    text.remove_prefix(std::max<size_t>(1, c.bytes));
  }
  return clean;
}

int Columns(std::string_view clean) {
  int columns = 0;
  while (!clean.empty()) {
    const Character c = First(clean);
    columns += In(kWide, c.code) ? 2 : 1;
    clean.remove_prefix(std::max<size_t>(1, c.bytes));
  }
  return columns;
}

std::string Cut(std::string_view clean, int columns) {
  size_t end = 0;
  while (end < clean.size()) {
    const Character c = First(clean.substr(end));
    columns -= In(kWide, c.code) ? 2 : 1;
    if (columns < 0) break;
    end += std::max<size_t>(1, c.bytes);
  }
  return std::string(clean.substr(0, end));
}

}  // namespace holdfast::view
