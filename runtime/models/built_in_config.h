// The keys of the resolved configuration (runtime/config/config.h has all of them, with their
// meaning) that the built-in models and data sources read. Kept apart from the program's Config so
// that models need nothing but this folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast {

struct BuiltInConfig {
  std::string model = "gpt";
  std::vector<std::string> data, eval_data;
  int64_t layers = 4, heads = 4, embed = 128, context = 64;
  int64_t vocab_size = 0;  // as written; 0: 256, the bytes of a text
  double dropout = 0;
  std::string limit_data;  // "", "1%" or "200000" (config.h)
  int64_t micro_batches = 4, micro_batch_size = 3, eval_batches = 0;
  uint64_t seed = 1;
  std::string precision = "fp32";

  int64_t vocab() const { return vocab_size == 0 ? 256 : vocab_size; }
};

// Reads a TOML text; keys that are not in the list above are left to others. kInvalidArgument names
// key, value and what would be right.
absl::StatusOr<BuiltInConfig> ParseBuiltInConfig(std::string_view toml);

}  // namespace holdfast
