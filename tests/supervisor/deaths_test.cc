// Workers that die, stop, or end for a reason: what the supervisor does and says (K23, K25; faults
// 05, 06, 12, 14).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/supervisor/driver.h"

namespace holdfast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Deaths, ACrashIsCertifiedRestartedAndAccountedFor) {
  Driver d;
  ASSERT_EQ(d.Run("", "1:1:segv@20"), 0) << d.Output();
  EXPECT_THAT(d.Output(), AllOf(HasSubstr("worker 1 (rank 1, pid "), HasSubstr("after step 19"),
                                HasSubstr("SIGSEGV")));
  const auto summary = d.Summary();
  EXPECT_EQ(summary["final_step"], 60);
  EXPECT_EQ(summary["finished"], true);
  EXPECT_EQ(summary["workers_lost"], 1);
  ASSERT_EQ(summary["recoveries"].size(), 1u) << d.Output();
  const auto& recovery = summary["recoveries"][0];
  EXPECT_THAT(recovery["cause"].get<std::string>(), HasSubstr("SIGSEGV"));
  EXPECT_GE(recovery["first_step_ms"].get<int>(), 0);
  EXPECT_EQ(d.Lines("steps.jsonl").size(), 60u);
}

TEST(Deaths, TheSameStepThreeTimesEndsTheRun) {
  Driver d;
  ASSERT_EQ(d.Run("workers = 1", "0:*:abort@30"), 20) << d.Output();
  EXPECT_EQ(d.Events("death").size(), 3u);
  EXPECT_THAT(d.Summary()["text"].get<std::string>(),
              AllOf(HasSubstr("3 times"), HasSubstr("step 29"), HasSubstr("SIGABRT")));
  EXPECT_EQ(d.Summary()["final_step"], 29);
}

TEST(Deaths, CrashesWithProgressBetweenThemAreForgiven) {
  Driver d;
  ASSERT_EQ(
      d.Run("workers = 1\nrestarts = 1", "0:1:exit7@10;0:2:exit7@20;0:3:exit7@30;0:4:segv@40"), 0)
      << d.Output();
  EXPECT_EQ(d.Summary()["workers_lost"], 4);
}

TEST(Deaths, NoRestartsMeansTheFirstFailureEndsTheRun) {
  Driver d;
  ASSERT_EQ(d.Run("restarts = 0", "1:1:kill@25"), 20) << d.Output();
  EXPECT_THAT(d.Output(), AllOf(HasSubstr("SIGKILL"), HasSubstr("--restarts allows 0")));
}

TEST(Deaths, TheLastLinesOfTheFirstFailureAreShown) {
  Driver d;
  ASSERT_EQ(d.Run("restarts = 0", "0:1:lines@5"), 20);
  const std::string text = d.Summary()["text"];
  EXPECT_THAT(text, AllOf(HasSubstr("exit code 7"), HasSubstr("line 24 of the end"),
                          HasSubstr("line 5 of the end")));
  EXPECT_THAT(text, Not(HasSubstr("line 4 of the end")));             // twenty are kept
  EXPECT_THAT(d.Output(), HasSubstr("worker 0: line 0 of the end"));  // all were forwarded
}

TEST(Deaths, ExitCodeZeroTooEarlyIsAFailure) {
  Driver d;
  ASSERT_EQ(d.Run("restarts = 0", "0:*:early@8"), 20);
  EXPECT_THAT(d.Output(), HasSubstr("exit code 0 before the run was finished"));
}

TEST(Deaths, FailingBeforeItCanJoinIsNotRepeatedForEver) {
  Driver d;
  ASSERT_EQ(d.Run("workers = 1", "0:*:exit9@0"), 20);
  EXPECT_THAT(d.Output(), HasSubstr("3 times before it could join"));
  EXPECT_EQ(d.Events("death").size(), 3u);
}

TEST(Deaths, OneSlotThatCannotStartIsSetAsideWhileOthersTrain) {
  Driver d;
  ASSERT_EQ(d.Run("steps = 400", "1:*:exit9@0"), 0) << d.Output();
  EXPECT_EQ(d.Events("set_aside").size(), 1u);
}

