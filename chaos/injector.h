// Injectors: do one harm to a running drill at a chosen moment, and prove that it was done. Without
// proof a drill's verdict is "inconclusive", never "passed".
//
// Threads: one Drill belongs to one thread.
// Errors: kFailedPrecondition: the run ended (or the step passed) before the fault could be done;
// kDeadlineExceeded.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "chaos/process.h"
#include "runtime/base/clock.h"

namespace holdfast::chaos {

enum class FaultKind : uint8_t {
  kKillWorker,      // SIGKILL to the worker in a slot
  kStopWorker,      // SIGSTOP
  kContinueWorker,  // SIGCONT
  kTermWorker,      // SIGTERM
  kTermSupervisor,  // SIGTERM to the supervisor
  kKillSupervisor,  // SIGKILL to the supervisor alone
  kKillAll,         // SIGKILL to every process of the drill at once, Redis too
};
const char* FaultName(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kKillWorker;
  int slot = 0;          // of kinds that hit a worker
  int64_t at_step = -1;  // when steps.jsonl shows this step; or
  int64_t after_ms = 0;  // so long after the call
};

struct Proof {
  std::string text;         // "worker in slot 2 (pid 123) died of signal 9"
  int64_t done_ms = 0;      // CLOCK_BOOTTIME of the signal
  std::vector<pid_t> pids;  // who was hit
  int64_t step = 0;         // newest step in steps.jsonl at that moment
};

// Reads steps.jsonl as it grows: the newest step in it.
class StepWatch {
 public:
  explicit StepWatch(const std::string& dir) : path_(dir + "/steps.jsonl") {}
  // 0 before the first step.
  int64_t Newest();

 private:
  std::string path_;
  int64_t offset_ = 0;
  int64_t newest_ = 0;
  std::string partial_;
};

// Waits until steps.jsonl of `dir` shows `step`. kFailedPrecondition when the process ends before.
absl::StatusOr<int64_t> WaitForStep(ChildProcess& run, const std::string& dir, int64_t step,
                                    Deadline deadline);

// Waits for the fault's moment, does it and proves it: a killed process is gone or a zombie, a
// stopped one is in state T, a continued one no more; SIGTERM is proven by kill(2) having reached
// the living incarnation that was meant.
absl::StatusOr<Proof> Inject(ChildProcess& run, const std::string& dir, const Fault& fault,
                             Deadline deadline);
// The same for several victims at one moment (the moment of the first).
absl::StatusOr<Proof> InjectTogether(ChildProcess& run, const std::string& dir,
                                     const std::vector<Fault>& faults, Deadline deadline);

// Seeded choices for drills: the n-th draw of a seed is always the same.
class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  // Uniform in [low, high].
  int64_t Draw(int64_t low, int64_t high);

 private:
  uint64_t seed_, count_ = 0;
};

}  // namespace holdfast::chaos
