#include "runtime/models/data/token_text.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_split.h"
#include "runtime/base/status.h"
#include "runtime/models/data/data_paths.h"

namespace holdfast {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// False when an escape cannot be read.
bool Unescape(absl::string_view line, std::string* out) {
  out->clear();
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      out->push_back(line[i]);
      continue;
    }
    if (++i == line.size()) return false;
    switch (line[i]) {
      case 'n':
        out->push_back('\n');
        break;
      case 'r':
        out->push_back('\r');
        break;
      case 't':
        out->push_back('\t');
        break;
      case '\\':
        out->push_back('\\');
        break;
      case 'x': {
        const int high = i + 1 < line.size() ? HexDigit(line[i + 1]) : -1;
        const int low = i + 2 < line.size() ? HexDigit(line[i + 2]) : -1;
        if (high < 0 || low < 0) return false;
        out->push_back(static_cast<char>(high * 16 + low));
        i += 2;
        break;
      }
      default:
        return false;
    }
  }
  return true;
}

absl::StatusOr<std::vector<int32_t>> EncodeNumbers(std::string_view prompt) {
  std::vector<int32_t> tokens;
  for (const absl::string_view part : absl::StrSplit(View(prompt), ' ', absl::SkipEmpty())) {
    int32_t token = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), token);
    if (error != std::errc() || end != part.data() + part.size() || token < 0) {
      return absl::InvalidArgumentError(
          Cat("'", part,
              "' is no token number; this run's tokens are numbers: give --prompt "
              "\"464 3290\", or --vocab FILE with the text of each token"));
    }
    tokens.push_back(token);
  }
  return tokens;
}

}  // namespace

absl::StatusOr<TokenText> TokenText::Vocabulary(std::string_view file_text) {
  TokenText text(Kind::kVocabulary);
  if (!file_text.empty() && file_text.back() == '\n') file_text.remove_suffix(1);
  for (const absl::string_view line : absl::StrSplit(View(file_text), '\n')) {
    std::string piece;
    const auto token = static_cast<int32_t>(text.pieces_.size());
    if (!Unescape(line, &piece)) {
      return absl::InvalidArgumentError(
          Cat("line ", token + 1, ": only \\n, \\r, \\t, \\\\ and \\xHH may follow a backslash"));
    }
    if (!piece.empty()) text.tokens_.emplace(piece, token);
    text.longest_ = std::max(text.longest_, piece.size());
    text.pieces_.push_back(std::move(piece));
  }
  return text;
}

absl::StatusOr<std::vector<int32_t>> TokenText::Encode(std::string_view prompt) const {
  if (kind_ == Kind::kNumbers) return EncodeNumbers(prompt);
  std::vector<int32_t> tokens;
  if (kind_ == Kind::kBytes) {
    for (const char c : prompt) tokens.push_back(static_cast<uint8_t>(c));
    return tokens;
  }
  while (!prompt.empty()) {
    size_t size = std::min(longest_, prompt.size());
    auto at = tokens_.end();
    for (; size > 0 && at == tokens_.end(); --size) at = tokens_.find(prompt.substr(0, size));
    if (at == tokens_.end()) {
      return absl::InvalidArgumentError(
          Cat("no token of the vocabulary begins '", prompt.substr(0, 8), "'"));
    }
    tokens.push_back(at->second);
    prompt.remove_prefix(at->first.size());
  }
  return tokens;
}

std::string TokenText::Decode(int32_t token) const {
  if (kind_ == Kind::kBytes && token >= 0 && token < 256)
    return std::string(1, static_cast<char>(token));
  if (kind_ == Kind::kVocabulary && token >= 0 && token < static_cast<int32_t>(pieces_.size()))
    return pieces_[token];
  return kind_ == Kind::kNumbers ? Cat(token, " ") : Cat("<", token, ">");
}

bool HoldsTokenNumbers(const std::vector<std::string>& data) {
  return std::any_of(data.begin(), data.end(), IsBinName);
}

}  // namespace holdfast
