#include "runtime/models/data/token_stream.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "absl/strings/numbers.h"
#include "runtime/base/bytes.h"
#include "runtime/base/status.h"
#include "runtime/models/data/data_paths.h"

namespace holdfast {
namespace {

// llm.c's token files: 256 int32 (magic, version, number of tokens, zeros), then the tokens.
constexpr int32_t kMagicUint16 = 20240520;
constexpr int32_t kMagicUint32 = 20240801;  // its form for larger vocabularies
constexpr size_t kHeaderBytes = 256 * sizeof(int32_t);
constexpr size_t kTextProbeBytes = 64 << 10;

int32_t HeaderWord(std::string_view bytes, int word) {
  int32_t value = 0;
  std::memcpy(&value, bytes.data() + word * sizeof value, sizeof value);
  return value;
}

// Where the tokens start and how many there are.
absl::Status ParseBin(const MappedFile& file, size_t* offset, int64_t* count) {
  const std::string_view bytes = file.bytes();
  const int32_t magic = bytes.size() >= sizeof(int32_t) ? HeaderWord(bytes, 0) : 0;
  if (magic == kMagicUint32) {
    return absl::InvalidArgumentError(
        Cat(file.path(), ": an llm.c file of 32-bit tokens (magic ", kMagicUint32,
            "); only 16-bit tokens are read. Write it anew with a vocabulary of at most 65,536"));
  }
  if (magic != kMagicUint16) {
    if (bytes.size() % 2 != 0) {
      return absl::InvalidArgumentError(
          Cat(file.path(), ": ", bytes.size(), " bytes are no whole number of uint16 tokens"));
    }
    *offset = 0;
    *count = static_cast<int64_t>(bytes.size() / 2);
    return absl::OkStatus();
  }
  if (bytes.size() < kHeaderBytes) {
    return absl::InvalidArgumentError(Cat(file.path(), ": cut short: the header alone has ",
                                          kHeaderBytes, " bytes, the file ", bytes.size()));
  }
  const int32_t version = HeaderWord(bytes, 1), announced = HeaderWord(bytes, 2);
  if (version != 1) {
    return absl::InvalidArgumentError(
        Cat(file.path(), ": version ", version, " of the llm.c header; version 1 is read"));
  }
  const size_t body = bytes.size() - kHeaderBytes;
  if (announced < 0 || body != static_cast<size_t>(announced) * 2) {
    return absl::InvalidArgumentError(Cat(file.path(), ": the header announces ", announced,
                                          " tokens (", int64_t{announced} * 2, " bytes), but ",
                                          body, " bytes follow it: cut short or damaged"));
  }
  *offset = kHeaderBytes;
  *count = announced;
  return absl::OkStatus();
}

// The first token that is not below vocab_size, or count.
template <typename T>
int64_t FindOutOfRange(const T* tokens, int64_t count, int64_t vocab_size) {
  constexpr int64_t kBlock = 16384;  // a maximum over a block runs at the speed of memory
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t end = std::min(count, first + kBlock);
    T largest = 0;
    for (int64_t i = first; i < end; ++i) largest = std::max(largest, tokens[i]);
    if (largest < vocab_size) continue;
    for (int64_t i = first; i < end; ++i) {
      if (tokens[i] >= vocab_size) return i;
    }
  }
  return count;
}

}  // namespace

int64_t DataLimit::Of(int64_t all) const {
  if (tokens > 0) return std::min(all, tokens);
  if (percent > 0) return static_cast<int64_t>(static_cast<double>(all) * percent / 100);
  return all;
}

absl::StatusOr<DataLimit> ParseDataLimit(std::string_view text) {
  DataLimit limit;
  if (text.empty()) return limit;
  const bool share = text.back() == '%';
  const bool read = share ? absl::SimpleAtod(View(text.substr(0, text.size() - 1)), &limit.percent)
                          : absl::SimpleAtoi(View(text), &limit.tokens);
  if (read && (share ? limit.percent > 0 && limit.percent <= 100 : limit.tokens > 0)) return limit;
  return absl::InvalidArgumentError(
      Cat("limit_data '", text, "': a number of tokens, or a share like 1%"));
}

