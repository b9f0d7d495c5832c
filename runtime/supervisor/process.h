// Starting and judging child processes. Spawn must be called from a thread that lives as long as
// its children shall: the kernel's death signal follows the thread that forked, not the process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast {

struct SpawnOptions {
  std::string program = "/proc/self/exe";  // a path, or a name to look for in PATH
  std::vector<std::string> argv;
  int input_fd = -1;    // becomes descriptor 0; -1: /dev/null
  int output_fd = -1;   // becomes 1 and 2; -1: /dev/null
  int channel_fd = -1;  // becomes 3; -1: none
};

// The child gets SIGKILL when this thread ends, a process group of its own (a Ctrl-C on the
// terminal reaches the supervisor only), default signal dispositions but for inherited ignores, an
// empty mask, and no other descriptor. Returns when the new program runs; the error of a failed
// exec is returned, not left to the child.
absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

// "SIGKILL"; "signal 77" for one without a name.
std::string SignalName(int signal_number);

// Replaces closed descriptors 0-2 by /dev/null, so that no socket or file ever becomes "standard
// output".
void KeepStandardDescriptors();

// The state of one child, taken without blocking.
struct ChildChange {
  enum class Kind { kNone, kExited, kKilled, kStopped, kContinued };
  Kind kind = Kind::kNone;
  int value = 0;  // exit code or signal
};
// At most one change a call; call until kNone. An ended child is reaped.
ChildChange PollChild(pid_t pid);

// Counts of memory-limit kills that the kernel has made: in this process's memory control group, or
// on the machine where the group cannot be read. Compare two readings.
int64_t MemoryLimitKills();

}  // namespace holdfast
