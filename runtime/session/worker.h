// A worker: one process of the run that computes. Meets the others, trains, saves, survives the
// loss of others in the same process. Started by the supervisor with one end of their channel.
#pragma once

#include "runtime/base/exit_code.h"
#include "runtime/models/model.h"
#include "runtime/supervisor/messages.h"

namespace holdfast {

// Runs until the run is finished, the worker has left, or an error ends it. Reports over `channel`.
// SIGTERM asks for a drain.
ExitCode RunWorker(Channel& channel, const Trainer& trainer);

}  // namespace holdfast