absl::StatusOr<TokenStream> TokenStream::Open(const std::vector<std::string>& entries,
                                              const std::string& key, int64_t vocab_size,
                                              const DataLimit& limit) {
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ExpandDataPaths(entries, key));
  TokenStream stream;
  stream.format_ = IsBinName(paths[0]) ? TokenFormat::kBin : TokenFormat::kText;
  if (vocab_size == 0 && stream.format_ == TokenFormat::kBin) {
    return absl::InvalidArgumentError(Cat(
        key, ": ", paths[0], " holds token numbers: give vocab_size (50257 for GPT-2's tokens)"));
  }
  if (vocab_size == 0) vocab_size = 256;
  for (const std::string& path : paths) {
    auto file = MappedFile::Open(path);
    if (!file.ok()) return Annotate(file.status(), key);
    HF_RETURN_IF_ERROR(Annotate(stream.Add(*std::move(file)), key));
  }
  stream.all_tokens_ = stream.size_;
  if (!limit.none()) stream.Cut(limit.Of(stream.all_tokens_));
  ByteWriter sums;
  sums.Put<int64_t>(stream.files());
  for (const Segment& segment : stream.segments_) {
    HF_RETURN_IF_ERROR(Annotate(stream.CheckTokens(segment, vocab_size), key));
    const std::string_view bytes = segment.file->bytes().substr(
        0, segment.offset + static_cast<size_t>(segment.count * stream.width()));
    const Hash128 hash = Hash128Of(bytes.data(), bytes.size());
    sums.Put<uint64_t>(bytes.size());
    sums.Put(hash.low);
    sums.Put(hash.high);
  }
  stream.digest_ = Hash128Of(sums.bytes().data(), sums.bytes().size());
  return stream;
}

void TokenStream::Cut(int64_t tokens) {
  size_ = std::min(size_, tokens);
  while (!segments_.empty() && segments_.back().start >= size_) segments_.pop_back();
  if (!segments_.empty()) segments_.back().count = size_ - segments_.back().start;
}

absl::Status TokenStream::Add(std::shared_ptr<const MappedFile> file) {
  for (const Segment& other : segments_) {
    if (other.file->inode() != file->inode() || other.file->device() != file->device()) continue;
    return absl::InvalidArgumentError(
        Cat(file->path(), ": given twice (also as ", other.file->path(), ")"));
  }
  const std::string_view bytes = file->bytes();
  if (bytes.empty()) return absl::InvalidArgumentError(Cat(file->path(), ": the file is empty"));
  Segment segment{
      .file = file, .offset = 0, .start = size_, .count = static_cast<int64_t>(bytes.size())};
  if (format_ == TokenFormat::kBin) {
    HF_RETURN_IF_ERROR(ParseBin(*file, &segment.offset, &segment.count));
    if (segment.count == 0) {
      return absl::InvalidArgumentError(Cat(file->path(), ": the file holds no tokens"));
    }
  } else {
    const size_t zero = bytes.substr(0, kTextProbeBytes).find('\0');
    if (zero != std::string_view::npos) {
      return absl::InvalidArgumentError(Cat(file->path(),
                                            ": not a text file (a zero byte at offset ", zero,
                                            "); token files must have a name that ends in .bin"));
    }
  }
  size_ += segment.count;
  segments_.push_back(std::move(segment));
  return absl::OkStatus();
}

absl::Status TokenStream::CheckTokens(const Segment& segment, int64_t vocab_size) const {
  const char* data = segment.file->bytes().data() + segment.offset;
  int64_t bad = 0, value = 0;
  if (format_ == TokenFormat::kBin) {
    const auto* tokens = reinterpret_cast<const uint16_t*>(data);
    bad = FindOutOfRange(tokens, segment.count, vocab_size);
    if (bad < segment.count) value = tokens[bad];
  } else {
    const auto* tokens = reinterpret_cast<const uint8_t*>(data);
    bad = FindOutOfRange(tokens, segment.count, vocab_size);
    if (bad < segment.count) value = tokens[bad];
  }
  if (bad == segment.count) return absl::OkStatus();
  return absl::InvalidArgumentError(Cat(segment.file->path(), ": token ", value, " at token ", bad,
                                        " (byte offset ",
                                        static_cast<int64_t>(segment.offset) + bad * width(),
                                        ") is not below vocab_size ", vocab_size));
}

void TokenStream::Copy(int64_t first, int64_t count, int32_t* out) const {
  assert(first >= 0 && count >= 0 && first + count <= size_);
  auto it = std::upper_bound(segments_.begin(), segments_.end(), first,
                             [](int64_t value, const Segment& s) { return value < s.start; });
  for (--it; count > 0; ++it) {
    const int64_t skip = first - it->start;
    const int64_t n = std::min(count, it->count - skip);
    const char* data = it->file->bytes().data() + it->offset;
    if (format_ == TokenFormat::kBin) {
      std::copy_n(reinterpret_cast<const uint16_t*>(data) + skip, n, out);
    } else {
      std::copy_n(reinterpret_cast<const uint8_t*>(data) + skip, n, out);
    }
    first += n;
    count -= n;
    out += n;
  }
}

}  // namespace holdfast
