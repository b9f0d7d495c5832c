// The model of a step, on numbers that can be checked by hand.
#include "runtime/dry_run/estimate.h"

#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/dry_run/measure.h"
#include "runtime/dry_run/print.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// 8 micro-batches of 100 ms on one thread, 20 ms for the rest, 10 million parameters.
struct Example {
  Example() {
    config.micro_batches = 8;
    config.steps = 3600;
    config.eval_every = 1000;
    config.workers = 2;
    config.keep = 3;
    measured.model.parameters = 10'000'000;
    measured.model.state_bytes = 120'000'000;
    measured.model.resident_bytes = ResidentBytes(10'000'000, 120'000'000, 1, 1, false);
    measured.model.tokens_per_step = 8000;
    measured.units = 8;
    measured.steps = 5;
    measured.round_ms = 100;
    measured.apply_ms = 20;
    measured.other_bytes = 50'000'000;
    measured.determinism_known = true;
    machine.cores = 4;
    machine.memory_free = 1'000'000'000;
    machine.disk_free = 10'000'000'000;
    options.link_gbits = 8;  // 1 GB/s
    options.latency_ms = 0;
  }
  Estimate Run() const { return EstimateRun(config, measured, machine, options); }
  Config config;
  Measured measured;
  MachineFacts machine;
  EstimateOptions options;
};

TEST(Estimate, TheStepOfAWorld) {
  Example x;
  const Estimate e = x.Run();
  EXPECT_DOUBLE_EQ(e.step_ms_one, 820);
  ASSERT_EQ(e.worlds.size(), 6u);
  EXPECT_EQ(e.worlds[0].reduce_ms, 0);
  // 2 workers: 4 rounds; half of 12 B x 10^7 over 1 GB/s is 60 ms.
  EXPECT_NEAR(e.worlds[1].step_ms, 400 + 20 + 60, 1e-9);
  EXPECT_NEAR(e.worlds[1].speed_up, 820.0 / 480, 1e-9);
  EXPECT_NEAR(e.worlds[1].efficiency, 820.0 / 960, 1e-9);
  // 16 and 64 workers: eight compute, the others are spares and help nobody.
  EXPECT_NEAR(e.worlds[3].step_ms, 100 + 20 + 105, 1e-9);
  EXPECT_DOUBLE_EQ(e.worlds[4].step_ms, e.worlds[3].step_ms);
  EXPECT_DOUBLE_EQ(e.worlds[5].step_ms, e.worlds[3].step_ms);
  EXPECT_EQ(e.worlds[static_cast<size_t>(e.fastest)].workers, 8);
  EXPECT_NEAR(e.worlds[0].hours, 0.82, 1e-9);
}

TEST(Estimate, ThreadsComputeRounds) {
  Example x;
  x.config.threads = 3;
  EXPECT_DOUBLE_EQ(x.Run().step_ms_one, 3 * 100 + 20);  // 8 micro-batches, 3 at once
}

TEST(Estimate, FastSumsSendLess) {
  Example x;
  x.config.reduction = "fast";
  EXPECT_NEAR(x.Run().worlds[1].reduce_ms, 40, 1e-9);
}

TEST(Estimate, TheFixedPointShare) {
  Example x;
  EXPECT_LT(x.Run().fixed_share, 0) << "not measured";
  x.measured.fast_round_ms = 95;
  x.measured.fast_apply_ms = 19;
  EXPECT_NEAR(x.Run().fixed_share, (820.0 - 779) / 820, 1e-9);
  x.measured.fast_round_ms = 101;  // noise
  EXPECT_EQ(x.Run().fixed_share, 0);
}

TEST(Estimate, CoresThatAreAskedForTwiceAreHalfAsFast) {
  Example x;
  x.options.local_gbits = 1e9;
  EXPECT_NEAR(x.Run().here.step_ms, 420, 1e-3);
  x.config.workers = 8;  // on 4 cores
  EXPECT_NEAR(x.Run().here.step_ms, 2 * 100 + 2 * 20, 1e-3);
}

