// How long a fault keeps the run from its next step: four workers of the 834 k GPT, SIGKILL of one
// at a random moment (20 times), SIGSTOP of one (5 times). From the signal to the first step of the
// next generation, by the clock of the one who sent it.   recovery_bench [--json] [--kills N]
// [--freezes N]
#include <cstdio>
#include <cstdlib>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/text.h"
#include "tests/bench/live_run.h"
#include "tests/bench/report.h"

namespace holdfast {
namespace {

using chaos::FaultKind;

class RecoveryBench {
 public:
  RecoveryBench(BenchReport& report, int kills, int freezes)
      : report_(report), kills_(kills), freezes_(freezes) {}

  absl::Status Run() {
    HF_ASSIGN_OR_RETURN(
        run_, LiveRun::Start(folder_, "run",
                             {"--workers", "4", "--steps", "1000000", "--checkpoint-every",
                              "1000000", "--restarts", "1000"}));
    for (int i = 0; i < kills_; ++i) {
      HF_RETURN_IF_ERROR(Harm(FaultKind::kKillWorker, &kill_ms_));
      report_.Say(Cat("  SIGKILL ", i + 1, ": ", kill_ms_.back(), " ms"));
    }
    for (int i = 0; i < freezes_; ++i) {
      HF_RETURN_IF_ERROR(Harm(FaultKind::kStopWorker, &freeze_ms_));
      report_.Say(Cat("  SIGSTOP ", i + 1, ": ", freeze_ms_.back(), " ms"));
    }
    return run_->Stop().status();
  }

  int Print() {
    const double three = Median(step_of_three_ms_);
    report_.Add("step, four workers", Median(step_of_four_ms_), "ms");
    report_.Add("step, three workers", three, "ms");
    if (kills_ > 0) {
      report_.Add("SIGKILL to the next step, p50", Median(kill_ms_), "ms");
      report_.Add("SIGKILL to the next step, p90", Quantile(kill_ms_, 0.9), "ms");
      report_.Add("SIGKILL p50 less a step of three", Median(kill_ms_) - three, "ms", "<= 100");
    }
    if (freezes_ > 0)
      report_.Add("SIGSTOP to the next step, p50", Median(freeze_ms_), "ms", "<= 2000");
    return report_.Print();
  }

 private:
  // Runs on for `ms` and books the time of each step.
  absl::Status Watch(int64_t ms, std::vector<double>* step_ms) {
    const Deadline deadline = Deadline::After(ms);
    int64_t seen = run_->step(), since_us = 0;
    return run_->Follow("more steps", [&] {
      const int64_t now = run_->step();
      if (now == seen) return deadline.passed();
      const int64_t us = BootUs();
      if (since_us != 0)
        step_ms->push_back(static_cast<double>(us - since_us) * 1e-3 /
                           static_cast<double>(now - seen));
      seen = now;
      since_us = us;
      return deadline.passed();
    });
  }

  absl::Status Harm(FaultKind kind, std::vector<double>* took_ms) {
    HF_RETURN_IF_ERROR(run_->WaitForWorld(4));
    HF_RETURN_IF_ERROR(Watch(dice_.Draw(300, 600), &step_of_four_ms_));
    const int64_t recoveries = run_->CountEvents("recovered");
    chaos::Fault fault;
    fault.kind = kind;
    fault.slot = static_cast<int>(dice_.Draw(0, 3));
    HF_ASSIGN_OR_RETURN(const chaos::Proof proof, chaos::Inject(run_->process(), run_->dir(), fault,
                                                                Deadline::After(kWaitMs)));
    HF_RETURN_IF_ERROR(
        run_->Follow("the recovery", [&] { return run_->CountEvents("recovered") > recoveries; }));
    took_ms->push_back(run_->LastEventMs("recovered") - static_cast<double>(proof.done_ms));
    return Watch(300, &step_of_three_ms_);
  }

  BenchReport& report_;
  const int kills_, freezes_;
  BenchFolder folder_;
  std::unique_ptr<LiveRun> run_;
  chaos::Dice dice_{7};
  std::vector<double> kill_ms_, freeze_ms_, step_of_four_ms_, step_of_three_ms_;
};

int Main(int argc, char** argv) {
  BenchReport report("recovery", argc, argv);
  RecoveryBench bench(report, static_cast<int>(report.Number("--kills", 20)),
                      static_cast<int>(report.Number("--freezes", 5)));
  const absl::Status status = bench.Run();
  if (!status.ok())
    std::fprintf(stderr, "recovery_bench: %s\n", std::string(status.message()).c_str());
  return status.ok() ? bench.Print() : 1;
}

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) { return holdfast::Main(argc, argv); }
