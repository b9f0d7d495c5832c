// A feed-forward language model (Bengio et al. 2003): each token is predicted from the ones before
// it, at most eight, whose embeddings stand side by side in front of hidden layers of `embed` ReLU
// units. Small, quick, and an example of a model on the interface of model.h: it has a metric
// ("accuracy") besides the loss.
//
// Configuration: layers (hidden), embed, context, vocab_size, dropout (on hidden units). Fields:
// token_batch.h. Initialised with N(0, sqrt(2 / inputs)) (He et al. 2015), embeddings with N(0, 1)
// / 10, biases 0. Threads: an instance is used by one thread at a time.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/models/built_in_config.h"
#include "runtime/models/model.h"

namespace holdfast {

absl::StatusOr<std::unique_ptr<Model>> MakeMlp(const BuiltInConfig& config);

}  // namespace holdfast
