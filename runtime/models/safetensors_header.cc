#include "runtime/models/safetensors_header.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <utility>

#include "runtime/base/bytes.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {

constexpr size_t kMaxTensors = 1 << 20, kMaxNameBytes = 4096, kMaxValueBytes = 1 << 20,
                 kMaxRank = 16;
constexpr std::string_view kMetadata = "__metadata__";

void AppendUtf8(uint32_t code, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 63));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 63));
    put(0x80 | (code & 63));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 63));
    put(0x80 | (code >> 6 & 63));
    put(0x80 | (code & 63));
  }
}

// Reads the tokens of JSON that the format uses. The first thing that does not fit fails it for
// good: then every call does nothing, and status() says what and where.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool ok() const { return why_.empty(); }
  absl::Status status() const {
    if (ok()) return absl::OkStatus();
    return absl::InvalidArgumentError(Cat("its header, byte ", at_, ": ", why_));
  }
  void Fail(std::string_view why) {
    if (ok()) why_ = why.empty() ? "unreadable" : std::string(why);
  }

  // True, and past it, when the next character is `c`.
  bool Take(char c) {
    SkipSpace();
    if (!ok() || at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void Need(char c) {
    if (!Take(c)) Fail(Cat("'", std::string(1, c), "' is expected"));
  }
  // After an element: true when another one follows, false when `close` ends the list.
  bool More(char close) {
    if (Take(',')) return true;
    Need(close);
    return false;
  }

  std::string String(size_t limit) {
    std::string out;
    Need('"');
    while (ok()) {
      if (at_ == text_.size()) {
        Fail("a text has no end");
      } else if (out.size() > limit) {
        Fail("a text is too long");
      } else if (static_cast<unsigned char>(text_[at_]) < 0x20) {
        Fail("a control character in a text");
      } else if (const char c = text_[at_++]; c == '"') {
        return out;
      } else if (c == '\\') {
        Escape(&out);
      } else {
        out.push_back(c);
      }
    }
    return out;
  }

  // A number without sign, fraction, exponent or leading zero, below 2^62.
  int64_t Integer() {
    SkipSpace();
    int64_t value = 0;
    const size_t first = at_;
    while (ok() && at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = value * 10 + (text_[at_++] - '0');
      if (value >= int64_t{1} << 58) Fail("a number is too large");
    }
    if (at_ == first) Fail("a number that is not negative is expected");
    if (at_ > first + 1 && text_[first] == '0') Fail("a number begins with 0");
    return value;
  }

  std::vector<int64_t> Integers(size_t limit) {
    std::vector<int64_t> values;
    Need('[');
    if (Take(']')) return values;
    do {
      if (values.size() == limit) Fail("a list is too long");
      values.push_back(Integer());
    } while (ok() && More(']'));
    return values;
  }

  void End() {
    SkipSpace();
    if (at_ != text_.size()) Fail("more than one object");
  }

 private:
  void SkipSpace() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  uint32_t FourHex() {
    uint32_t code = 0;
    for (int i = 0; i < 4 && ok(); ++i) {
      const char c = at_ < text_.size() ? text_[at_++] : '\0';
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) Fail("four hexadecimal digits are expected after \\u");
      code = code * 16 + static_cast<uint32_t>(digit);
    }
    return code;
  }

  void Escape(std::string* out) {
    const char c = at_ < text_.size() ? text_[at_++] : '\0';
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    if (const size_t plain = kFrom.find(c); c != '\0' && plain != std::string_view::npos) {
      out->push_back(kTo[plain]);
      return;
    }
    if (c != 'u') return Fail("an unknown escape in a text");
    uint32_t code = FourHex();
    if (code >= 0xD800 && code < 0xDC00) {
      if (text_.substr(at_, 2) != "\\u") return Fail("half of a surrogate pair");
      at_ += 2;
      const uint32_t low = FourHex();
      if (low < 0xDC00 || low >= 0xE000) return Fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      return Fail("half of a surrogate pair");
    }
    AppendUtf8(code, out);
  }

  const std::string_view text_;
  size_t at_ = 0;
  std::string why_;
};

// False: the sizes overflow.
bool BytesOf(const FileTensor& tensor, int64_t* bytes) {
  *bytes = DtypeBytes(tensor.dtype);
  for (const int64_t d : tensor.shape) {
    if (__builtin_mul_overflow(*bytes, d, bytes)) return false;
  }
  return true;
}

void ReadTensor(Scanner* in, FileTensor* tensor) {
  std::set<std::string> seen;
  std::vector<int64_t> offsets;
  in->Need('{');
  do {
    const std::string key = in->String(kMaxNameBytes);
    in->Need(':');
    if (!in->ok()) return;
    if (!seen.insert(key).second) {
      in->Fail(Cat("tensor ", tensor->name, " has two ", key));
    } else if (key == "dtype") {
      tensor->dtype = in->String(16);
    } else if (key == "shape") {
      tensor->shape = in->Integers(kMaxRank);
    } else if (key == "data_offsets") {
      offsets = in->Integers(2);
    } else {
      in->Fail(Cat("tensor ", tensor->name, " has an unknown '", key, "'"));
    }
  } while (in->ok() && in->More('}'));
  if (!in->ok()) return;
  if (seen.size() != 3 || offsets.size() != 2) {
    return in->Fail(Cat("tensor ", tensor->name, " needs dtype, shape and two data_offsets"));
  }
  tensor->begin = offsets[0];
  tensor->end = offsets[1];
  if (DtypeBytes(tensor->dtype) == 0)
    in->Fail(Cat("tensor ", tensor->name, ": unknown dtype '", tensor->dtype, "'"));
}

