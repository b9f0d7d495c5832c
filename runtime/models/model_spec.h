// What can be done with a ModelSpec without running the model: checking it and making the first
// parameters. Pure functions; any thread (a stream belongs to one thread).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "runtime/models/model.h"

namespace holdfast {

// Names unique and not empty, shapes positive, groups known, inits readable, max_weight at least 1.
// kInvalidArgument names the tensor. Called once by whoever uses a model's Describe().
[[nodiscard]] absl::Status ValidateModelSpec(const ModelSpec& spec);

int64_t ElementsOf(const TensorSpec& spec);

// out[0..count) = elements first .. first+count-1 of the tensor's first value, a pure function of
// (seed, spec.name, spec.init, index): any slice, in any order, gives the same values on any
// worker. In stream order. kInvalidArgument: spec.init cannot be read.
[[nodiscard]] absl::Status InitializeTensor(kernels::Stream& stream, const TensorSpec& spec,
                                            uint64_t seed, int64_t first, int64_t count,
                                            float* out);

// "normal:SD", with all digits that SD has.
std::string NormalInit(double deviation);

}  // namespace holdfast
