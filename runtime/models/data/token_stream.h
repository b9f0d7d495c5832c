// A long sequence of tokens that lie in one or more mapped files, seen as one: file after file, in
// the order given. Opening reads everything once: each token is checked against the vocabulary and
// the contents are digested. Immutable afterwards: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/digest.h"
#include "runtime/models/data/mapped_file.h"

namespace holdfast {

enum class TokenFormat : uint8_t {
  kText,  // every byte is a token
  kBin,   // uint16, with or without the header of llm.c
};

// How much of the beginning of a stream is used. Exact for a number; a share is rounded down.
struct DataLimit {
  int64_t tokens = 0;  // 0: no limit
  double percent = 0;  // 0: no limit
  bool none() const { return tokens == 0 && percent == 0; }
  // Of `all` tokens, those that are used.
  int64_t Of(int64_t all) const;
};
// "", "200000" or "1%".
absl::StatusOr<DataLimit> ParseDataLimit(std::string_view text);

class TokenStream {
 public:
  // `entries`: files, folders of text files (all files below, in sorted order; hidden ones are left
  // out) and globs. `key` names the configuration key in messages ("data"). vocab_size 0: 256 for
  // text, an error for .bin. kNotFound: nothing there; kInvalidArgument: not usable, the message
  // says why and what would be right. What lies beyond `limit` is neither read nor digested.
  static absl::StatusOr<TokenStream> Open(const std::vector<std::string>& entries,
                                          const std::string& key, int64_t vocab_size,
                                          const DataLimit& limit = {});

  TokenFormat format() const { return format_; }
  int64_t size() const { return size_; }  // tokens that are used
  int64_t all_tokens() const { return all_tokens_; }
  int64_t files() const { return static_cast<int64_t>(segments_.size()); }
  // Digest of the number of files used, their used sizes and contents, in order; not of their
  // names.
  const Hash128& digest() const { return digest_; }
  // out[0..count) = tokens first .. first+count-1; all must exist.
  void Copy(int64_t first, int64_t count, int32_t* out) const;

 private:
  struct Segment {
    std::shared_ptr<const MappedFile> file;
    size_t offset = 0;  // of the first token, in bytes
    int64_t start = 0;  // number of the first token in the whole stream
    int64_t count = 0;
  };

  absl::Status Add(std::shared_ptr<const MappedFile> file);
  void Cut(int64_t tokens);
  int64_t width() const { return format_ == TokenFormat::kBin ? 2 : 1; }  // bytes of a token
  absl::Status CheckTokens(const Segment& segment, int64_t vocab_size) const;

  TokenFormat format_ = TokenFormat::kText;
  int64_t size_ = 0, all_tokens_ = 0;
  Hash128 digest_;
  std::vector<Segment> segments_;
};

}  // namespace holdfast