void ReadMetadata(Scanner* in, SafetensorsHeader* header) {
  in->Need('{');
  if (in->Take('}')) return;
  do {
    const std::string key = in->String(kMaxNameBytes);
    in->Need(':');
    const std::string value = in->String(kMaxValueBytes);
    if (in->ok() && !header->metadata.emplace(key, value).second)
      in->Fail(Cat("two values for '", key, "' in __metadata__"));
  } while (in->ok() && in->More('}'));
}

// The tensors must fill the file, each once.
absl::Status CheckPlaces(const std::vector<FileTensor>& tensors, int64_t data_bytes) {
  int64_t reached = 0;
  for (const FileTensor& t : tensors) {
    int64_t bytes = 0;
    const bool fits = BytesOf(t, &bytes) && t.begin >= 0 && t.end <= data_bytes &&
                      t.begin <= t.end && t.end - t.begin == bytes;
    if (!fits) {
      return absl::InvalidArgumentError(Cat("tensor ", t.name, ": bytes ", t.begin, " to ", t.end,
                                            " of ", data_bytes, " cannot hold ", t.dtype, " ",
                                            ShapeText(t.shape)));
    }
    if (t.begin != reached) {
      return absl::InvalidArgumentError(Cat("tensor ", t.name, " begins at byte ", t.begin,
                                            ", the one before it ends at ", reached));
    }
    reached = t.end;
  }
  if (reached != data_bytes) {
    return absl::InvalidArgumentError(
        Cat("the last tensor ends at byte ", reached, " of ", data_bytes));
  }
  return absl::OkStatus();
}

std::string JsonText(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

int64_t FileTensor::elements() const {
  const int64_t bytes = DtypeBytes(dtype);
  return bytes == 0 ? 0 : (end - begin) / bytes;
}

int64_t DtypeBytes(std::string_view dtype) {
  static constexpr std::array<std::pair<std::string_view, int64_t>, 15> kTypes = {{{"F64", 8},
                                                                                   {"F32", 4},
                                                                                   {"F16", 2},
                                                                                   {"BF16", 2},
                                                                                   {"I64", 8},
                                                                                   {"I32", 4},
                                                                                   {"I16", 2},
                                                                                   {"I8", 1},
                                                                                   {"U64", 8},
                                                                                   {"U32", 4},
                                                                                   {"U16", 2},
                                                                                   {"U8", 1},
                                                                                   {"BOOL", 1},
                                                                                   {"F8_E4M3", 1},
                                                                                   {"F8_E5M2", 1}}};
  for (const auto& [name, bytes] : kTypes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t d : shape) text += Cat(text.empty() ? "" : ", ", d);
  return Cat("[", text, "]");
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json,
                                                         int64_t data_bytes) {
  SafetensorsHeader header;
  std::set<std::string> names;
  Scanner in(json);
  in.Need('{');
  if (!in.Take('}')) {
    do {
      FileTensor tensor;
      tensor.name = in.String(kMaxNameBytes);
      in.Need(':');
      if (!in.ok()) break;
      if (!names.insert(tensor.name).second) {
        in.Fail(Cat("'", tensor.name, "' stands there twice"));
      } else if (names.size() > kMaxTensors) {
        in.Fail("too many tensors");
      } else if (tensor.name == kMetadata) {
        ReadMetadata(&in, &header);
      } else {
        ReadTensor(&in, &tensor);
        header.tensors.push_back(std::move(tensor));
      }
    } while (in.ok() && in.More('}'));
  }
  in.End();
  HF_RETURN_IF_ERROR(in.status());
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const FileTensor& a, const FileTensor& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  HF_RETURN_IF_ERROR(CheckPlaces(header.tensors, data_bytes));
  return header;
}

absl::StatusOr<std::string> MakeSafetensorsHeader(SafetensorsHeader* header) {
  std::string json = "{";
  if (!header->metadata.empty()) {
    json += Cat(JsonText(kMetadata), ":{");
    for (const auto& [key, value] : header->metadata)
      json += Cat(json.back() == '{' ? "" : ",", JsonText(key), ":", JsonText(value));
    json += "}";
  }
  int64_t reached = 0;
  for (FileTensor& t : header->tensors) {
    int64_t bytes = 0;
    if (DtypeBytes(t.dtype) == 0 || !BytesOf(t, &bytes))
      return absl::InvalidArgumentError(
          Cat("tensor ", t.name, ": ", t.dtype, " ", ShapeText(t.shape), " cannot be written"));
    t.begin = reached;
    t.end = reached += bytes;
    json +=
        Cat(json.size() == 1 ? "" : ",", JsonText(t.name), ":{\"dtype\":", JsonText(t.dtype),
            ",\"shape\":", ShapeText(t.shape), ",\"data_offsets\":[", t.begin, ",", t.end, "]}");
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  ByteWriter out;
  out.Put<uint64_t>(json.size());
  out.PutRaw(json.data(), json.size());
  return out.Take();
}

}  // namespace holdfast
