// A line of text in pieces with a style each, cut to a width before any escape sequence is made:
// the sequences never count as text and are never cut. Pure: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::view {

// What a terminal (or whatever takes the text) can do.
struct Capabilities {
  int width = 80, height = 24;  // columns, rows
  bool utf8 = false;            // bars, curves and names beyond ASCII
  bool colour = false;          // colours and bold (off under NO_COLOR)
};

enum class Style : uint8_t { kPlain, kBold, kDim, kGood, kWarn, kBad };

class StyledLine {
 public:
  StyledLine() = default;
  explicit StyledLine(std::string_view text, Style style = Style::kPlain) { Add(text, style); }
  StyledLine& Add(std::string_view text, Style style = Style::kPlain);
  StyledLine& Append(const StyledLine& other);
  // Blanks until the line is `begin` columns long.
  StyledLine& Pad(int begin);
  int columns() const;
  bool empty() const { return pieces_.empty(); }
  // The line, made clean (text.h) and cut to caps.width columns.
  std::string Text(const Capabilities& caps) const;

 private:
  struct Piece {
    std::string text;
    Style style;
  };
  std::vector<Piece> pieces_;
};

}  // namespace holdfast::view
