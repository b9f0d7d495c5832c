// The judge of a drill, outside the faulted path: it reads only the files that a run leaves in its
// --dir and compares them with those of an undisturbed run. Equal or broken; nothing in between.
//
// What it checks (S numbers: the invariants listed in FAULTS.md):
//   S3/S6  every step's state digest and sample ledger are those of the reference
//   S4     every step is there once: no gap, none twice (repeats only where all workers were lost,
//   with equal digests) S1     generations never go back, and one generation has one world size
//   summary.json is consistent: final step and digest, time buckets that add up to the wall time
//
// Pure functions over files; may be called from any thread. Errors: kNotFound, kDataLoss (a line
// that is no JSON and is not the torn last one: named).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::chaos {

struct StepLine {
  int64_t step = 0;
  double loss = 0;
  std::string digest, samples;  // 16 hex digits each
  int64_t world_size = 0;
  int64_t generation = 0;
};

struct StepLog {
  std::vector<StepLine> lines;
  bool torn = false;  // the last line was cut off: left out
  int64_t last_step() const { return lines.empty() ? 0 : lines.back().step; }
};

// Reads DIR/steps.jsonl.
absl::StatusOr<StepLog> ReadSteps(const std::string& dir);

struct JudgeOptions {
  int64_t first_step = 1,
          last_step = 0;  // the log must cover them; last 0: as far as the reference
};

// What is wrong, in words, at most 20 lines; empty: nothing.
std::vector<std::string> JudgeSteps(const StepLog& reference, const StepLog& log,
                                    const JudgeOptions& options);

struct Recovery {
  std::string cause;
  double detect_ms = 0, regroup_ms = 0, first_step_ms = 0;
};

struct Summary {
  int64_t final_step = 0;
  std::string digest;
  double train_loss = 0, wall_s = 0, tokens_per_s = 0, parallel_efficiency = 0;
  int64_t generations = 0, workers_lost = 0, steps_lost = 0;
  std::vector<Recovery> recoveries;
  std::map<std::string, double> time;  // compute, reduce, wait, checkpoint, lost: seconds
};

// Reads DIR/summary.json. kDataLoss names a key that is missing or of another type.
absl::StatusOr<Summary> ReadSummary(const std::string& dir);

// Final step and digest against the log; time buckets against the wall time: within 1% or 50 ms.
std::vector<std::string> JudgeSummary(const StepLog& reference, const Summary& summary);

struct EventLine {
  std::string kind;  // "joined", "lost", "death", "recovered", "save", ...
  std::string text;  // for people
  std::string line;  // the whole line
  int64_t generation = -1, world_size = -1, step = -1, worker = -1;
  double ms = -1;  // CLOCK_BOOTTIME
};

// Reads DIR/events.jsonl; a torn last line is left out.
absl::StatusOr<std::vector<EventLine>> ReadEvents(const std::string& dir);

// One roster per generation: every line that names a generation with a world size names the same
// one.
std::vector<std::string> JudgeEvents(const std::vector<EventLine>& events);

}  // namespace holdfast::chaos
