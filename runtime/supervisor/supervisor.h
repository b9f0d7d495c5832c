// `holdfast run` on one machine: starts the workers, sees their deaths and stops within
// milliseconds, certifies and restarts them, turns signals into a drain, keeps the books in --dir,
// and leaves nothing behind.
//
// Signals: SIGTERM, SIGINT (Ctrl-C), and SIGHUP unless it was ignored at the start (nohup): drain;
// all workers save and leave at a step boundary, within grace_ms, then SIGKILL. A second one:
// SIGKILL at once; saved checkpoints stay whole. SIGTSTP (Ctrl-Z): workers and Redis stop and
// continue with the supervisor. A worker that a person drains (SIGTERM to it) is not replaced
// unless fewer than min_workers would stay.
//
// Run must be called from the main thread, before other threads exist: it blocks signals for the
// process.
//
// A terminal that is closed means SIGHUP, hence a drain; under nohup, setsid or tmux there is none,
// and a terminal that has gone is not written to any more. The run never waits for one.
#pragma once

#include <string>

#include "runtime/base/exit_code.h"
#include "runtime/config/config.h"
#include "runtime/supervisor/store_link.h"

namespace holdfast {

struct SupervisorOptions {
  std::string program = "/proc/self/exe";  // what a worker is: this program again
  ConnectObserver connect;                 // required
  int out_fd = 1, err_fd = 2;
};

// The whole life of a run on this machine. Messages go to out_fd and err_fd; the last line says
// what the exit code means.
ExitCode RunSupervisor(const Config& wanted, const SupervisorOptions& options);

}  // namespace holdfast
