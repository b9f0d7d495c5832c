// The header of a safetensors file (github.com/huggingface/safetensors, format of 2022): u64
// length, little-endian, then so many bytes of JSON, then the tensors' bytes. The JSON is one
// object:
//   {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"K":
//   "V"}}
// The tensors tile the bytes behind the header without gap or overlap.
//
// The parser reads this form and nothing else, never recurses, and believes no number that it has
// not checked against the file's size: a hostile header is refused with kInvalidArgument, which
// says where. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast {

struct FileTensor {
  std::string name;
  std::string dtype;  // as in the file: F32, F16, BF16, I64, ...
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes, from the first one behind the header
  int64_t elements() const;
};

struct SafetensorsHeader {
  std::vector<FileTensor> tensors;  // in order of their bytes
  std::map<std::string, std::string> metadata;
};

inline constexpr int64_t kMaxHeaderBytes = 100'000'000;  // as the format has it

// json: the header without its length. data_bytes: the size of what is behind it.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t data_bytes);
// Length and JSON, padded with spaces so that the data begins on a multiple of 8 bytes. Fills in
// begin and end of every tensor, one after the other. kInvalidArgument: an unknown dtype.
absl::StatusOr<std::string> MakeSafetensorsHeader(SafetensorsHeader* header);

// Bytes of one element; 0 for a dtype that is not known.
int64_t DtypeBytes(std::string_view dtype);
// "[768, 2304]"
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace holdfast
