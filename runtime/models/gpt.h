// GPT-2 (Radford et al. 2019): pre-norm blocks, learned positions, packed query-key-value
// projection, MLP of four times the width with the tanh form of GELU, final layer norm, output tied
// to the token embedding. Tensor names, shapes and the [in, out] order of the projections are those
// of GPT-2's published weights. Initialised with N(0, 0.02), the projections into the residual
// stream with 0.02 / sqrt(2 * layers), gains 1, biases 0. Layer norm epsilon 1e-5.
//
// Dropout acts on the embedding and on what each block adds to the residual stream, not on
// attention weights: these are never stored.
//
// Two weight-decay groups: "decay" (matrices and embeddings) and "no_decay" (biases, gains).
// Fields of a micro-batch: token_batch.h. Loss: sum over the counted tokens; weight: their number.
// Memory: activations linear in layers, tokens and width, in one workspace block; logits in blocks
// of rows. Threads: an instance is used by one thread at a time and keeps nothing between calls but
// its layout.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/models/built_in_config.h"
#include "runtime/models/model.h"

namespace holdfast {

// kInvalidArgument: sizes that do not go together (embed not divisible by heads, ...).
absl::StatusOr<std::unique_ptr<Model>> MakeGpt(const BuiltInConfig& config);

}  // namespace holdfast
