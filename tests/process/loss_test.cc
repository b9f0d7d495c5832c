// Workers that die or freeze in mid-run: the others go on in the same processes, and the run ends
// in the same bits.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "runtime/base/text.h"
#include "tests/process/train_run.h"

namespace holdfast::testing {
namespace {

using chaos::Fault;
using chaos::FaultKind;
using chaos::WorkersOf;

// A step of about 25 ms at the named site: the fault meets the step there more often than
// elsewhere.
std::string SlowAt(const std::string& site) { return Cat(site, "=sleep(20)"); }

std::set<pid_t> Pids(TrainRun& run) {
  std::set<pid_t> pids;
  for (const chaos::WorkerInfo& worker : WorkersOf(run.process().pid()))
    pids.insert(worker.process.pid);
  return pids;
}

void ExpectGoodEnd(TrainRun& run) {
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(run.dir());
  run.ExpectNoResidue();
}

// Survivors stay the same processes; the replacement is a new one; all is on record.
TEST(Loss, SurvivorsGoOnInTheSameProcesses) {
  TrainRun run({.flags = {{"workers", "3"}, {"steps", "60"}}, .failpoints = SlowAt("step.begin")});
  ASSERT_TRUE(run.WaitForStep(8));
  const std::set<pid_t> before = Pids(run);
  const chaos::Proof proof = run.Do({.kind = FaultKind::kKillWorker, .slot = 1, .at_step = 12});
  ASSERT_EQ(proof.pids.size(), 1u);
  ASSERT_TRUE(run.WaitForStep(proof.step + 3));
  const std::set<pid_t> after = Pids(run);
  for (const pid_t pid : before)
    EXPECT_EQ(after.count(pid), pid == proof.pids[0] ? 0u : 1u) << "pid " << pid;
  ExpectGoodEnd(run);
  const auto summary = chaos::ReadSummary(run.dir());
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->workers_lost, 1);
  EXPECT_GE(summary->generations, 2);
  ASSERT_FALSE(summary->recoveries.empty());
  const auto steps = chaos::ReadSteps(run.dir());
  int64_t smallest = 99;
  for (const auto& line : steps->lines) smallest = std::min(smallest, line.world_size);
  EXPECT_EQ(smallest, 2);
  EXPECT_EQ(steps->lines.back().world_size, 3) << "the replacement joined before the end";
}

// A supervisor that is stopped reads nothing: its workers go on, keep what they have to say, and
// wait with it at their end, so that not a line is missing once it wakes.
TEST(Loss, ASupervisorStoppedOverTheEndHasEveryStepOnRecord) {
  constexpr int64_t kMany = 2000;  // reports of far more steps than a pipe holds
  TestRedis redis;
  TrainRun run({.flags = {{"workers", "2"},
                          {"steps", Cat(kMany)},
                          {"redis", redis.url()},
                          {"run", "stopped-test"}},
                .env = redis.env()});
  ASSERT_TRUE(run.WaitForStep(10));
  ASSERT_EQ(kill(run.process().pid(), SIGSTOP), 0);
  bool finished = false;
  for (int i = 0; i < 600 && !finished; ++i) {
    usleep(100'000);
    const std::string record = redis.Cli({"HGETALL", "holdfast:{stopped-test}:record"});
    finished = record.find("finished") != std::string::npos;
  }
  ASSERT_EQ(kill(run.process().pid(), SIGCONT), 0);
  EXPECT_TRUE(finished) << "the workers do not wait for the supervisor";
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  const auto steps = chaos::ReadSteps(run.dir());
  ASSERT_TRUE(steps.ok());
  EXPECT_EQ(static_cast<int64_t>(steps->lines.size()), kMany);
  const auto summary = chaos::ReadSummary(run.dir());
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->final_step, kMany);
  EXPECT_EQ(summary->workers_lost, 0);
  run.ExpectNoResidue();
}

// Who comes when all is done says where the run has ended, not how far its own log goes.
TEST(Loss, WhoComesAfterTheEndSaysWhereItWas) {
  TestRedis redis;
  const Flags flags = {{"workers", "1"}, {"redis", redis.url()}, {"run", "after-test"}};
  TrainRun first({.flags = flags, .env = redis.env()});
  ASSERT_EQ(first.Wait(), 0) << first.Output();
  TrainRun late({.flags = flags, .env = redis.env()});
  ASSERT_EQ(late.Wait(), 0) << late.Output();
  const auto summary = chaos::ReadSummary(first.dir()), after = chaos::ReadSummary(late.dir());
  ASSERT_TRUE(summary.ok() && after.ok());
  EXPECT_EQ(after->final_step, kSteps);
  EXPECT_EQ(after->digest, summary->digest);
}

TEST(Loss, TheFirstRankDies) {
  TrainRun run({.flags = {{"workers", "3"}}, .failpoints = SlowAt("step.before_apply")});
  run.Do({.kind = FaultKind::kKillWorker, .slot = 0, .at_step = 15});
  ExpectGoodEnd(run);
}

TEST(Loss, TwoDieAtOnce) {
  TrainRun run({.flags = {{"workers", "4"}}, .failpoints = SlowAt("step.before_reduce")});
  ASSERT_TRUE(run.WaitForStep(14));
  run.DoTogether(
      {{.kind = FaultKind::kKillWorker, .slot = 1}, {.kind = FaultKind::kKillWorker, .slot = 2}});
  ExpectGoodEnd(run);
}

// All workers die long before the first regular checkpoint, the supervisor and Redis live: the
// first step's save is there to come back to.
TEST(Loss, AllDieBeforeTheFirstRegularCheckpoint) {
  TrainRun run({.flags = {{"workers", "2"}, {"checkpoint-every", "1000"}},
                .failpoints = SlowAt("step.begin")});
  ASSERT_TRUE(run.WaitForStep(20));
  run.DoTogether(
      {{.kind = FaultKind::kKillWorker, .slot = 0}, {.kind = FaultKind::kKillWorker, .slot = 1}});
  ExpectGoodEnd(run);
  const auto summary = chaos::ReadSummary(run.dir());
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->workers_lost, 2);
}