TEST(Deaths, ErrorsOfTheUserAreNotRetried) {
  for (const int code : {2, 3, 4, 5, 21, 22}) {
    Driver d;
    ASSERT_EQ(d.Run("", "1:1:final" + std::to_string(code) + "@4"), code) << d.Output();
    EXPECT_THAT(d.Output(), HasSubstr("the reason that it gives"));
    EXPECT_EQ(d.Events("start").size(), 2u);
  }
}

TEST(Deaths, ANewcomerThatHearsOfAStopDoesNotMakeTheRunFinished) {
  Driver d;
  ASSERT_EQ(d.Run("", "0:1:claim@10;1:1:final11@20"), 11) << d.Output();
  EXPECT_EQ(d.Summary()["finished"], false);
}

TEST(Deaths, ACodeWithoutAFinalMessageIsACrash) {
  Driver d;
  ASSERT_EQ(d.Run("workers = 1", "0:1:exit3@10"), 0) << d.Output();
}

TEST(Deaths, AStoppedWorkerIsSeenAtOnceAndReplaced) {
  Driver d;
  ASSERT_EQ(d.Run("steps = 300", "1:1:stop@10"), 0) << d.Output();
  const auto stopped = d.Events("stopped"), deaths = d.Events("death");
  ASSERT_EQ(stopped.size(), 1u);
  ASSERT_EQ(deaths.size(), 1u);
  EXPECT_THAT(deaths[0]["text"].get<std::string>(),
              AllOf(HasSubstr("by the supervisor"), HasSubstr("SIGSTOP")));
  // The loss counts from the stop, not from the kill.
  EXPECT_LE(deaths[0]["at_ms"].get<int64_t>(), stopped[0]["ms"].get<int64_t>());
  EXPECT_EQ(d.Summary()["workers_lost"], 1);
}

TEST(Deaths, AShortStopIsTolerated) {
  Driver d;
  d.Start("detect_ms = 20000\nrendezvous_ms = 200000", "1:1:stop@10");
  ASSERT_TRUE(Driver::Until([&] { return d.Events("stopped").size() == 1; })) << d.Output();
  ASSERT_EQ(kill(d.PidOfSlot(1), SIGCONT), 0);
  ASSERT_EQ(d.Wait(), 0) << d.Output();
  EXPECT_EQ(d.Events("continued").size(), 1u);
  EXPECT_EQ(d.Summary()["workers_lost"], 0);
}

TEST(Deaths, AnotherDigestForAStepEndsTheRun) {
  Driver d;
  ASSERT_EQ(d.Run("steps = 5000", "1:1:digest@15"), 23) << d.Output();
  EXPECT_THAT(d.Output(), AllOf(HasSubstr("step 15"), HasSubstr("on record")));
}

TEST(Deaths, AnotherDigestThanInAnEarlierLifeEndsTheRun) {
  Driver d;
  ASSERT_EQ(d.Run("workers = 1\nsteps = 20", ""), 0);
  ASSERT_EQ(d.Run("workers = 1\nsteps = 60", "0:1:segv@1"),
            0);  // continues: nothing of the old steps comes again
  const auto lines = d.Lines("steps.jsonl");
  ASSERT_EQ(lines.size(), 60u);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["step"], i + 1);
}

TEST(Deaths, TheEmbeddedRedisIsStartedAgainWhenItDies) {
  Driver d;
  d.Start("steps = 600", "*:1:final6@200");  // as workers do that find the store emptied
  ASSERT_TRUE(Driver::Until([&] { return d.Lines("steps.jsonl").size() > 5; })) << d.Output();
  for (const pid_t child : Driver::ChildrenOf(d.pid())) {
    if (child != d.PidOfSlot(0) && child != d.PidOfSlot(1)) kill(child, SIGKILL);
  }
  ASSERT_EQ(d.Wait(), 0) << d.Output();
  EXPECT_THAT(d.Output(), HasSubstr("the embedded Redis ended (SIGKILL)"));
  EXPECT_EQ(d.Events("start").size(), 4u) << d.Output();
}

}  // namespace
}  // namespace holdfast
