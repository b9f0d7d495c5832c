// What grows with the number of workers: a tiny GPT (2 layers, 32 wide) with 1, 2, 4, 8, 16 workers
// on this one machine, 16 micro-batches a step. Overhead: all that is not computing, a step
// (reduction, table, waiting; with more workers than cores also waiting for the cores). Regroup:
// from a SIGKILL to the first step of the next generation.
//   growth_bench [--json] [--steps N]
#include <cstdio>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/text.h"
#include "tests/bench/live_run.h"
#include "tests/bench/report.h"

namespace holdfast {
namespace {

std::vector<std::string> TinyFlags(int workers, int64_t steps) {
  return {"--workers",
          Cat(workers),
          "--steps",
          Cat(steps),
          "--layers",
          "2",
          "--heads",
          "2",
          "--embed",
          "32",
          "--context",
          "16",
          "--micro-batches",
          "16",
          "--micro-batch-size",
          "1",
          "--warmup-steps",
          "10",
          "--checkpoint-every",
          "1000000",
          "--restarts",
          "100"};
}

// Undisturbed: seconds by kind, from the run's own ledger.
absl::Status MeasureSteps(const BenchFolder& folder, int workers, int64_t steps,
                          BenchReport& report) {
  HF_ASSIGN_OR_RETURN(const auto run,
                      LiveRun::Start(folder, Cat("steps-", workers), TinyFlags(workers, steps)));
  HF_RETURN_IF_ERROR(run->WaitForStep(steps / 5));  // start-up is over
  const int64_t from = run->step(), from_us = BootUs();
  HF_RETURN_IF_ERROR(run->WaitForStep(steps - 2));
  const double step_ms =
      static_cast<double>(BootUs() - from_us) * 1e-3 / static_cast<double>(run->step() - from);
  HF_ASSIGN_OR_RETURN(const chaos::Summary summary, run->Finish());
  const double all = static_cast<double>(steps);
  report.Add(Cat("step, ", workers, workers == 1 ? " worker" : " workers"), step_ms, "ms");
  report.Add("  of it computing, mean", summary.time.at("compute") / all * 1e3, "ms");
  report.Add("  overhead: reduction and table", summary.time.at("reduce") / all * 1e3, "ms");
  return absl::OkStatus();
}

absl::Status MeasureRegroup(const BenchFolder& folder, int workers, BenchReport& report) {
  HF_ASSIGN_OR_RETURN(const auto run, LiveRun::Start(folder, Cat("regroup-", workers),
                                                     TinyFlags(workers, 1'000'000)));
  chaos::Dice dice(static_cast<uint64_t>(workers));
  std::vector<double> took_ms;
  for (int i = 0; i < 5; ++i) {
    HF_RETURN_IF_ERROR(run->WaitForWorld(workers));
    HF_RETURN_IF_ERROR(run->WaitForStep(run->step() + 20));
    const int64_t recoveries = run->CountEvents("recovered");
    chaos::Fault fault;
    fault.slot = static_cast<int>(dice.Draw(0, workers - 1));
    HF_ASSIGN_OR_RETURN(const chaos::Proof proof,
                        chaos::Inject(run->process(), run->dir(), fault, Deadline::After(kWaitMs)));
    HF_RETURN_IF_ERROR(
        run->Follow("the recovery", [&] { return run->CountEvents("recovered") > recoveries; }));
    took_ms.push_back(run->LastEventMs("recovered") - static_cast<double>(proof.done_ms));
  }
  report.Add(Cat("SIGKILL to the next step, ", workers, " workers"), Median(took_ms), "ms");
  return run->Stop().status();
}

absl::Status Measure(BenchReport& report) {
  const BenchFolder folder;
  const auto steps = static_cast<int64_t>(report.Number("--steps", 400));
  for (const int workers : {1, 2, 4, 8, 16}) {
    report.Say(Cat("  ", workers, workers == 1 ? " worker" : " workers"));
    HF_RETURN_IF_ERROR(MeasureSteps(folder, workers, steps, report));
    if (workers > 1) HF_RETURN_IF_ERROR(MeasureRegroup(folder, workers, report));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  BenchReport report("growth", argc, argv);
  const absl::Status status = Measure(report);
  if (!status.ok())
    std::fprintf(stderr, "growth_bench: %s\n", std::string(status.message()).c_str());
  return status.ok() ? report.Print() : 1;
}

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) { return holdfast::Main(argc, argv); }
