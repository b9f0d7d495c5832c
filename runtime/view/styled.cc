#include "runtime/view/styled.h"

#include "runtime/view/text.h"

namespace holdfast::view {
namespace {

// ECMA-48 "select graphic rendition".
const char* Begin(Style style) {
  switch (style) {
    case Style::kPlain:
      return "";
    case Style::kBold:
      return "\x1b[1m";
    case Style::kDim:
      return "\x1b[2m";
    case Style::kGood:
      return "\x1b[32m";
    case Style::kWarn:
      return "\x1b[33m";
    case Style::kBad:
      return "\x1b[1;31m";
  }
  return "";
}

}  // namespace

StyledLine& StyledLine::Add(std::string_view text, Style style) {
  if (!text.empty()) pieces_.push_back({std::string(text), style});
  return *this;
}

StyledLine& StyledLine::Append(const StyledLine& other) {
  pieces_.insert(pieces_.end(), other.pieces_.begin(), other.pieces_.end());
  return *this;
}

StyledLine& StyledLine::Pad(int begin) {
  const int missing = begin - columns();
  if (missing > 0) Add(std::string(static_cast<size_t>(missing), ' '));
  return *this;
}

int StyledLine::columns() const {
  int sum = 0;
  for (const Piece& piece : pieces_) sum += Columns(Clean(piece.text, true));
  return sum;
}

std::string StyledLine::Text(const Capabilities& caps) const {
  std::string line;
  int left = caps.width;
  for (const Piece& piece : pieces_) {
    const std::string part = Cut(Clean(piece.text, caps.utf8), left);
    if (part.empty()) break;
    left -= Columns(part);
    const bool styled = caps.colour && piece.style != Style::kPlain;
    if (styled) line += Begin(piece.style);
    line += part;
    if (styled) line += "\x1b[0m";
  }
  return line;
}

}  // namespace holdfast::view
