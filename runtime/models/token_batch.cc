#include "runtime/models/token_batch.h"

#include <algorithm>

#include "runtime/base/status.h"

namespace holdfast {
namespace {

absl::Status Bad(const MicroBatch& micro_batch, std::string_view what) {
  return absl::InvalidArgumentError(
      Cat("micro-batch ", micro_batch.index, " of step ", micro_batch.step, ": ", what));
}

}  // namespace

absl::StatusOr<TokenBatch> ViewTokenBatch(const MicroBatch& micro_batch,
                                          const TokenBatchLimits& limits) {
  if (micro_batch.fields.size() != 2)
    return Bad(micro_batch, "two fields expected, tokens and targets");
  const Tensor &tokens = micro_batch.fields[0], &targets = micro_batch.fields[1];
  for (const Tensor* t : {&tokens, &targets}) {
    if (t->type != Type::kI32 || t->device != DeviceKind::kCpu || t->shape.size() != 2 ||
        t->shape != tokens.shape) {
      return Bad(micro_batch, "tokens and targets must be int32 [batch, context] in host memory");
    }
  }
  TokenBatch out{.rows = tokens.elements(),
                 .batch = tokens.shape[0],
                 .context = tokens.shape[1],
                 .tokens = tokens.as<const int32_t>(),
                 .targets = targets.as<const int32_t>()};
  if (out.batch < 1 || out.context < 1 || out.batch > limits.batch ||
      out.context > limits.context) {
    return Bad(micro_batch, Cat("[", out.batch, ", ", out.context, "] tokens; at most [",
                                limits.batch, ", ", limits.context, "] are configured"));
  }
  int32_t low = 0, high = 0, target_high = 0;
  for (int64_t i = 0; i < out.rows; ++i) {
    low = std::min(low, out.tokens[i]);
    high = std::max(high, out.tokens[i]);
    target_high = std::max(target_high, out.targets[i]);
    out.counted += out.targets[i] >= 0;
  }
  if (low < 0 || high >= limits.vocab || target_high >= limits.vocab) {
    return Bad(micro_batch, Cat("token ", low < 0 ? low : std::max(high, target_high),
                                " is outside the vocabulary of ", limits.vocab));
  }
  return out;
}

const int32_t* UploadTokens(Pass& pass, const int32_t* tokens, int64_t count) {
  return pass
      .Upload(Tensor{.data = const_cast<int32_t*>(tokens), .type = Type::kI32, .shape = {count}})
      .as<const int32_t>();
}

absl::Status CheckTokens(std::span<const int32_t> tokens, int64_t vocab) {
  if (tokens.empty()) return absl::InvalidArgumentError("at least one token is needed");
  for (const int32_t token : tokens) {
    if (token >= 0 && token < vocab) continue;
    return absl::InvalidArgumentError(
        Cat("token ", token, " is outside the vocabulary of ", vocab));
  }
  return absl::OkStatus();
}

}  // namespace holdfast
