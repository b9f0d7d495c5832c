// What tokens mean to people. Three ways: bytes (a text's tokens), numbers (token files of a
// tokenizer that is not known here), and a vocabulary file that says the bytes of each token.
//
// A vocabulary file has one line for each token, from token 0 on: its bytes, with the escapes \n,
// \r, \t, \\ and \xHH. Prompts are cut greedily, the longest token first: not what a tokenizer with
// merges does, but always a sequence of tokens that spells the prompt.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast {

class TokenText {
 public:
  static TokenText Bytes() { return TokenText(Kind::kBytes); }
  static TokenText Numbers() { return TokenText(Kind::kNumbers); }
  // kInvalidArgument names the line.
  static absl::StatusOr<TokenText> Vocabulary(std::string_view file_text);

  // kInvalidArgument: what cannot be said in these tokens.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view prompt) const;
  std::string Decode(int32_t token) const;
  bool numbers() const { return kind_ == Kind::kNumbers; }

 private:
  enum class Kind : uint8_t { kBytes, kNumbers, kVocabulary };
  explicit TokenText(Kind kind) : kind_(kind) {}
  Kind kind_;
  std::vector<std::string> pieces_;
  std::map<std::string, int32_t, std::less<>> tokens_;
  size_t longest_ = 0;
};

// Whether the files named by --data hold token numbers (.bin) instead of text.
bool HoldsTokenNumbers(const std::vector<std::string>& data);

}  // namespace holdfast
