// Does the model give the same bits when it computes the same micro-batch again, and in two threads
// at once? That is what a model promises (models/model.h) and what the same bits of a run rest on.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/config/config.h"
#include "runtime/models/model.h"
#include "runtime/session/state.h"

namespace holdfast {

struct Repeatability {
  // "" = the same bits; else what differed first: the data, the loss, or the gradient of a tensor,
  // in order of declaration (the order in which gradients come).
  std::string again, threads;
};

// Computes micro-batch 0 of step 0 four times: twice in a row, then twice at once. `data` and
// `state` are read only. Errors: those of the model and of the data source.
absl::StatusOr<Repeatability> CheckRepeatability(const Config& config, const Trainer& trainer,
                                                 DataSource* data, State* state);

}  // namespace holdfast