TEST(Estimate, MemoryAndDisk) {
  Example x;
  const Estimate e = x.Run();
  // 28 B a parameter alone (value, two moments, gradient, a gradient for the thread, the sum) and 8
  // for the reduced sums; of two workers each holds half of those and half a checkpoint.
  EXPECT_EQ(x.measured.model.resident_bytes, 10'000'000 * (28 + 8));
  EXPECT_EQ(e.memory_worker, 10'000'000 * (28 + 4 + 6) + 50'000'000);
  EXPECT_EQ(e.memory_all, 2 * e.memory_worker);
  EXPECT_EQ(e.fitting_workers, 2);
  EXPECT_EQ(e.disk_needed, 5 * 120'000'000);
}

TEST(Estimate, CostNamesTheCheapestAndTheFastest) {
  Example x;
  EXPECT_EQ(x.Run().cheapest, -1);
  x.options.price_per_hour = 2;
  const Estimate e = x.Run();
  EXPECT_NEAR(e.worlds[0].cost, 0.82 * 2, 1e-9);
  EXPECT_NEAR(e.worlds[1].cost, 0.48 * 2 * 2, 1e-9);
  EXPECT_EQ(e.cheapest, 0);
  DryRunReport r{x.config, x.machine, x.options, {}, true, x.measured, e};
  EXPECT_THAT(DryRunText(r), HasSubstr("1.64  cheapest"));
  EXPECT_THAT(DryRunText(r), HasSubstr("fastest"));
}

TEST(Estimate, EvaluationsAreCounted) {
  Example x;
  EXPECT_EQ(x.Run().evaluations, 0);
  x.measured.model.eval_batches = 10;
  x.measured.eval_round_ms = 36'000;
  const Estimate e = x.Run();
  EXPECT_EQ(e.evaluations, 4);  // steps 1000, 2000, 3000 and the last
  EXPECT_NEAR(e.worlds[0].hours, 0.82 + 0.4, 1e-9);
  EXPECT_NEAR(e.worlds[1].hours, 0.48 + 0.2, 1e-9);
}

TEST(Print, TextsOfNumbers) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(834'304), "834,304");
  EXPECT_EQ(Grouped(-1'234'567), "-1,234,567");
  EXPECT_EQ(BytesText(23'360'512), "23.4 MB");
  EXPECT_EQ(HoursText(0.001), "3.6 s");
  EXPECT_EQ(HoursText(1.0 / 60), "60 s");
  EXPECT_EQ(HoursText(0.5), "30 min");
  EXPECT_EQ(HoursText(3.2), "3 h 12 min");
  EXPECT_EQ(HoursText(72), "3.0 days");
}

TEST(Print, JsonSaysTheSameAsTheText) {
  Example x;
  x.measured.differs_threads = "the gradient of h.0.attn";
  const DryRunReport r{
      x.config,  x.machine,
      x.options, {{"directory", Check::Outcome::kOk, "/d: a new run", ExitCode::kOk}},
      true,      x.measured,
      x.Run()};
  const auto json = nlohmann::json::parse(DryRunJson(r));
  EXPECT_EQ(json["worlds"].size(), 6u);
  EXPECT_EQ(json["checks"][0]["outcome"], "ok");
  EXPECT_EQ(json["fastest"], 8);
  EXPECT_FALSE(json.contains("cheapest"));
  EXPECT_EQ(json["determinism"]["threads"], "the gradient of h.0.attn");
  const std::string text = DryRunText(r);
  EXPECT_THAT(text, HasSubstr("DIFFERENT BITS, first in the gradient of h.0.attn"));
  EXPECT_THAT(text, HasSubstr("no more than 8 workers compute"));
  EXPECT_THAT(text, Not(HasSubstr("cost")));
  DryRunReport failed = r;
  failed.measured_known = false;
  EXPECT_FALSE(nlohmann::json::parse(DryRunJson(failed)).contains("worlds"));
}

}  // namespace
}  // namespace holdfast
