// The page for Prometheus. Pure: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "runtime/view/snapshot.h"

namespace holdfast {

// What only ever grows in the life of a supervisor.
struct RunCounters {
  int64_t steps = 0, tokens = 0, skipped = 0, recoveries = 0, workers_lost = 0;
  int64_t checkpoints = 0, checkpoint_failures = 0, checkpoint_bytes = 0;
  double flops = 0, recovery_s = 0, checkpoint_stall_s = 0;
  std::array<double, view::kActivities.size()> worker_s = {};  // sum over this machine's workers
};

std::string MetricsPage(const view::Snapshot& snapshot, const RunCounters& counters,
                        const std::map<std::string, int64_t>& worker_states);

}  // namespace holdfast
