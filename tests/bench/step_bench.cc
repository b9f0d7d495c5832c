// One training step of the 834 k GPT (4 layers, 4 heads, 128 wide, context 64; 768 tokens, M = 4)
// on one core, as the session takes it: the real engine, the real data path, a world of one.
// Everything is a ratio of interleaved readings of one run: a fixed-point step, a step with
// --reduction fast, and a matrix product, in turns.
//   step_bench [--json] [--rounds N]
#include <cstdio>

#include "chaos/sgemm_rate.h"
#include "runtime/base/clock.h"
#include "runtime/base/digest.h"
#include "tests/bench/live_run.h"
#include "tests/bench/report.h"
#include "tests/session/engine_world.h"

namespace holdfast {
namespace {

// Products only, forward and backward: 6 x (4 layers x 12 width^2 + vocabulary x width) x tokens.
constexpr double kTokens = 768;
constexpr double kProducts = 6.0 * (4 * 12 * 128 * 128 + 256 * 128) * kTokens;

Config SmallGpt(const std::string& data, std::string_view reduction) {
  Config c;
  c.model = "gpt";
  c.data = {data};
  c.steps = 100'000;
  c.micro_batches = 4;
  c.micro_batch_size = 3;
  c.reduction = std::string(reduction);
  return c;
}

double MsOf(const std::function<void()>& work) {
  const int64_t start = BootUs();
  work();
  return static_cast<double>(BootUs() - start) * 1e-3;
}

class StepBench {
 public:
  StepBench(const std::string& text, int rounds)
      : rounds_(rounds),
        fixed_(SmallGpt(text, "exact"), BuiltInTrainer(), 1, MakeLocalCommunicator()),
        fast_(SmallGpt(text, "fast"), BuiltInTrainer(), 1, MakeLocalCommunicator()) {}

  absl::Status Measure() {
    for (int i = 0; i < rounds_ + 3; ++i) {
      bool ok = true;
      const double fixed = MsOf([&] { ok &= fixed_.Step(); });
      const double fast = MsOf([&] { ok &= fast_.Step(); });
      if (!ok) return fixed_.status.ok() ? fast_.status : fixed_.status;
      const double sgemm = chaos::SgemmSampleFlopsPerSecond();
      const double digests = MsOf([&] { Digests(); });
      const double table = MsOf([&] { Table(); });
      if (i < 3) continue;  // caches, pages, first JIT
      fixed_ms_.push_back(fixed);
      fast_ms_.push_back(fast);
      sgemm_.push_back(sgemm);
      compute_ms_.push_back(static_cast<double>(fixed_.facts.compute_us) * 1e-3);
      fast_compute_ms_.push_back(static_cast<double>(fast_.facts.compute_us) * 1e-3);
      digests_ms_.push_back(digests);
      table_ms_.push_back(table);
    }
    return absl::OkStatus();
  }

  int Report(BenchReport& report) const {
    const double step = Median(fixed_ms_), fast = Median(fast_ms_), sgemm = Median(sgemm_);
    const double compute = Median(compute_ms_), fast_compute = Median(fast_compute_ms_);
    report.Add("step", step, "ms");
    report.Add("tokens a second", kTokens / step * 1e3, "tokens/s");
    report.Add("forward, backward, fixed point", compute, "ms");
    report.Add("reduce, digests, table, optimizer", step - compute, "ms");
    report.Add("sgemm, same turns", sgemm * 1e-9, "GFLOP/s");
    report.Add("step's share of the sgemm rate", 100 * kProducts / (step * 1e-3) / sgemm, "%",
               ">= 60");
    report.Add("step with --reduction fast", fast, "ms");
    report.Add("fixed point, of compute", 100 * (compute - fast_compute) / fast_compute, "%",
               "<= 3");
    report.Add("digests and table, of a step",
               100 * (Median(digests_ms_) + Median(table_ms_)) / fast, "%", "<= 2",
               "parameters as used, state, control table; saves and leases: bench save");
    return report.Print();
  }

 private:
  // What a step digests and sums for the table, again.
  void Digests() {
    uint64_t sink = *fixed_.state->ParametersDigest();
    (void)fixed_.state->Redigest();
    sink_ += sink;
  }
  void Table() {
    ControlRow row;
    row.generation = 1;
    row.step = fixed_.state->scalars.step;
    row.state_digest = fixed_.state->Digest();
    std::vector<ControlRow> rows;
    if (fixed_.engine->Round(fixed_.comm, row, &rows).ok())
      sink_ += Judge(rows, fixed_.Expect()).intents;
  }

  const int rounds_;
  RankWorld fixed_, fast_;
  std::vector<double> fixed_ms_, fast_ms_, sgemm_, compute_ms_, fast_compute_ms_, digests_ms_,
      table_ms_;
  uint64_t sink_ = 0;
};

int Main(int argc, char** argv) {
  BenchReport report("step", argc, argv);
  const BenchFolder folder;
  const int rounds = std::max(5, static_cast<int>(report.Number("--rounds", 60)));
  kernels::SetComputeThread();
  absl::Status status;
  {
    StepBench bench(folder.text(), rounds);
    status = bench.Measure();
    if (status.ok()) bench.Report(report);
  }
  if (!status.ok()) std::fprintf(stderr, "step_bench: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) { return holdfast::Main(argc, argv); }
