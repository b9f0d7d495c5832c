// What `holdfast status` shows, gathered: the views that the supervisors publish, the roster in
// Redis, or the files of a run that nobody runs. One thread; takes a few seconds where Redis does
// not answer.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "rendezvous/view_board.h"
#include "runtime/cli/flags.h"
#include "runtime/view/snapshot.h"

namespace holdfast {

struct RunStatus {
  view::Snapshot snapshot;
  nlohmann::json json;  // for --json
  bool active = false;  // somebody runs it, as far as can be seen
  bool stale = false;   // what is shown is old: its supervisor may be dead
  std::string digest;   // of a run that is not active: of the last step on record
};

// Errors carry the exit code: kStore, or kFailed when there is no such run.
absl::StatusOr<RunStatus> GatherStatus(const CommandLine& line);

// Above this age a view counts as stale; a supervisor publishes every second.
inline constexpr int64_t kStaleMs = 10'000;
// Pure. One snapshot of what several machines pinned up and the roster (the JSON of
// Observer::StatusJson) says: figures from the freshest machine that takes part, workers from all.
// `stale`: see RunStatus.
view::Snapshot MergeViews(const std::vector<rendezvous::PinnedView>& pinned,
                          const nlohmann::json& roster, bool* stale);

}  // namespace holdfast
