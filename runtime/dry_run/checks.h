// What a run would meet before its first step, looked at without changing anything: the directory,
// the run that it holds, Redis. Blocks for some seconds at most.
#pragma once

#include <vector>

#include "runtime/config/config.h"
#include "runtime/dry_run/facts.h"

namespace holdfast {

// `*resolved`: the configuration as a run would have it (name, workers, decay of an existing run).
std::vector<Check> CheckSurroundings(const Config& wanted, Config* resolved);

}  // namespace holdfast
