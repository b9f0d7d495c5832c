// Planned changes and total losses: join, leave, stop, everything killed; then resumed with another
// number of workers.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/text.h"
#include "tests/process/train_run.h"

namespace holdfast::testing {
namespace {

using chaos::Fault;
using chaos::FaultKind;

std::string Slow() { return "step.begin=sleep(20)"; }

std::string Resume(const std::string& dir, int workers, const Expect& expect) {
  TrainRun run({.dir = dir, .flags = {{"workers", Cat(workers)}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(dir, expect);
  run.ExpectNoResidue();
  return run.Output();
}

TEST(Change, SigtermOfOneWorker) {
  TrainRun run({.flags = {{"workers", "3"}}, .failpoints = Slow()});
  run.Do({.kind = FaultKind::kTermWorker, .slot = 1, .at_step = 12});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(run.dir());
  run.ExpectNoResidue();
}

// SIGTERM saves at a step boundary: no step is lost and none is taken twice.
TEST(Change, SigtermOfTheSupervisorThenResume) {
  const std::string dir = FreshFolder("sigterm");
  {
    TrainRun run({.dir = dir, .flags = {{"workers", "3"}}, .failpoints = Slow()});
    run.Do({.kind = FaultKind::kTermSupervisor, .at_step = 23});
    EXPECT_EQ(run.Wait(), static_cast<int>(ExitCode::kInterrupted)) << run.Output();
    run.ExpectNoResidue();
  }
  Resume(dir, 2, {});
}

TEST(Change, StopCommandThenResume) {
  const std::string dir = FreshFolder("stop");
  {
    TrainRun run({.dir = dir, .flags = {{"workers", "2"}}, .failpoints = Slow()});
    ASSERT_TRUE(run.WaitForStep(15));
    const CommandResult stop = Command({"stop", "--dir", dir});
    EXPECT_EQ(stop.code, 0) << stop.output;
    EXPECT_EQ(run.Wait(), static_cast<int>(ExitCode::kStopped)) << run.Output();
    run.ExpectNoResidue();
  }
  Resume(dir, 4, {});
}

// Every process dies at one moment, Redis too. Steps since the last checkpoint are taken again with
// the same bits.
TEST(Change, EverythingKilledThenResumedWithAnotherWorld) {
  const std::string dir = FreshFolder("killed");
  {
    TrainRun run({.dir = dir, .flags = {{"workers", "4"}}, .failpoints = Slow()});
    run.Do({.kind = FaultKind::kKillAll, .at_step = 27});
    EXPECT_EQ(run.WaitText(), "signal 9 (Killed)");
    run.ExpectNoResidue(true);
  }
  {
    TrainRun run({.dir = dir, .flags = {{"workers", "1"}}, .failpoints = Slow()});
    run.Do({.kind = FaultKind::kKillAll, .at_step = 44});
    EXPECT_EQ(run.WaitText(), "signal 9 (Killed)");
    run.ExpectNoResidue(true);
  }
  Resume(dir, 3, {});
}

// Without its supervisor no worker, and no Redis, goes on.
TEST(Change, TheSupervisorAloneIsKilled) {
  const std::string dir = FreshFolder("supervisor");
  {
    TrainRun run({.dir = dir, .flags = {{"workers", "3"}}, .failpoints = Slow()});
    run.Do({.kind = FaultKind::kKillSupervisor, .at_step = 25});
    run.WaitText();
    run.ExpectNoResidue(true);
  }
  Resume(dir, 2, {});
}

// Before the first checkpoint there is nothing to resume from: the run starts anew, with the same
// bits.
TEST(Change, KilledBeforeTheFirstCheckpoint) {
  const std::string dir = FreshFolder("early");
  {
    TrainRun run({.dir = dir,
                  .flags = {{"workers", "2"}, {"checkpoint-every", "1000"}},
                  .failpoints = Slow()});
    run.Do({.kind = FaultKind::kKillAll, .at_step = 5});
    run.WaitText();
    run.ExpectNoResidue(true);
  }
  Resume(dir, 2, {});
}

TEST(Change, AFinishedRunSaysSo) {
  const std::string dir = FreshFolder("finished");
  Resume(dir, 2, {});
  const auto size = std::filesystem::file_size(dir + "/steps.jsonl");
  const std::string output = Resume(dir, 3, {});
  EXPECT_NE(output.find("finished"), std::string::npos) << output;
  EXPECT_EQ(std::filesystem::file_size(dir + "/steps.jsonl"), size);
}

// A second supervisor joins through a shared Redis in mid-run; its file of steps begins where it
// joined.
TEST(Change, AnotherMachineJoins) {
  TestRedis redis;
  const Flags shared = {{"redis", redis.url()}, {"run", "join-test"}};
  Flags first_flags = shared, second_flags = shared;
  first_flags["workers"] = "2";
  second_flags["workers"] = "2";
  TrainRun first({.flags = first_flags, .env = redis.env(), .failpoints = "step.begin=sleep(60)"});
  ASSERT_TRUE(first.WaitForStep(5));
  TrainRun second(
      {.flags = second_flags, .env = redis.env(), .failpoints = "step.begin=sleep(60)"});
  EXPECT_EQ(first.Wait(), 0) << first.Output();
  EXPECT_EQ(second.Wait(), 0) << second.Output();
  ExpectSameBits(first.dir());
  const auto joined = chaos::ReadSteps(second.dir());
  ASSERT_TRUE(joined.ok() && !joined->lines.empty()) << second.Output();
  EXPECT_GT(joined->lines.front().step, 1);
  ExpectSameBits(second.dir(), {.first_step = joined->lines.front().step});
  const auto steps = chaos::ReadSteps(first.dir());
  ASSERT_TRUE(steps.ok());
  EXPECT_EQ(steps->lines.back().world_size, 4);
  first.ExpectNoResidue();
  second.ExpectNoResidue();
  EXPECT_EQ(redis.Cli({"ping"}), "PONG\n") << "a Redis that is not ours stays";
  // No key without expiry.
  const std::string keys = redis.Cli({"--scan"});
  for (size_t at = 0, end; at < keys.size() && (end = keys.find('\n', at)) != std::string::npos;
       at = end + 1) {
    EXPECT_NE(redis.Cli({"ttl", keys.substr(at, end - at)}), "-1\n") << keys.substr(at, end - at);
  }
}

// A worker that insists on shared memory ends with a message, not in endless rounds, when another
// was started without; the other trains on.
TEST(Change, AMachineThatInsistsOnShmEndsWhereAnotherHasTcp) {
  TestRedis redis;
  Flags first_flags = {{"redis", redis.url()}, {"run", "insist-test"}, {"workers", "2"}};
  Flags second_flags = first_flags;
  first_flags["transport"] = "tcp";
  second_flags["transport"] = "shm";
  second_flags["workers"] = "1";
  TrainRun first({.flags = first_flags, .env = redis.env(), .failpoints = "step.begin=sleep(60)"});
  ASSERT_TRUE(first.WaitForStep(3));
  TrainRun second({.flags = second_flags, .env = redis.env()});
  EXPECT_EQ(second.Wait(), static_cast<int>(ExitCode::kUsage)) << second.Output();
  EXPECT_NE(second.Output().find("use --transport auto"), std::string::npos) << second.Output();
  EXPECT_EQ(first.Wait(), 0) << first.Output();
  ExpectSameBits(first.dir());
  EXPECT_EQ(CountEventLines(first.dir(), "over shm"), 0);
  first.ExpectNoResidue();
  second.ExpectNoResidue();
}

// One of two machines leaves on SIGTERM; the other goes on.
TEST(Change, OneMachineLeaves) {
  TestRedis redis;
  const Flags flags = {{"redis", redis.url()}, {"run", "leave-test"}, {"workers", "2"}};
  TrainRun first({.flags = flags, .env = redis.env(), .failpoints = "step.begin=sleep(60)"});
  ASSERT_TRUE(first.WaitForStep(3));
  TrainRun second({.flags = flags, .env = redis.env(), .failpoints = "step.begin=sleep(60)"});
  ASSERT_TRUE(second.WaitForStep(1));
  second.Do({.kind = FaultKind::kTermSupervisor, .after_ms = 100});
  EXPECT_EQ(second.Wait(), static_cast<int>(ExitCode::kLeft)) << second.Output();
  second.ExpectNoResidue();
  EXPECT_EQ(first.Wait(), 0) << first.Output();
  ExpectSameBits(first.dir());
  first.ExpectNoResidue();
}

// Redis answers nothing for longer than a lease: training steps on and checkpoints commit without
// it, nobody is evicted, and the generation is the same when it is back.
TEST(Change, RedisIsAwayForAWhile) {
  TestRedis redis;
  TrainRun run({.flags = {{"redis", redis.url()}, {"run", "away-test"}, {"workers", "2"}},
                .env = redis.env(),
                .failpoints = "step.begin=sleep(150)"});
  ASSERT_TRUE(run.WaitForStep(4));
  redis.Freeze();
  // More than 5 s of steps, with the saves of steps 10, 20 and 30 among them.
  EXPECT_TRUE(run.WaitForStep(40)) << run.Output();
  EXPECT_GE(CountEventLines(run.dir(), "\"phase\":\"saved\""), 2) << run.Output();
  redis.Thaw();
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(run.dir());
  const auto summary = chaos::ReadSummary(run.dir());
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->generations, 1);
  run.ExpectNoResidue();
}

// Redis is replaced by an empty one in mid-run: the run saves and stops with a message, and can be
// resumed.
TEST(Change, RedisIsLost) {
  const std::string dir = FreshFolder("redis-lost");
  {
    TestRedis redis;
    TrainRun run({.dir = dir,
                  .flags = {{"redis", redis.url()}, {"run", "lost-test"}, {"workers", "2"}},
                  .env = redis.env(),
                  .failpoints = "step.begin=sleep(150)"});
    ASSERT_TRUE(run.WaitForStep(5));
    redis.KillHard();
    redis.StartAgain();
    EXPECT_EQ(run.Wait(), static_cast<int>(ExitCode::kStoreLost)) << run.Output();
    run.ExpectNoResidue();
  }
  TestRedis fresh;
  TrainRun run({.dir = dir,
                .flags = {{"redis", fresh.url()}, {"run", "lost-test"}, {"workers", "3"}},
                .env = fresh.env()});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(dir);
}

}  // namespace
}  // namespace holdfast::testing
