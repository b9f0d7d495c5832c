// The commands that look at a run from outside. Each prints for people (or JSON) and gives the exit
// code.
#pragma once

#include "runtime/base/exit_code.h"
#include "runtime/cli/flags.h"
#include "runtime/models/model.h"

namespace holdfast {

ExitCode StatusCommand(const CommandLine& line);
ExitCode WatchStatus(const CommandLine& line);  // status --watch
struct RunStatus;
void PrintStatus(const RunStatus& status);  // for people, as wide as the terminal
ExitCode StopCommand(const CommandLine& line);
ExitCode CheckpointListCommand(const CommandLine& line);
ExitCode CheckpointVerifyCommand(const CommandLine& line);
ExitCode CheckpointExportCommand(const CommandLine& line, const Trainer& trainer);
ExitCode SampleCommand(const CommandLine& line, const Trainer& trainer);

}  // namespace holdfast
