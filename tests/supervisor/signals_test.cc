// Signals, hang-ups, lost outputs, and what is left behind (K20, K21; faults 04, 10, 11).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "tests/supervisor/driver.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;

bool Trains(const Driver& d) {
  return Driver::Until([&] { return d.Lines("steps.jsonl").size() > 5; });
}

constexpr char kLong[] = "steps = 100000";

TEST(Signals, TerminateDrainsAndIsResumable) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    Driver d;
    d.Start(kLong, "");
    ASSERT_TRUE(Trains(d)) << d.Output();
    d.Signal(number);
    ASSERT_EQ(d.Wait(), 10) << d.Output();
    EXPECT_THAT(d.Output(), HasSubstr("the same command resumes"));
    EXPECT_EQ(d.Summary()["workers_lost"], 0);
    EXPECT_EQ(d.Summary()["finished"], false);
  }
}

TEST(Signals, ASecondOneEndsAtOnce) {
  Driver d;
  d.Start(kLong, "*:*:deaf@3");
  ASSERT_TRUE(Trains(d));
  d.Signal(SIGTERM);
  ASSERT_TRUE(Driver::Until([&] { return d.Events("drain").size() == 1; }));
  d.Signal(SIGTERM);
  ASSERT_EQ(d.Wait(15), 10) << d.Output();
  EXPECT_THAT(d.Output(), HasSubstr("again: the workers are ended at once"));
}

TEST(Signals, GraceTimeEndsADrainThatDoesNotFinish) {
  Driver d;
  d.Start(std::string(kLong) + "\ngrace_ms = 300", "*:*:deaf@3");
  ASSERT_TRUE(Trains(d));
  d.Signal(SIGTERM);
  ASSERT_EQ(d.Wait(15), 10) << d.Output();
  EXPECT_THAT(d.Output(), HasSubstr("the farewell save did not finish"));
}

TEST(Signals, NohupIsRespected) {
  Driver d;
  d.Start("steps = 200", "", [] { signal(SIGHUP, SIG_IGN); });
  ASSERT_TRUE(Trains(d));
  d.Signal(SIGHUP);
  kill(d.PidOfSlot(0), SIGHUP);
  EXPECT_EQ(d.Wait(), 0) << d.Output();
  EXPECT_EQ(d.Summary()["workers_lost"], 0);
}

TEST(Signals, TerminateToOneWorkerIsNoFailureAndNotReplaced) {
  Driver d;
  d.Start("steps = 300", "");
  ASSERT_TRUE(Trains(d));
  kill(d.PidOfSlot(1), SIGTERM);
  ASSERT_EQ(d.Wait(), 0) << d.Output();
  EXPECT_EQ(d.Summary()["workers_lost"], 0);
  EXPECT_EQ(d.Events("start").size(), 2u);
  EXPECT_THAT(d.Output(), HasSubstr("left on request"));
}

TEST(Signals, TerminateToOneWorkerBelowTheMinimumIsReplaced) {
  Driver d;
  d.Start("steps = 300\nmin_workers = 2", "");
  ASSERT_TRUE(Trains(d));
  kill(d.PidOfSlot(1), SIGTERM);
  ASSERT_EQ(d.Wait(), 0) << d.Output();
  EXPECT_EQ(d.Events("start").size(), 3u);
}

TEST(Signals, StopAndContinueOfTheWholeRunFromTheTerminal) {
  Driver d;
  d.Start("steps = 400", "");
  ASSERT_TRUE(Trains(d));
  d.Signal(SIGTSTP);
  int status = 0;
  ASSERT_TRUE(
      Driver::Until([&] { return waitpid(d.pid(), &status, WUNTRACED | WNOHANG) == d.pid(); }));
  ASSERT_TRUE(WIFSTOPPED(status));
  d.Signal(SIGCONT);
  ASSERT_EQ(d.Wait(), 0) << d.Output();
  EXPECT_EQ(d.Summary()["workers_lost"], 0);
}

TEST(Signals, KilledSupervisorTakesEverythingAlong) {
  Driver d;
  d.Start(kLong, "*:*:deaf@2");
  ASSERT_TRUE(Trains(d));
  const std::vector<pid_t> children = Driver::ChildrenOf(d.pid());
  ASSERT_EQ(children.size(), 3u);  // two workers and Redis
  d.Signal(SIGKILL);
  ASSERT_EQ(d.Wait(), -1);
  for (const pid_t child : children)
    EXPECT_TRUE(Driver::Until([&] { return !Driver::Alive(child); })) << child;
  // The next start takes the torn directory and goes on.
  ASSERT_EQ(d.Run("steps = 100000\nrestarts = 3", "*:*:final11@500"), 11) << d.Output();
}

