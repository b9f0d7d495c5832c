// Real processes for drills: start the program in its own process group with its output in a file,
// wait with a deadline, find what it started. Linux only: reads /proc.
//
// Nothing that a drill starts outlives it: every process carries a mark in its environment
// (HOLDFAST_DRILL=nonce) by which all of them are found again, whoever their parent is now, and the
// destructor kills what is left.
//
// Threads: one ChildProcess belongs to one thread; the free functions may be called from any
// thread. Errors: kInternal for a system call that failed (named), kDeadlineExceeded,
// kResourceExhausted for too much output.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/clock.h"

namespace holdfast::chaos {

inline constexpr char kMarkVariable[] = "HOLDFAST_DRILL";

struct SpawnOptions {
  std::vector<std::string> args = {};           // args[0] is the program's path
  std::map<std::string, std::string> env = {};  // added to this process's environment
  std::string output_path = {};                 // standard output and error; appended to
  int64_t output_limit_bytes = 16 << 20;  // more than that is a fault: the process group is killed
  std::string input = {};                 // given on standard input; at most 64 KiB
};

// How a process ended.
struct EndState {
  bool exited = false;  // by exit(): code; else by signal
  int code = 0;
  int signal = 0;
  std::string Text() const;  // "exit 0", "signal 9 (Killed)"
};

class ChildProcess {
 public:
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const SpawnOptions& options);
  ~ChildProcess();  // kills every process with this mark
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& mark() const { return mark_; }
  // Has it ended? Never blocks.
  std::optional<EndState> Poll();
  // Waits for the end. On kDeadlineExceeded the process still runs.
  absl::StatusOr<EndState> Wait(Deadline deadline);
  // Sends `signal` to this process alone.
  [[nodiscard]] absl::Status Signal(int signal) const;
  // What it has written so far, at most the last `bytes`.
  std::string Output(size_t bytes = 1 << 20) const;

 private:
  ChildProcess(pid_t pid, std::string mark, SpawnOptions options);

  pid_t pid_;
  std::string mark_;
  SpawnOptions options_;
  std::optional<EndState> end_;
};

// One line of /proc for a process.
struct ProcessInfo {
  pid_t pid = 0, parent = 0;
  char state = '?';          // R S D T Z ...
  uint64_t start_ticks = 0;  // with pid: one incarnation
  std::vector<std::string> args;
  std::string Text() const;  // "pid 12 (S): holdfast worker ..."
};

// nullopt when there is no such process.
std::optional<ProcessInfo> ReadProcess(pid_t pid);
// All processes whose environment carries the mark, zombies left out, in order of their start.
std::vector<ProcessInfo> MarkedProcesses(const std::string& mark);
// The worker processes of a supervisor, in order of their slot.
struct WorkerInfo {
  int slot = 0;
  ProcessInfo process;
};
std::vector<WorkerInfo> WorkersOf(pid_t supervisor);
std::optional<WorkerInfo> WorkerInSlot(pid_t supervisor, int slot);

namespace internal {
void SleepMs(int64_t ms);
}

// Polls `done` each few milliseconds until it says yes or the deadline passes.
template <typename Predicate>
bool WaitUntil(Deadline deadline, Predicate done, int64_t every_ms = 2) {
  for (;;) {
    if (done()) return true;
    if (deadline.passed()) return false;
    internal::SleepMs(every_ms);
  }
}

// Makes this process the parent of orphans below it, so that none escapes to init unseen. Call
// once, early.
void AdoptOrphans();

}  // namespace holdfast::chaos
