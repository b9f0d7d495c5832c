// Training GPT-2 124M: tokens a second, and the share of the GPU's rate that this is.
#include "tests/gpu/training.h"

#include <cmath>
#include <fstream>

#include "runtime/base/clock.h"
#include "runtime/base/digest.h"
#include "runtime/base/status.h"
#include "runtime/base/text.h"
#include "runtime/models/model.h"

namespace holdfast {
namespace {

constexpr double kGoalTokens = 400'000;
// Dense bf16, H100 SXM and H200: NVIDIA's data sheets.
constexpr double kHopperTeraflops = 989;

absl::Status ErrorOf(const RankWorld& rank) {
  if (!rank.status.ok()) return rank.status;
  return absl::InternalError(Cat("no step was taken: ", rank.verdict.text));
}

// Seconds of one step; the first steps, which choose algorithms and grow scratch, do not count.
absl::StatusOr<double> StepSeconds(GpuCheck& check, RankWorld& rank) {
  constexpr int kWarmUp = 3;
  std::vector<double> seconds;
  for (int64_t i = 0; i < kWarmUp + check.shapes.timed_steps; ++i) {
    const int64_t start = BootUs();
    if (!rank.Step()) return ErrorOf(rank);
    if (!std::isfinite(rank.result.loss) || rank.result.skipped)
      return absl::InternalError(Cat("step ", i + 1, " is not finite"));
    if (i >= kWarmUp) seconds.push_back(static_cast<double>(BootUs() - start) * 1e-6);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

absl::Status TimeSteps(GpuCheck& check, const std::string& data, int64_t units) {
  const GpuShapes& s = check.shapes;
  const std::string what = Cat(s.tiny ? "a tiny GPT" : "GPT-2 124M", " bf16, ", units, " unit",
                               units == 1 ? "" : "s", " of ", s.rows(), " tokens a step");
  check.rows->Begin(what);
  const auto rank = OneRank(check, data, units);
  HF_ASSIGN_OR_RETURN(const double seconds, StepSeconds(check, *rank));
  const auto tokens = static_cast<double>(units * s.rows());
  const auto model = rank->trainer.model(rank->config.ToToml());
  HF_RETURN_IF_ERROR(model.status());
  HF_ASSIGN_OR_RETURN(const ModelSpec spec, (*model)->Describe());
  const double teraflops =
      spec.flops_per_micro_batch * static_cast<double>(units) / seconds * 1e-12;
  check.rows->Measure(Cat("training: ", what), tokens / seconds, "tokens/s", kGoalTokens,
                      Cat(FigureText(seconds * 1e3), " ms a step"));
  const std::string name = check.device->Name();
  const bool hopper =
      name.find("H100") != std::string::npos || name.find("H200") != std::string::npos;
  check.rows->Measure(
      Cat("FLOP utilisation: ", units, " unit", units == 1 ? "" : "s", " a step"), teraflops,
      "TFLOP/s", 0,
      hopper ? Cat(FigureText(100 * teraflops / kHopperTeraflops), "% of the data sheet's 989")
             : "");
  return absl::OkStatus();
}

}  // namespace

std::string RandomTokens(const GpuCheck& check, int64_t count) {
  const std::string path = check.scratch + "/tokens.bin";
  std::ofstream out(path, std::ios::binary);
  for (int64_t i = 0; i < count; ++i) {
    // Small numbers are frequent, as in a text, so that there is something to learn.
    const uint64_t random = Mix64(static_cast<uint64_t>(i));
    const auto limit = static_cast<uint64_t>(check.shapes.vocab);
    const auto token = static_cast<uint16_t>((random >> 32) % (1 + random % limit));
    out.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
  return path;
}

std::unique_ptr<RankWorld> OneRank(const GpuCheck& check, const std::string& data, int64_t units) {
  return std::make_unique<RankWorld>(GpuConfig(check.shapes, data, units), BuiltInTrainer(), 1,
                                     MakeLocalCommunicator(check.device), *check.device);
}

absl::Status CheckTraining(GpuCheck& check) {
  const std::string data =
      RandomTokens(check, 4 * check.shapes.units * check.shapes.rows() + 100'000);
  HF_RETURN_IF_ERROR(TimeSteps(check, data, check.shapes.units));
  return TimeSteps(check, data, 1);
}

absl::Status TrainForSanitizer(GpuCheck& check) {
  check.rows->Begin("training under compute-sanitizer");
  const auto rank = OneRank(check, RandomTokens(check, 100'000), 2);
  for (int step = 0; step < 2; ++step) {
    if (!rank->Step()) return ErrorOf(*rank);
  }
  return absl::OkStatus();
}

}  // namespace holdfast
