// What a run would take, from what was measured of one worker. A model of the step that is stated
// in full, so that a reader can put his own numbers into it. Pure functions; any thread.
//
//   step(N) = ceil(ceil(M / N) / T) * round + rest + reduce(N)
//     M micro-batches, T threads, round: T micro-batches at once, fixed point included; rest: what
//     every worker does once a step (digests, table, norm, optimizer)
//   reduce(N) = (N - 1) / N * B * parameters / link + 2 (N - 1) * latency
//     B = 12 bytes: 8 of 64-bit sums (reduce-scatter), 4 of the gradient (all-gather); with
//     --reduction fast 8. A ring uses every link at once. Nothing is taken off for the part that is
//     hidden behind the backward pass: the estimate is on the careful side.
//
// Each worker is taken to be on a machine (or share of one) like this one, except for the estimate
// "here", where --workers share this machine's cores.
#pragma once

#include <vector>

#include "runtime/config/config.h"
#include "runtime/dry_run/facts.h"

namespace holdfast {

struct EstimateOptions {
  double link_gbits = 10;     // between two workers, each way
  double latency_ms = 0.05;   // of one hop
  double local_gbits = 8;     // between two workers of one machine: 1 GB/s
  double price_per_hour = 0;  // of one worker; 0: not asked
};

struct WorldEstimate {
  int workers = 1;
  double compute_ms = 0, reduce_ms = 0, step_ms = 0;  // step = compute + rest + reduce
  double speed_up = 1, efficiency = 1;                // against one worker
  double hours = 0;                                   // the whole run, evaluations included
  double cost = 0;                                    // 0 without a price
};

struct Estimate {
  double step_ms_one = 0;             // one worker alone
  double fixed_share = -1;            // of such a step; -1: not measured or no fixed point
  std::vector<WorldEstimate> worlds;  // 1, 2, 4, 8, 16, 64
  int cheapest = -1, fastest = -1;    // indices into worlds; the smaller world where equal
  WorldEstimate here;                 // --workers on this machine
  int64_t memory_worker = 0;          // of each of --workers, a checkpoint under way
  int64_t memory_all = 0;
  int64_t fitting_workers = -1;                   // on this machine; -1: unknown
  int64_t checkpoint_bytes = 0, disk_needed = 0;  // disk: --keep and the one being written
  int64_t evaluations = 0;
};

// The world sizes of the table.
inline constexpr int kWorlds[] = {1, 2, 4, 8, 16, 64};

WorldEstimate EstimateWorld(const Config& config, const Measured& measured, int workers,
                            const EstimateOptions& options);
Estimate EstimateRun(const Config& config, const Measured& measured, const MachineFacts& machine,
                     const EstimateOptions& options);

}  // namespace holdfast
