// One training run of the real program for the process tests: a small GPT on a generated text, in
// its own folder, with the judge's verdict at its end. The program's path comes from
// HOLDFAST_PROGRAM (set by CTest).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "chaos/injector.h"
#include "chaos/oracle.h"
#include "chaos/process.h"
#include "chaos/residue.h"
#include "runtime/base/exit_code.h"

namespace holdfast::testing {

using Flags =
    std::map<std::string, std::string>;  // "workers" -> "3"; an empty value: a flag without one

// The folder of this test binary, removed at its end (kept, and named, when a test
// failed or HOLDFAST_KEEP is set).
const std::string& ScratchFolder();
// A fresh, not yet existing folder name below it.
std::string FreshFolder(const std::string& name);
// A deterministic English-like text file of about `bytes` bytes; made once.
std::string TextFile(int64_t bytes = 24'000);
std::string ProgramPath();

inline constexpr int64_t kSteps = 60;
inline constexpr int64_t kRunMs = 120'000;  // the longest that one run may take on a loaded machine

// The flags of every run: the model, the data and 60 steps with a checkpoint each 10.
Flags BaseFlags();
// From now on these are among them (in the reference run, too).
void AddToBaseFlags(const Flags& flags);

struct RunSpec {
  std::string dir = {};  // empty: a fresh one
  Flags flags = {};      // over BaseFlags
  std::map<std::string, std::string> env = {};
  // Makes every step this long at a site chosen by the test, so that a fault meets the run where it
  // is meant to.
  std::string failpoints = {};
};

class TrainRun {
 public:
  // Starts `holdfast run`. Fails the test when that is not possible.
  explicit TrainRun(const RunSpec& spec);

  const std::string& dir() const { return dir_; }
  chaos::ChildProcess& process() { return *process_; }
  // Waits for the end; the exit code, or -1 with a test failure (hang, killed by a signal).
  int Wait(int64_t ms = kRunMs);
  // The end as it was: "exit 0", "signal 9 (Killed)".
  std::string WaitText(int64_t ms = kRunMs);
  bool WaitForStep(int64_t step);
  // Does the fault and adds a test failure when it could not be proven.
  chaos::Proof Do(const chaos::Fault& fault);
  chaos::Proof DoTogether(const std::vector<chaos::Fault>& faults);
  std::string Output() const { return process_->Output(); }
  // Checks that nothing was left behind: processes, ports, shared memory and, where the supervisor
  // was not killed, files that are for a run's life only.
  void ExpectNoResidue(bool killed = false);

 private:
  chaos::Residue residue_;
  std::string dir_;
  std::unique_ptr<chaos::ChildProcess> process_;
};

// Runs `holdfast ARGS` to its end.
struct CommandResult {
  int code = -1;
  std::string output;
};
CommandResult Command(const std::vector<std::string>& args,
                      const std::map<std::string, std::string>& env = {});

// The undisturbed run with one worker: made once in a test binary.
const chaos::StepLog& Reference();

struct Expect {
  int64_t first_step = 1;
  bool summary = true;
};
// Compares the run in `dir` with the reference; every complaint becomes a test failure.
void ExpectSameBits(const std::string& dir, const Expect& expect = {});

// How many events of this kind (the "event" of a line) the run has on record.
int64_t CountEvents(const std::string& dir, const std::string& kind);
// Lines of events.jsonl that contain `text`.
int64_t CountEventLines(const std::string& dir, const std::string& text);

// A Redis with a password, on loopback, without persistence.
class TestRedis {
 public:
  TestRedis();
  int port() const { return port_; }
  std::string url() const;
  const std::string& password() const { return password_; }
  // For the processes that shall use it.
  std::map<std::string, std::string> env() const {
    return {{"HOLDFAST_REDIS_PASSWORD", password_}};
  }
  void KillHard();    // SIGKILL: everything in it is lost
  void StartAgain();  // empty, on the same port
  void Freeze();      // SIGSTOP: connections stay, nothing is answered
  void Thaw();
  // redis-cli ARGS: its output.
  std::string Cli(const std::vector<std::string>& args) const;

 private:
  int port_ = 0;
  std::string password_, dir_;
  std::unique_ptr<chaos::ChildProcess> process_;
};

}  // namespace holdfast::testing
