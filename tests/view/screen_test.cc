// The thin part over a real pseudo-terminal: entering, painting what changed, resizing, a terminal
// that does not take text, one that has gone, and restoring it, also when the process crashes.
#include "runtime/view/screen.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cstdlib>

#include "runtime/base/clock.h"

namespace holdfast::view {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLeft[] = "\x1b[?1049l";

class Terminal : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) unsetenv(name);
    master_ = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    ASSERT_GE(master_, 0);
    ASSERT_EQ(grantpt(master_), 0);
    ASSERT_EQ(unlockpt(master_), 0);
    slave_ = open(ptsname(master_), O_RDWR | O_NOCTTY);
    ASSERT_GE(slave_, 0);
    Resize(80, 24);
  }
  void TearDown() override {
    if (master_ >= 0) close(master_);
    close(slave_);
  }
  void Resize(int columns, int rows) {
    const winsize size = {static_cast<unsigned short>(rows), static_cast<unsigned short>(columns),
                          0, 0};
    ASSERT_EQ(ioctl(master_, TIOCSWINSZ, &size), 0);
  }
  std::string Read() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(master_, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    return text;
  }
  int master_ = -1, slave_ = -1;
};

TEST_F(Terminal, WhatItCanDoComesFromTheEnvironment) {
  Resize(132, 50);
  Capabilities caps = CapabilitiesOf(slave_);
  EXPECT_EQ(caps.width, 132);
  EXPECT_EQ(caps.height, 50);
  EXPECT_FALSE(caps.utf8);
  EXPECT_TRUE(caps.colour);
  setenv("LANG", "de_DE.UTF-8", 1);
  EXPECT_TRUE(CapabilitiesOf(slave_).utf8);
  setenv("LC_ALL", "C", 1);  // stands above LANG
  EXPECT_FALSE(CapabilitiesOf(slave_).utf8);
  setenv("LC_ALL", "en_US.utf8", 1);
  EXPECT_TRUE(CapabilitiesOf(slave_).utf8);
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(CapabilitiesOf(slave_).colour);
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(UnderstandsMovement(slave_));
  EXPECT_FALSE(Screen(slave_).usable());
  unsetenv("TERM");
  EXPECT_FALSE(UnderstandsMovement(slave_));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  setenv("TERM", "xterm", 1);
  EXPECT_FALSE(Screen(ends[1]).usable());
  EXPECT_EQ(CapabilitiesOf(ends[1]).width, 80);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(Terminal, PaintsWhatChangedAndLeavesItAsItWas) {
  Screen screen(slave_);
  screen.Show({"one", "two"});
  EXPECT_THAT(Read(), AllOf(HasSubstr("\x1b[?1049h"), HasSubstr("one"), HasSubstr("two")));
  screen.Show({"one", "TWO"});
  EXPECT_THAT(Read(), AllOf(Not(HasSubstr("one")), HasSubstr("\x1b[2;1H\x1b[2KTWO")));
  screen.Show({"one"});
  EXPECT_EQ(Read(), "\x1b[2;1H\x1b[2K");  // the line that is no more
  screen.Leave();
  EXPECT_THAT(Read(), AllOf(HasSubstr("\x1b[?25h"), EndsWith(kLeft)));
  screen.Leave();
  EXPECT_EQ(Read(), "");
  screen.Show({"again"});
  EXPECT_THAT(Read(), AllOf(HasSubstr("\x1b[?1049h"), HasSubstr("again")));
}

TEST_F(Terminal, AnotherSizeMeansEverythingAnew) {
  Screen screen(slave_);
  screen.Show({"one", "two"});
  (void)Read();
  Resize(40, 1);
  screen.Show({"one", "two"});
  EXPECT_THAT(Read(), AllOf(HasSubstr("\x1b[2J"), HasSubstr("one"), Not(HasSubstr("two"))));
}

TEST_F(Terminal, OneThatTakesNoTextIsNotWaitedFor) {
  Screen screen(slave_);
  ASSERT_EQ(tcflow(slave_, TCOOFF), 0);  // as Ctrl-S
  for (int i = 0; i < 50; ++i) screen.Show({std::string(70, static_cast<char>('a' + i % 26))});
  EXPECT_EQ(Read(), "");
  ASSERT_EQ(tcflow(slave_, TCOON), 0);
  screen.Show({"now"});  // what was pending goes first, whole
  screen.Show({"now"});
  EXPECT_THAT(Read(), AllOf(HasSubstr("\x1b[?1049h"), HasSubstr("now")));
}

TEST_F(Terminal, OneThatNobodyReadsFillsUpAndIsNotWaitedFor) {
  Screen screen(slave_);
  std::vector<std::string> lines(24);
  for (int i = 0; i < 400; ++i) {
    for (std::string& line : lines) line = std::string(79, static_cast<char>('a' + i % 26));
    screen.Show(lines);
  }
  const int64_t start_ms = BootMs();
  screen.Leave();  // bounded
  EXPECT_LT(BootMs() - start_ms, 5000);
}

TEST_F(Terminal, OneThatHasGoneIsGivenUp) {
  Screen screen(slave_);
  screen.Show({"one"});
  close(master_);
  master_ = -1;
  screen.Show({"two"});
  EXPECT_FALSE(screen.usable());
  screen.Show({"three"});
  screen.Leave();
}

TEST_F(Terminal, IsRestoredWhenTheProcessCrashes) {
  for (const int number : {SIGSEGV, SIGABRT}) {
    const pid_t pid = fork();
    if (pid == 0) {
      const rlimit none = {0, 0};
      (void)setrlimit(RLIMIT_CORE, &none);
      // The handlers of sanitizers end the process in their own way.
      for (const int crash : {SIGSEGV, SIGABRT}) signal(crash, SIG_DFL);
      Screen screen(slave_);
      screen.Show({"one"});
      (void)raise(number);
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), number);
    EXPECT_THAT(Read(), EndsWith(kLeft));
  }
}

}  // namespace
}  // namespace holdfast::view
