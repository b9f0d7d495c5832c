// One rank of a run on a GPU, in this process: the real engine, pool, state and data path, without
// supervisor and Redis.
#pragma once

#include <memory>
#include <string>

#include "tests/gpu/gpu_check.h"
#include "tests/session/engine_world.h"

namespace holdfast {

// A .bin file of random tokens below `vocab` in the part's scratch folder.
std::string RandomTokens(const GpuCheck& check, int64_t count);

// A world of one on the check's device; so many units a step.
std::unique_ptr<RankWorld> OneRank(const GpuCheck& check, const std::string& data, int64_t units);

}  // namespace holdfast
