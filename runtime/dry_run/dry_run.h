// `holdfast run --dry-run`: checks everything that a run would need, times a few steps of one
// worker with the real model, data and engine, and prints what the run would take. No run is
// started, nothing in --dir changes, nothing is written to Redis.
#pragma once

#include "runtime/base/exit_code.h"
#include "runtime/config/config.h"
#include "runtime/dry_run/estimate.h"
#include "runtime/models/model.h"

namespace holdfast {

struct DryRunOptions {
  EstimateOptions estimate;
  bool json = false;
};

// The report on standard output; progress on standard error when it takes longer than a moment.
// The exit code is kOk, or that of the first check that failed: what a run would end with. To be
// called while no other thread runs.
ExitCode DryRun(const Config& wanted, const DryRunOptions& options, const Trainer& trainer);

}  // namespace holdfast
