// Injectors against a shell that plays a run: it writes steps.jsonl and has two "workers".
#include "chaos/injector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/digest.h"
#include "runtime/base/text.h"

namespace holdfast::chaos {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class InjectorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = Cat(::testing::TempDir(), "injector_", Hex64(RandomNonce()));
    std::filesystem::create_directories(dir_);
    auto child = ChildProcess::Start(
        {.args =
             {"/bin/sh", "-c",
              Cat("sh -c 'sleep 100; :' worker --slot 0 & sh -c 'sleep 100; :' worker --slot 1 & ",
                  "for s in 1 2 3 4 5; do echo \"{\\\"loss\\\":1,\\\"step\\\":$s}\" >> ", dir_,
                  "/steps.jsonl; sleep 0.02; done; wait")},
         .output_path = dir_ + "/output"});
    ASSERT_TRUE(child.ok()) << child.status();
    run_ = std::move(*child);
    ASSERT_TRUE(
        WaitUntil(Deadline::After(20'000), [&] { return WorkersOf(run_->pid()).size() == 2; }));
  }

  std::string dir_;
  std::unique_ptr<ChildProcess> run_;
  Deadline deadline_ = Deadline::After(30'000);
};

TEST_F(InjectorTest, KillsTheMeantWorkerAtTheMeantStep) {
  const pid_t victim = WorkerInSlot(run_->pid(), 1)->process.pid;
  const auto proof =
      Inject(*run_, dir_, {.kind = FaultKind::kKillWorker, .slot = 1, .at_step = 3}, deadline_);
  ASSERT_TRUE(proof.ok()) << proof.status();
  EXPECT_THAT(proof->pids, ElementsAre(victim));
  EXPECT_GE(proof->step, 3);
  EXPECT_THAT(proof->text, HasSubstr("slot 1"));
  EXPECT_FALSE(WorkerInSlot(run_->pid(), 1).has_value());
  EXPECT_TRUE(WorkerInSlot(run_->pid(), 0).has_value());
}

TEST_F(InjectorTest, StopsAndContinues) {
  const pid_t victim = WorkerInSlot(run_->pid(), 0)->process.pid;
  ASSERT_TRUE(
      Inject(*run_, dir_, {.kind = FaultKind::kStopWorker, .slot = 0, .after_ms = 5}, deadline_)
          .ok());
  EXPECT_EQ(ReadProcess(victim)->state, 'T');
  ASSERT_TRUE(Inject(*run_, dir_, {.kind = FaultKind::kContinueWorker, .slot = 0}, deadline_).ok());
  EXPECT_NE(ReadProcess(victim)->state, 'T');
}

TEST_F(InjectorTest, KillsTwoAtOnceAndAll) {
  const auto proof = InjectTogether(
      *run_, dir_,
      {{.kind = FaultKind::kKillWorker, .slot = 0}, {.kind = FaultKind::kKillWorker, .slot = 1}},
      deadline_);
  ASSERT_TRUE(proof.ok()) << proof.status();
  EXPECT_EQ(proof->pids.size(), 2u);
  ASSERT_TRUE(Inject(*run_, dir_, {.kind = FaultKind::kKillAll}, deadline_).ok());
  EXPECT_TRUE(WaitUntil(deadline_, [&] { return MarkedProcesses(run_->mark()).empty(); }));
  EXPECT_THAT(run_->Wait(deadline_)->Text(), HasSubstr("signal 9"));
}

TEST_F(InjectorTest, NoProofWhenTheRunIsOver) {
  ASSERT_TRUE(Inject(*run_, dir_, {.kind = FaultKind::kKillAll}, deadline_).ok());
  ASSERT_TRUE(run_->Wait(deadline_).ok());
  const auto proof =
      Inject(*run_, dir_, {.kind = FaultKind::kKillWorker, .slot = 0, .at_step = 90}, deadline_);
  EXPECT_EQ(proof.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(InjectorTest, AStepThatNeverComesEndsAtTheDeadline) {
  const auto step = WaitForStep(*run_, dir_, 99, Deadline::After(300));
  EXPECT_EQ(step.status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(Dice, TheSameSeedDrawsTheSame) {
  Dice a(7), b(7), c(8);
  int64_t differ = 0;
  for (int i = 0; i < 100; ++i) {
    const int64_t draw = a.Draw(3, 9);
    EXPECT_EQ(draw, b.Draw(3, 9));
    EXPECT_GE(draw, 3);
    EXPECT_LE(draw, 9);
    differ += draw != c.Draw(3, 9);
  }
  EXPECT_GT(differ, 50);
}

}  // namespace
}  // namespace holdfast::chaos
