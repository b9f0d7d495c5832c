// An accepted change of the schedule: the run goes on in a new branch, and everything that holds
// for a run holds for it: the same bits whatever dies, a restore along its own history, and nobody
// with the old schedule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "runtime/base/text.h"
#include "tests/process/train_run.h"

namespace holdfast::testing {
namespace {

namespace fs = std::filesystem;
using chaos::FaultKind;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kForkStep = 30;
const char kSlow[] = "step.begin=sleep(40)";

Flags With(Flags flags, const Flags& more) {
  for (const auto& [key, value] : more) flags[key] = value;
  return flags;
}

// The first half, and what is wanted from there on.
Flags Before() { return {{"steps", Cat(kForkStep)}}; }
// The decay of the first half ends at the fork: from there the smallest rate counts.
Flags After() {
  return {{"steps", "60"}, {"learning-rate", "4e-3"}, {"min-learning-rate", "2e-3"}};
}
Flags Accepted() { return With(After(), {{"accept-change", ""}}); }

void FirstHalf(const std::string& dir, int workers) {
  TrainRun run({.dir = dir, .flags = With(Before(), {{"workers", Cat(workers)}})});
  ASSERT_EQ(run.Wait(), 0) << run.Output();
}

// The same change at the same step, one worker, undisturbed.
const chaos::StepLog& Changed() {
  static const chaos::StepLog log = [] {
    const std::string dir = FreshFolder("changed-reference");
    FirstHalf(dir, 1);
    TrainRun run({.dir = dir, .flags = Accepted()});
    EXPECT_EQ(run.Wait(), 0) << run.Output();
    const auto steps = chaos::ReadSteps(dir);
    EXPECT_TRUE(steps.ok()) << steps.status();
    return steps.ok() ? *steps : chaos::StepLog();
  }();
  return log;
}

void ExpectChanged(const std::string& dir, int64_t first_step = 1) {
  const auto steps = chaos::ReadSteps(dir);
  ASSERT_TRUE(steps.ok()) << steps.status();
  for (const std::string& wrong :
       chaos::JudgeSteps(Changed(), *steps, {.first_step = first_step})) {
    ADD_FAILURE() << dir << ": " << wrong;
  }
}

// The canary: the change moves the bits, from the step after the fork on and not before.
TEST(Branch, TheChangeMovesTheBitsFromTheForkOn) {
  const std::string dir = FreshFolder("unchanged");
  FirstHalf(dir, 1);
  TrainRun run({.dir = dir, .flags = {{"steps", "60"}}});  // raised steps alone open no branch
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  EXPECT_EQ(CountEvents(dir, "branch"), 0);
  EXPECT_THAT(run.Output(), HasSubstr("the decay ends at step 30"));
  const auto plain = chaos::ReadSteps(dir);
  ASSERT_TRUE(plain.ok());
  ASSERT_EQ(Changed().lines.size(), 60u);
  ASSERT_EQ(plain->lines.size(), 60u);
  for (size_t i = 0; i < 60; ++i) {
    EXPECT_EQ(plain->lines[i].digest == Changed().lines[i].digest, i < kForkStep) << i + 1;
  }
}

TEST(Branch, KilledAfterTheChangeThenResumed) {
  const std::string dir = FreshFolder("killed");
  FirstHalf(dir, 2);
  {
    TrainRun refused({.dir = dir, .flags = After()});
    EXPECT_EQ(refused.Wait(), static_cast<int>(ExitCode::kRefused)) << refused.Output();
    EXPECT_THAT(refused.Output(), AllOf(HasSubstr("learning_rate was 0.001 and is now 0.004"),
                                        HasSubstr("--accept-change")));
  }
  {
    TrainRun run({.dir = dir, .flags = With(Accepted(), {{"workers", "3"}}), .failpoints = kSlow});
    run.Do({.kind = FaultKind::kKillWorker, .slot = 1, .at_step = 35});
    run.Do({.kind = FaultKind::kKillAll, .at_step = 44});
    EXPECT_EQ(run.WaitText(), "signal 9 (Killed)");
    run.ExpectNoResidue(true);
  }
  {
    TrainRun old({.dir = dir, .flags = {{"steps", "60"}}});
    EXPECT_EQ(old.Wait(), static_cast<int>(ExitCode::kRefused)) << old.Output();
  }
  TrainRun run({.dir = dir, .flags = With(After(), {{"workers", "2"}})});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectChanged(dir);
  EXPECT_EQ(CountEvents(dir, "branch"), 1) << "opened once, for good";
  run.ExpectNoResidue();
}

// The newest checkpoint is the fork's, and it is damaged: the run goes back behind the fork and
// takes those steps with the schedule that they had.
TEST(Branch, StepsBeforeTheForkHaveTheirOldSchedule) {
  const std::string dir = FreshFolder("behind");
  FirstHalf(dir, 1);
  {
    TrainRun run({.dir = dir,
                  .flags = With(Accepted(), {{"checkpoint-every", "1000"}}),
                  .failpoints = kSlow});
    run.Do({.kind = FaultKind::kKillAll, .at_step = 34});
    run.WaitText();
  }
  fs::path newest;
  for (const auto& entry : fs::recursive_directory_iterator(dir + "/slots")) {
    if (entry.path().extension() != ".sst" || entry.file_size() < 20'000) continue;
    if (newest.empty() || fs::last_write_time(entry) > fs::last_write_time(newest))
      newest = entry.path();
  }
  ASSERT_FALSE(newest.empty());
  {
    std::fstream file(newest, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(fs::file_size(newest) / 2);
    file.seekg(middle);
    const char byte = static_cast<char>(file.get());
    file.seekp(middle);
    file.put(static_cast<char>(byte ^ 1));
  }
  TrainRun run({.dir = dir, .flags = With(After(), {{"workers", "2"}})});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  EXPECT_THAT(run.Output(), HasSubstr("checkpoint of step 30 skipped"));
  ExpectChanged(dir);
}

// Steps beyond the newest state were taken with the old schedule and are abandoned: they leave
// steps.jsonl, and the new ones are no contradiction.
TEST(Branch, StepsBeyondTheForkMoveAside) {
  const std::string dir = FreshFolder("beyond");
  {
    TrainRun run({.dir = dir, .failpoints = kSlow});
    run.Do({.kind = FaultKind::kKillAll, .at_step = 27});
    run.WaitText();
  }
  const auto before = chaos::ReadSteps(dir);
  ASSERT_TRUE(before.ok());
  TrainRun run({.dir = dir, .flags = With(Accepted(), {{"workers", "2"}})});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  const auto after = chaos::ReadSteps(dir);
  ASSERT_TRUE(after.ok());
  ASSERT_EQ(after->lines.size(), 60u);
  for (size_t i = 0; i < 60; ++i) EXPECT_EQ(after->lines[i].step, static_cast<int64_t>(i) + 1);
  EXPECT_EQ(after->lines[19].digest, Reference().lines[19].digest);
  EXPECT_NE(after->lines[59].digest, Reference().lines[59].digest);
  std::ifstream aside(dir + "/steps.branch-0.jsonl");
  int64_t lines = 0;
  for (std::string line; std::getline(aside, line);) ++lines;
  EXPECT_GE(lines, 1);
  EXPECT_LE(lines, before->last_step() - 20);
}

// Machine 2 helps, leaves, and sleeps through the change.
TEST(Branch, AMachineWithTheOldScheduleIsRefused) {
  TestRedis redis;
  const Flags shared = {{"redis", redis.url()}, {"run", "branch-test"}, {"workers", "1"}};
  const std::string one = FreshFolder("one"), two = FreshFolder("two");
  {
    TrainRun first({.dir = one,
                    .flags = With(With(Before(), shared), {}),
                    .env = redis.env(),
                    .failpoints = "step.begin=sleep(100)"});
    ASSERT_TRUE(first.WaitForStep(3));
    TrainRun second({.dir = two,
                     .flags = With(Before(), shared),
                     .env = redis.env(),
                     .failpoints = "step.begin=sleep(100)"});
    ASSERT_TRUE(second.WaitForStep(1));
    second.Do({.kind = FaultKind::kTermSupervisor, .after_ms = 100});
    EXPECT_EQ(second.Wait(), static_cast<int>(ExitCode::kLeft)) << second.Output();
    EXPECT_EQ(first.Wait(), 0) << first.Output();
  }
  TrainRun first({.dir = one,
                  .flags = With(Accepted(), shared),
                  .env = redis.env(),
                  .failpoints = "step.begin=sleep(400)"});
  ASSERT_TRUE(first.WaitForStep(kForkStep + 1));
  {
    TrainRun old({.dir = two, .flags = With({{"steps", "60"}}, shared), .env = redis.env()});
    EXPECT_EQ(old.Wait(), static_cast<int>(ExitCode::kRefused)) << old.Output();
    EXPECT_THAT(old.Output(), HasSubstr("learning_rate is 0.001 here, 0.004 in the run"));
  }
  {
    TrainRun unasked({.dir = two, .flags = With(After(), shared), .env = redis.env()});
    EXPECT_EQ(unasked.Wait(), static_cast<int>(ExitCode::kRefused)) << unasked.Output();
    EXPECT_THAT(unasked.Output(), HasSubstr("--accept-change"));
  }
  TrainRun second({.dir = two, .flags = With(Accepted(), shared), .env = redis.env()});
  EXPECT_EQ(second.Wait(), 0) << second.Output();
  EXPECT_EQ(first.Wait(), 0) << first.Output();
  ExpectChanged(one);
  const auto joined = chaos::ReadSteps(one);
  ASSERT_TRUE(joined.ok());
  EXPECT_EQ(joined->lines.back().world_size, 2);
}

}  // namespace
}  // namespace holdfast::testing