TEST(Signals, NothingIsLeftAfterAnyEnd) {
  for (const char* deeds : {"", "1:1:kill@20", "0:1:final3@4"}) {
    Driver d;
    d.Start("steps = 200", deeds);
    std::vector<pid_t> children;
    ASSERT_TRUE(
        Driver::Until([&] { return (children = Driver::ChildrenOf(d.pid())).size() == 3; }));
    (void)d.Wait();
    for (const pid_t child : children) EXPECT_FALSE(Driver::Alive(child));
    EXPECT_FALSE(std::filesystem::exists(d.RunPath("redis.secret")));
    EXPECT_FALSE(std::filesystem::exists(d.RunPath("run.json")));
  }
}

TEST(Signals, LosingTheReaderOfTheOutputDoesNotEndTheRun) {
  Driver d;
  d.Start("steps = 200\nlog_every = 1", "", [] {
    int ends[2];
    if (pipe(ends) != 0) _exit(126);
    close(ends[0]);  // nobody reads
    dup2(ends[1], 1);
    dup2(ends[1], 2);
  });
  ASSERT_EQ(d.Wait(), 0);
  EXPECT_GT(d.Summary()["lost_log_lines"].get<int>(), 0);
}

TEST(Signals, AFullOutputDiskDoesNotEndTheRun) {
  Driver d;
  d.Start("log_every = 1", "", [] {
    const int full = open("/dev/full", O_WRONLY);
    dup2(full, 1);
    dup2(full, 2);
  });
  ASSERT_EQ(d.Wait(), 0);
}

TEST(Signals, ClosedStandardDescriptorsAreNotReused) {
  Driver d;
  d.Start("", "", [] {
    close(0);
    close(1);
    close(2);
  });
  ASSERT_EQ(d.Wait(), 0);
  // No line of ours went into a file that happened to get number 1 or 2.
  for (const auto& line : d.Lines("steps.jsonl")) EXPECT_TRUE(line.contains("state_digest"));
  EXPECT_EQ(d.Lines("steps.jsonl").size(), 60u);
}

TEST(Signals, AReaderThatDoesNotReadDoesNotHoldTheRun) {
  Driver d;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  d.Start("steps = 300\nlog_every = 1", "", [&] { dup2(ends[1], 1); });
  close(ends[1]);
  EXPECT_EQ(d.Wait(), 0);
  close(ends[0]);
}

// Runs with a pseudo-terminal as standard output; what arrived on it.
std::string OnTerminal(Driver& d, const char* term) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
  EXPECT_EQ(grantpt(master), 0);
  EXPECT_EQ(unlockpt(master), 0);
  const int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
  d.Start("steps = 200\nlog_every = 50", "", [&] {
    setenv("TERM", term, 1);
    dup2(slave, 1);
  });
  std::string text;
  int code = -2;
  int width = 20;
  EXPECT_TRUE(Driver::Until([&] {
    char buffer[4096];
    for (ssize_t n; (n = read(master, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    const winsize size = {24, static_cast<unsigned short>(width = 20 + (width * 7) % 100), 0, 0};
    (void)ioctl(master, TIOCSWINSZ, &size);  // a window that is being resized all the time
    code = d.Wait(0);
    return code != -2;
  }));
  EXPECT_EQ(code, 0) << d.Output();
  close(slave);
  close(master);
  return text;
}

TEST(Signals, ALiveViewOnATerminalAndPlainLinesOnADumbOne) {
  Driver live, dumb;
  const std::string view = OnTerminal(live, "xterm");
  EXPECT_THAT(view, HasSubstr("\x1b[J"));
  EXPECT_THAT(view, HasSubstr("["));
  EXPECT_EQ(view.find("gradient norm"), std::string::npos);
  const std::string lines = OnTerminal(dumb, "dumb");
  EXPECT_EQ(lines.find('\x1b'), std::string::npos);
  EXPECT_THAT(lines, HasSubstr("step 50/200"));
}

}  // namespace
}  // namespace holdfast
