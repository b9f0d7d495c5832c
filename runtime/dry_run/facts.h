// What `holdfast run --dry-run` finds out, as plain data: about the machine, the model, and from a
// few real steps. Units: bytes, milliseconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/exit_code.h"

namespace holdfast {

struct MachineFacts {
  int cores = 1;             // that this process may use
  int64_t memory_free = -1;  // available now, within the container's limit; -1: unknown
  int64_t disk_free = -1;    // where --dir is or would be; -1: unknown
};

// One thing that was checked before anything was timed.
struct Check {
  enum class Outcome { kOk, kWarning, kFailed };
  std::string name;
  Outcome outcome = Outcome::kOk;
  std::string text;
  ExitCode exit = ExitCode::kUsage;  // kFailed: what a run would end with
};

struct ModelFacts {
  int64_t parameters = 0;  // trained
  int64_t tensors = 0;
  int64_t state_bytes = 0;     // of a checkpoint: values, moments, frozen tensors, buffers
  int64_t resident_bytes = 0;  // of one worker alone, without activations: what the formula says
  int64_t tokens_per_step = 0, eval_batches = 0;
  std::string data;  // the source's own summary
};

// Of one worker with the configured --threads, by the real engine.
struct Measured {
  ModelFacts model;
  int64_t units = 0;    // micro-batches in each timed step
  int64_t steps = 0;    // timed
  double round_ms = 0;  // --threads micro-batches computed at once, fixed point included
  double apply_ms = 0;  // all of a step that is not that: digests, table, norm, optimizer
  double fast_round_ms = -1, fast_apply_ms = -1;  // with --reduction fast; -1: not measured
  double eval_round_ms = 0;                       // --threads held-out batches at once
  int64_t other_bytes = 0;  // activations, workspace, the program: measured less the formula
  double first_loss = 0, last_loss = 0;
  bool nonfinite = false;
  // "" = the same bits; else the first tensor (or loss, data, ...) that differed.
  std::string differs_again, differs_threads;
  bool determinism_known = false;
};

}  // namespace holdfast
