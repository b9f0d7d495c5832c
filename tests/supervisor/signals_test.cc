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

// A pseudo-terminal as the standard output (and error, where wanted) of a run.
class Terminal {
 public:
  Terminal() : master_(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) {
    EXPECT_EQ(grantpt(master_), 0);
    EXPECT_EQ(unlockpt(master_), 0);
    slave_ = open(ptsname(master_), O_RDWR | O_NOCTTY);
  }
  ~Terminal() { Close(); }
  void Start(Driver& d, const std::string& toml, const std::string& deeds, const char* term,
             bool errors_too) const {
    d.Start(toml, deeds, [&] {
      setenv("TERM", term, 1);
      setenv("NO_COLOR", "1", 1);
      dup2(slave_, 1);
      if (errors_too) dup2(slave_, 2);
    });
  }
  void Read() {
    char buffer[4096];
    for (ssize_t n; (n = read(master_, buffer, sizeof buffer)) > 0;)
      text_.append(buffer, static_cast<size_t>(n));
  }
  void Resize() {  // a window that is being resized all the time
    width_ = 20 + (width_ * 7) % 100;
    const winsize size = {static_cast<unsigned short>(5 + width_ % 40),
                          static_cast<unsigned short>(width_), 0, 0};
    (void)ioctl(master_, TIOCSWINSZ, &size);
  }
  int ReadUntilEnd(Driver& d) {
    int code = -2;
    EXPECT_TRUE(Driver::Until([&] {
      Read();
      Resize();
      return (code = d.Wait(0)) != -2;
    }));
    Read();
    return code;
  }
  void Close() {
    if (master_ < 0) return;
    close(slave_);
    close(master_);
    master_ = -1;
  }
  const std::string& text() const { return text_; }

 private:
  int master_, slave_ = -1, width_ = 20;
  std::string text_;
};

constexpr char kEntered[] = "\x1b[?1049h", kLeft[] = "\x1b[?1049l";

TEST(Signals, ALiveViewOnATerminalAndPlainLinesOnADumbOne) {
  Driver d, dumb;
  Terminal view, lines;
  view.Start(d, "steps = 300\nlog_every = 50", "1:1:kill@20", "xterm", true);
  EXPECT_EQ(view.ReadUntilEnd(d), 0);
  const size_t entered = view.text().find(kEntered), left = view.text().rfind(kLeft);
  ASSERT_NE(entered, std::string::npos);
  ASSERT_NE(left, std::string::npos);
  EXPECT_LT(entered, left);
  const std::string shown = view.text().substr(entered, left - entered);
  EXPECT_THAT(shown, HasSubstr("loss "));
  EXPECT_EQ(shown.find("step 50/300"), std::string::npos);  // no plain line in between
  // Afterwards the ordinary screen: the lines that were kept, the last picture, how it ended.
  const std::string after = view.text().substr(left + sizeof kLeft - 1);
  EXPECT_THAT(after, ::testing::AllOf(HasSubstr("died after step"), HasSubstr("100%"),
                                      HasSubstr("holdfast run: finished")));
  EXPECT_EQ(after.find('\x1b'), std::string::npos);
  lines.Start(dumb, "steps = 200\nlog_every = 50", "", "dumb", true);
  EXPECT_EQ(lines.ReadUntilEnd(dumb), 0);
  EXPECT_EQ(lines.text().find('\x1b'), std::string::npos);
  EXPECT_THAT(lines.text(), HasSubstr("step 50/200"));
}

TEST(Signals, TheTerminalIsRestoredAfterASignal) {
  Driver d;
  Terminal terminal;
  terminal.Start(d, kLong, "", "xterm", true);
  ASSERT_TRUE(Driver::Until([&] {
    terminal.Read();
    return terminal.text().find(kEntered) != std::string::npos && d.Lines("steps.jsonl").size() > 5;
  }));
  d.Signal(SIGINT);
  EXPECT_EQ(terminal.ReadUntilEnd(d), 10);
  const size_t left = terminal.text().rfind(kLeft);
  ASSERT_NE(left, std::string::npos);
  EXPECT_THAT(terminal.text().substr(left), HasSubstr("the same command resumes"));
}

// As after `setsid holdfast run`: the window is closed, and no hang-up comes.
TEST(Signals, ATerminalThatHasGoneDoesNotEndTheRun) {
  Driver d;
  Terminal terminal;
  terminal.Start(d, "steps = 400", "", "xterm", true);
  ASSERT_TRUE(Driver::Until([&] {
    terminal.Read();
    return terminal.text().find(kEntered) != std::string::npos;
  }));
  terminal.Close();
  EXPECT_EQ(d.Wait(), 0);
  EXPECT_EQ(d.Summary()["final_step"], 400);
}

}  // namespace
}  // namespace holdfast
