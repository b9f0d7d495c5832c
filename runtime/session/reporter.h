// Turns what a worker knows into the messages of supervisor/messages.h. Main thread and writer
// thread; thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/exit_code.h"
#include "runtime/session/step_engine.h"
#include "runtime/session/time_ledger.h"
#include "runtime/supervisor/messages.h"
#include "storage/checkpoint_store.h"

namespace holdfast {

struct JoinedReport {
  uint64_t generation = 0;
  int world_size = 0, rank = 0;
  int64_t step = 0;
  std::string source, note;
  std::string carrier;  // Communicator::Carrier
  uint32_t branch = 0;
  std::vector<std::pair<uint32_t, int64_t>> forks;  // the lineage: branch, step
};

struct StepReport {
  StepResult result;
  uint64_t digest = 0, samples = 0, generation = 0;
  int world_size = 0;
  double step_ms = 0, flops = 0;
  int64_t tokens = 0;
  uint32_t branch = 0;
  // StepFacts' trace, for those who look at the overlap.
  int64_t first_bucket_queued_us = 0, first_bucket_reduced_us = 0, last_backward_us = 0;
};

struct SaveReport {
  std::string_view phase;  // begun | saved | failed
  storage::CheckpointId id;
  double stall_ms = 0, write_ms = 0;
  int64_t bytes = 0;
  int copies = 1;
  std::string text;
};

struct FinalReport {
  ExitCode exit = ExitCode::kFailed;
  std::string text;
  int64_t step = 0;
  uint64_t digest = 0;  // 0: this worker holds no state (a spare)
  uint64_t generation = 0;
  double train_loss = 0, eval_loss = 0;
  bool finished = false;
};

class Reporter {
 public:
  explicit Reporter(Channel& channel) : channel_(channel) {}
  void Joined(const JoinedReport& report);
  void Lost(uint64_t generation, int64_t step, std::string_view cause);
  void FirstStep(uint64_t generation, int64_t step);
  // With the time so far, so that a worker that dies leaves an account.
  void Step(const StepReport& report, const TimeLedger& time);
  void Eval(int64_t step, double loss, int64_t items);
  void Save(const SaveReport& report);
  void Event(std::string_view kind, int64_t step, std::string_view text);
  void Final(const FinalReport& report, const TimeLedger& time);

 private:
  Channel& channel_;
};

}  // namespace holdfast
