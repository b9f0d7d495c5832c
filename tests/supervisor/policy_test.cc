// Restart policy and recovery times, which are pure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/supervisor/recovery.h"
#include "runtime/supervisor/restart_policy.h"

namespace holdfast {
namespace {

using Kind = Verdict::Kind;
using ::testing::HasSubstr;

TEST(RestartPolicy, FirstAtOnceThenGrowingUpToTenSeconds) {
  RestartPolicy policy(1000);
  int64_t generation = 1, before = -1;
  for (int i = 0; i < 5; ++i) {
    const Verdict v = policy.OnDeath({0, true, generation, true, 1000}, true);
    ASSERT_EQ(v.kind, Kind::kRestart);
    EXPECT_GT(v.at_ms - 1000, before);
    before = v.at_ms - 1000;
    if (i == 0) {
      EXPECT_EQ(before, 0);
    }
    ++generation;
  }
  EXPECT_LE(before, 10'000);
  policy.OnProgress(7);
  EXPECT_EQ(policy.OnDeath({0, true, 9, true, 50}, true).at_ms, 50);
}

TEST(RestartPolicy, SeveralDeathsOfOneGenerationAreOneLoss) {
  RestartPolicy policy(100);
  for (int slot = 0; slot < 8; ++slot)
    EXPECT_EQ(policy.OnDeath({slot, true, 1, false, 0}, false).kind, Kind::kRestart);
  for (int slot = 0; slot < 8; ++slot)
    EXPECT_EQ(policy.OnDeath({slot, true, 2, false, 0}, false).kind, Kind::kRestart);
  EXPECT_EQ(policy.OnDeath({0, true, 3, false, 0}, false).kind, Kind::kGiveUp);
}

TEST(RestartPolicy, KillsFromOutsideNeedSixAndCrashesThree) {
  RestartPolicy kills(100), crashes(100);
  for (int i = 1; i < 6; ++i)
    EXPECT_EQ(kills.OnDeath({0, true, i, true, 0}, true).kind, Kind::kRestart) << i;
  EXPECT_EQ(kills.OnDeath({0, true, 6, true, 0}, true).kind, Kind::kGiveUp);
  for (int i = 1; i < 3; ++i)
    EXPECT_EQ(crashes.OnDeath({0, true, i, false, 0}, true).kind, Kind::kRestart) << i;
  const Verdict v = crashes.OnDeath({0, true, 3, false, 0}, true);
  EXPECT_EQ(v.kind, Kind::kGiveUp);
  EXPECT_THAT(v.why, HasSubstr("step 0"));
}

TEST(RestartPolicy, ProgressRenewsTheBudget) {
  RestartPolicy policy(2);
  for (int step = 1; step < 50; ++step) {
    EXPECT_EQ(policy.OnDeath({0, true, 2 * step, false, 0}, true).kind, Kind::kRestart);
    EXPECT_EQ(policy.OnDeath({1, true, 2 * step + 1, false, 0}, true).kind, Kind::kRestart);
    policy.OnProgress(step);
    policy.OnProgress(step - 1);  // late reports change nothing
  }
  policy.OnDeath({0, true, 1000, false, 0}, true);
  policy.OnDeath({0, true, 1000, false, 0}, true);
  EXPECT_EQ(policy.OnDeath({0, true, 1000, false, 0}, true).kind, Kind::kGiveUp);
}

TEST(RestartPolicy, FailedStartsSetASlotAsideOnlyWhileOthersTrain) {
  RestartPolicy policy(100);
  EXPECT_EQ(policy.OnDeath({3, false, 0, false, 0}, true).kind, Kind::kRestart);
  EXPECT_EQ(policy.OnDeath({3, false, 0, false, 0}, true).kind, Kind::kRestart);
  EXPECT_EQ(policy.OnDeath({3, false, 0, false, 0}, true).kind, Kind::kSetAside);
  EXPECT_EQ(policy.OnDeath({3, false, 0, false, 0}, false).kind, Kind::kGiveUp);
}

TEST(Recovery, TimesAreExclusiveAndAddUp) {
  RecoveryTracker tracker;
  tracker.Fault(1, "worker 2: SIGKILL", 1000);
  tracker.Lost(1, "connection closed", 1003);
  tracker.Lost(1, "connection closed", 1004);
  tracker.Joined(2, 1050);
  tracker.Joined(2, 1060);
  const auto r = tracker.FirstStep(2, 1100);
  ASSERT_TRUE(r.has_value());
  EXPECT_EQ(r->detect_ms, 3);
  EXPECT_EQ(r->regroup_ms, 57);
  EXPECT_EQ(r->first_step_ms, 40);
  EXPECT_EQ(r->total_ms(), 100);
  EXPECT_EQ(r->cause, "worker 2: SIGKILL");
  EXPECT_FALSE(tracker.FirstStep(2, 1101).has_value());  // every member reports it
  tracker.Lost(1, "late", 1200);                         // about a generation long gone
  EXPECT_FALSE(tracker.open());
}

TEST(Recovery, SurvivorsMayNoticeBeforeTheSupervisor) {
  RecoveryTracker tracker;
  tracker.Lost(4, "rank 2: connection closed", 1000);
  tracker.Fault(4, "worker 2: SIGSEGV", 1006);
  tracker.Joined(5, 1040);
  const auto r = tracker.FirstStep(5, 1050);
  ASSERT_TRUE(r.has_value());
  EXPECT_EQ(r->cause, "worker 2: SIGSEGV");
  EXPECT_EQ(r->detect_ms, 0);
  EXPECT_EQ(r->total_ms(), 50);
}

TEST(Recovery, SeveralDeathsAreOneRecovery) {
  RecoveryTracker tracker;
  tracker.Fault(1, "worker 0: SIGKILL", 10);
  tracker.Fault(1, "worker 1: SIGKILL", 11);
  tracker.Joined(2, 20);
  tracker.Fault(2, "worker 2: SIGKILL", 25);
  tracker.Lost(2, "closed", 26);
  tracker.Joined(3, 40);
  const auto r = tracker.FirstStep(3, 44);
  ASSERT_TRUE(r.has_value());
  EXPECT_THAT(r->cause, HasSubstr("(+2)"));
  EXPECT_EQ(r->total_ms(), 34);
  EXPECT_EQ(tracker.done().size(), 1u);
}

}  // namespace
}  // namespace holdfast