TEST(Loss, AnotherDiesDuringTheRegroup) {
  chaos::Dice dice(41);
  for (int i = 0; i < 2; ++i) {
    TrainRun run({.flags = {{"workers", "4"}}, .failpoints = SlowAt("step.after_reduce")});
    run.Do({.kind = FaultKind::kKillWorker, .slot = 3, .at_step = 10});
    run.Do({.kind = FaultKind::kKillWorker,
            .slot = static_cast<int>(dice.Draw(0, 2)),
            .after_ms = dice.Draw(0, 60)});
    ExpectGoodEnd(run);
  }
}

// The save of step 20 begins when its table is through; the writer works beside the next steps.
TEST(Loss, DuringASave) {
  TrainRun run({.flags = {{"workers", "3"}},
                .failpoints = Cat(SlowAt("step.after_apply"), ";ckpt.before_shard=sleep(60)")});
  run.Do({.kind = FaultKind::kKillWorker, .slot = 2, .at_step = 20});
  ExpectGoodEnd(run);
  EXPECT_GE(CountEventLines(run.dir(), "\"phase\":\"saved\""), 1);
}

// A frozen worker holds the others up for about the detection time, not for ever; it is replaced.
TEST(Loss, OneFreezes) {
  TrainRun run({.flags = {{"workers", "3"}}, .failpoints = SlowAt("step.begin")});
  const chaos::Proof proof = run.Do({.kind = FaultKind::kStopWorker, .slot = 1, .at_step = 10});
  ASSERT_TRUE(run.WaitForStep(proof.step + 5));
  ExpectGoodEnd(run);
}

// Shorter than anything that counts: nobody is thrown out.
TEST(Loss, AShortPauseCostsNobody) {
  TrainRun run(
      {.flags = {{"workers", "2"}, {"detect-ms", "5000"}}, .failpoints = SlowAt("step.begin")});
  run.Do({.kind = FaultKind::kStopWorker, .slot = 1, .at_step = 10});
  run.Do({.kind = FaultKind::kContinueWorker, .slot = 1, .after_ms = 100});
  ExpectGoodEnd(run);
}

// Seeded: a random worker at a random step, the step slow at a random site. HOLDFAST_KILLS runs (4;
// long form 20).
TEST(Loss, RandomWorkerAtRandomStep) {
  const char* text = std::getenv("HOLDFAST_KILLS");
  const int count = text != nullptr ? std::atoi(text) : 4;
  const std::vector<std::string> sites = {"step.begin", "step.before_reduce", "step.after_reduce",
                                          "step.before_apply", "step.after_apply"};
  for (int i = 0; i < count; ++i) {
    chaos::Dice dice(1000 + i);
    const int workers = static_cast<int>(dice.Draw(2, 4));
    const std::string site = sites[dice.Draw(0, static_cast<int64_t>(sites.size()) - 1)];
    const int slot = static_cast<int>(dice.Draw(0, workers - 1));
    const int64_t step = dice.Draw(1, kSteps - 8);
    SCOPED_TRACE(Cat("seed ", 1000 + i, ": worker ", slot, " of ", workers, " at step ", step,
                     ", slow at ", site));
    TrainRun run({.flags = {{"workers", Cat(workers)}}, .failpoints = SlowAt(site)});
    run.Do({.kind = FaultKind::kKillWorker, .slot = slot, .at_step = step});
    ExpectGoodEnd(run);
  }
}

}  // namespace
}  // namespace holdfast::testing
