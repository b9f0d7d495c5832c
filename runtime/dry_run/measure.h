// A few real steps of one worker in this process: the configured model, data and engine, without
// Redis, checkpoints or other workers. Blocks the calling thread; starts --threads compute threads.
#pragma once

#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/config/config.h"
#include "runtime/dry_run/facts.h"
#include "runtime/models/model.h"

namespace holdfast {

struct MeasureOptions {
  int64_t memory_free = -1;  // more is not allocated; -1: unknown
  int64_t budget_ms = 4000;  // for each of: exact steps, fast steps; at least two steps each
  std::function<void(std::string_view phase)> progress = [](std::string_view) {};
};

// The status carries the exit code that a run would end with (supervisor/exit_status.h):
// kResourceExhausted when the model does not fit into memory (nothing was allocated, and the
// message says what to change); the data source's and the model's own errors.
absl::StatusOr<Measured> Measure(const Config& config, const Trainer& trainer,
                                 const MeasureOptions& options);
// The same in a child process, which is what the kernel kills when memory runs out after all: that
// becomes kResourceExhausted. Call it while no other thread runs.
absl::StatusOr<Measured> MeasureInChild(const Config& config, const Trainer& trainer,
                                        const MeasureOptions& options);

// Bytes of one worker of `world_size`, activations and the program left out: value, moments,
// gradient and 64-bit sum of each parameter, a gradient for each compute thread, its slice of the
// reduced sums, and a snapshot of its slice while a checkpoint is under way.
int64_t ResidentBytes(int64_t parameters, int64_t state_bytes, int threads, int world_size,
                      bool saving);

}  // namespace holdfast
