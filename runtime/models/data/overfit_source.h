// `overfit = N`: a source that gives the first N micro-batches of another one again and again.
// Micro-batch j of step s is number s * micro_batches + j of the run; here it is that number modulo
// N. Held-out data stays what it is. Thread-safe as the source behind it.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/models/model.h"

namespace holdfast {

// The source itself when count is 0. kInvalidArgument: a streaming source, which has no micro-batch
// that could be read twice.
absl::StatusOr<std::unique_ptr<DataSource>> Overfit(std::unique_ptr<DataSource> source,
                                                    int64_t micro_batches, int64_t count);

}  // namespace holdfast
