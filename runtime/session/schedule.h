// The learning rate of a step: a pure function of the config and the step's number (1 = first).
#pragma once

#include <cstdint>

#include "runtime/config/config.h"

namespace holdfast {

// Linear warm-up over `warmup_steps`, then by `lr_schedule` from learning_rate to min_learning_rate
// at `steps`: cosine (Loshchilov, Hutter 2017), linear, or constant.
double LearningRate(const Config& config, int64_t step);

}  // namespace holdfast
