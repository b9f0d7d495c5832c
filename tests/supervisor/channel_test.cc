// The channel between supervisor and worker, and starting processes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/text.h"
#include "runtime/supervisor/messages.h"
#include "runtime/supervisor/process.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;

TEST(Channel, CarriesWholeMessagesInOrder) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  Channel a(pair[0]), b(pair[1]);
  EXPECT_TRUE(absl::IsNotFound(b.Receive().status()));
  const std::string large(kMaxMessageBytes, 'x');
  a.Send("one");
  a.Send(large);
  EXPECT_EQ(*b.Receive(), "one");
  EXPECT_EQ(*b.Receive(), large);
  a.Send(large + "y");  // too large: dropped, never cut
  EXPECT_EQ(a.dropped(), 1);
  EXPECT_TRUE(absl::IsNotFound(b.Receive().status()));
}

TEST(Channel, WhatIsPostedWaitsForAReaderThatSleeps) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  Channel a(pair[0]), b(pair[1]);
  constexpr int kMessages = 3000;  // far more than a pipe holds
  for (int i = 0; i < kMessages; ++i) a.Post(Cat("message ", i, std::string(400, ' ')));
  for (int i = 0; i < kMessages; ++i) {
    auto got = b.Receive();
    if (!got.ok()) {
      a.Pump();
      got = b.Receive();
    }
    ASSERT_TRUE(got.ok()) << "message " << i << ": " << got.status();
    ASSERT_EQ(*got, Cat("message ", i, std::string(400, ' ')));
  }
  EXPECT_EQ(a.dropped(), 0);
}

TEST(Channel, WhatIsPostedHasABoundAndTheNewestStays) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  Channel a(pair[0]);
  auto b = std::make_unique<Channel>(pair[1]);
  const std::string filler(50'000, 'x');
  for (int i = 0; i < 1000 && a.dropped() == 0; ++i) a.Post(filler);
  EXPECT_EQ(a.dropped(), 1);
  a.Post("last");  // small enough to fit beside the others
  std::string newest;
  for (auto got = b->Receive(); got.ok(); got = b->Receive()) {
    newest = *got;
    a.Pump();
  }
  EXPECT_EQ(newest, "last");
  b.reset();
  a.Post("nobody");
  a.Flush(60'000);  // at once: there is nothing to wait for
  EXPECT_EQ(a.dropped(), 2);
}

TEST(Channel, AFullPipeDropsAfterASecondAndAClosedOneAtOnce) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  Channel a(pair[0]);
  auto b = std::make_unique<Channel>(pair[1]);
  const std::string message(50'000, 'x');
  for (int i = 0; i < 1000 && a.dropped() == 0; ++i) a.Send(message);
  EXPECT_EQ(a.dropped(), 1);
  b.reset();
  a.Send("gone");  // no SIGPIPE
  EXPECT_EQ(a.dropped(), 2);
  EXPECT_TRUE(absl::IsUnavailable(a.Receive().status()));
}

TEST(Process, ExecFailureIsReportedByTheStarter) {
  SpawnOptions options;
  options.program = "/no/such/program";
  options.argv = {"x"};
  const auto pid = Spawn(options);
  ASSERT_FALSE(pid.ok());
  EXPECT_THAT(std::string(pid.status().message()), HasSubstr("/no/such/program"));
  options.program = "/etc/passwd";  // not executable
  EXPECT_FALSE(Spawn(options).ok());
}

TEST(Process, TheChildHasNoOtherDescriptors) {
  int output[2], extra[2];
  ASSERT_EQ(pipe(output), 0);
  ASSERT_EQ(pipe2(extra, O_CLOEXEC), 0);
  ASSERT_EQ(fcntl(output[0], F_SETFD, FD_CLOEXEC), 0);
  ASSERT_EQ(fcntl(output[1], F_SETFD, FD_CLOEXEC), 0);
  SpawnOptions options;
  options.program = "sh";
  // Built-ins only: a pipeline would show the shell's own pipes.
  options.argv = {
      "sh", "-c",
      "f=0; while [ $f -lt 300 ]; do [ -e /proc/$$/fd/$f ] && echo -n \"$f \"; f=$((f+1)); done"};
  options.output_fd = output[1];
  const auto pid = Spawn(options);
  ASSERT_TRUE(pid.ok()) << pid.status();
  close(output[1]);
  std::string text;
  char buffer[256];
  for (ssize_t n; (n = read(output[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  EXPECT_THAT(text, ::testing::StartsWith("0 1 2 "));
  EXPECT_EQ(text.find(" 3 "), std::string::npos) << text;
  (void)waitpid(*pid, nullptr, 0);
}

TEST(Process, StopsContinuationsAndDeathsAreSeen) {
  SpawnOptions options;
  options.program = "sleep";
  options.argv = {"sleep", "100"};
  const auto pid = Spawn(options);
  ASSERT_TRUE(pid.ok());
  const auto next = [&] {
    for (int i = 0; i < 5000; ++i) {
      const ChildChange change = PollChild(*pid);
      if (change.kind != ChildChange::Kind::kNone) return change;
      usleep(1000);
    }
    return ChildChange{};
  };
  kill(*pid, SIGSTOP);
  ChildChange change = next();
  EXPECT_EQ(change.kind, ChildChange::Kind::kStopped);
  EXPECT_EQ(SignalName(change.value), "SIGSTOP");
  kill(*pid, SIGCONT);
  EXPECT_EQ(next().kind, ChildChange::Kind::kContinued);
  kill(*pid, SIGKILL);
  change = next();
  EXPECT_EQ(change.kind, ChildChange::Kind::kKilled);
  EXPECT_EQ(SignalName(change.value), "SIGKILL");
}

}  // namespace
}  // namespace holdfast
