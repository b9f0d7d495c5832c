// The micro-batch of a language model: fields tokens and targets, int32 [B, T], target[i] the token
// after token[i], or negative: not counted.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "runtime/models/model.h"

namespace holdfast {

struct TokenBatch {
  int64_t rows = 0;     // B * T
  int64_t batch = 0;    // B
  int64_t context = 0;  // T
  int64_t counted = 0;  // targets that are not negative
  const int32_t* tokens = nullptr;
  const int32_t* targets = nullptr;
};

struct TokenBatchLimits {
  int64_t batch = 0, context = 0, vocab = 0;
};

// kInvalidArgument: not of this form, larger than the limits, or a token or target out of the
// vocabulary.
absl::StatusOr<TokenBatch> ViewTokenBatch(const MicroBatch& micro_batch,
                                          const TokenBatchLimits& limits);

// A copy where the model computes (itself on the CPU), in stream order.
const int32_t* UploadTokens(Pass& pass, const int32_t* tokens, int64_t count);

// kInvalidArgument: no token, or one that is outside the vocabulary.
[[nodiscard]] absl::Status CheckTokens(std::span<const int32_t> tokens, int64_t vocab);

}  // namespace holdfast
