// The NCCL communicator between real processes on the emulated device and NCCL: members die,
// freeze, come and go at every point of its life. The bounds only catch hanging, since the machine
// may be loaded; the times are printed.
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <cstdio>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/clock.h"
#include "runtime/base/exit_code.h"
#include "tests/collectives/nccl_members.h"

namespace holdfast {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kAborted = static_cast<int>(absl::StatusCode::kAborted);
constexpr int kDeadlineExceeded = static_cast<int>(absl::StatusCode::kDeadlineExceeded);
constexpr int kInternal = static_cast<int>(absl::StatusCode::kInternal);
constexpr int kFailedPrecondition = static_cast<int>(absl::StatusCode::kFailedPrecondition);
// From an event to the error that it causes. Less than any of the longer deadlines that would end a
// wait otherwise (a join's, a wait's, an abort's: 20 s and more).
constexpr int64_t kKnowMs = 8'000;

double PrintKnown(const char* what, int member, int64_t since_us, const Reply& reply) {
  const double ms = static_cast<double>(reply.at_us - since_us) / 1000;
  std::printf("%s: member %d knew after %.1f ms: %s\n", what, member, ms, reply.text.c_str());
  return ms;
}

void ExpectAborted(const char* what, int member, int64_t since_us, const Reply& reply,
                   const std::string& cause) {
  EXPECT_EQ(reply.code, kAborted) << "member " << member << ": " << reply.text;
  EXPECT_LT(PrintKnown(what, member, since_us, reply), kKnowMs);
  EXPECT_THAT(reply.text, HasSubstr(cause));
}

struct Usage {
  int64_t fds = -1, threads = -1, kib = -1;
};

Usage UsageOf(const Reply& reply) {
  Usage usage;
  std::istringstream words(reply.text);
  words >> usage.fds >> usage.threads >> usage.kib;
  EXPECT_GT(usage.kib, 0) << reply.text;
  return usage;
}

TEST(NcclProcesses, AllOperationsGivePlainSums) {
  NcclWorld world(4);
  const std::vector<std::vector<int>> groups = {{0}, {0, 1}, {2, 0, 1}, {0, 1, 2, 3}};
  for (const std::vector<int>& who : groups) {
    EXPECT_THAT(world.Build(who), StartsWith("met anew")) << who.size();
    world.Check(who);
    const Reply carrier = world.Ask(who[0], "carrier");
    EXPECT_THAT(carrier.text, StartsWith("nccl 2."));
    EXPECT_THAT(carrier.text, HasSubstr("(" + std::to_string(who.size()) + " GPU"));
  }
}

TEST(NcclProcesses, KilledInAnAllReduceAndTheRestIsShrunk) {
  NcclWorld world(4);
  world.Build({0, 1, 2, 3});
  ASSERT_NO_FATAL_FAILURE(world.StartReducing({0, 1, 2, 3}, 1));
  const int64_t at_us = BootUs();
  world[1].Signal(SIGKILL);
  for (const int m : {0, 2, 3})
    ExpectAborted("killed in an all-reduce", m, at_us, world.ReduceError(m), "rank 1 ");
  EXPECT_THAT(world.Build({0, 2, 3}), StartsWith("shrunk: 1 of 4 members of generation 1"));
  world.Check({0, 2, 3});
  // And once more, out of the shrunk one.
  ASSERT_NO_FATAL_FAILURE(world.StartReducing({0, 2, 3}, 0));
  world[0].Signal(SIGKILL);
  for (const int m : {2, 3}) EXPECT_EQ(world.ReduceError(m).code, kAborted);
  EXPECT_THAT(world.Build({2, 3}), StartsWith("shrunk: 1 of 3 members of generation 2"));
  world.Check({2, 3});
  // One is left: it meets itself.
  world[2].Signal(SIGKILL);
  EXPECT_THAT(world.Build({3}), HasSubstr("one member is left"));
  world.Check({3});
}

TEST(NcclProcesses, KilledWhileIdle) {
  NcclWorld world(3);
  world.Build({0, 1, 2});
  world.Say(0, "idle");
  world.Say(1, "idle");
  const int64_t at_us = BootUs();
  world[2].Signal(SIGKILL);
  for (const int m : {0, 1})
    ExpectAborted("killed while idle", m, at_us, world.Heard(m), "rank 2 ");
}

TEST(NcclProcesses, StoppedInAnAllReduce) {
  NcclWorld world(3, {.detect_ms = 1000});
  world.Build({0, 1, 2});
  ASSERT_NO_FATAL_FAILURE(world.StartReducing({0, 1, 2}, 2));
  const int64_t at_us = BootUs();
  world[2].Signal(SIGSTOP);
  for (const int m : {0, 1}) {
    ExpectAborted("stopped in an all-reduce", m, at_us, world.ReduceError(m), "rank 2 ");
  }
  // The others go on without it; it learns, when it wakes, that they have gone, and can come back.
  EXPECT_THAT(world.Build({0, 1}), StartsWith("shrunk"));
  world.Check({0, 1});
  world[2].Signal(SIGCONT);
  EXPECT_EQ(world.ReduceError(2).code, kAborted);
  EXPECT_THAT(world.Build({0, 1, 2}), HasSubstr("met anew: rank 2 comes from generation 1"));
  world.Check({0, 1, 2});
}

// The members wait inside NCCL for one that dies there.
TEST(NcclProcesses, KilledInInit) {
  NcclWorld world(4);
  ASSERT_TRUE(world.Ask(2, "failpoints nccl.in_init=kill").ok);
  const int64_t at_us = BootUs();
  world.SayBuild({0, 1, 2, 3});
  for (const int m : {0, 1, 3})
    ExpectAborted("killed in init", m, at_us, world.Heard(m), "rank 2 ");
  EXPECT_THAT(world.Build({0, 1, 3}), StartsWith("met anew"));
  world.Check({0, 1, 3});
}

TEST(NcclProcesses, RankZeroKilledInInit) {
  NcclWorld world(3);
  ASSERT_TRUE(world.Ask(0, "failpoints nccl.in_init=kill").ok);
  const int64_t at_us = BootUs();
  world.SayBuild({0, 1, 2});
  for (const int m : {1, 2})
    ExpectAborted("rank 0 killed in init", m, at_us, world.Heard(m), "rank 0 ");
  world.Build({1, 2});
  world.Check({1, 2});
}

TEST(NcclProcesses, StoppedInInit) {
  NcclWorld world(3, {.detect_ms = 1000});
  ASSERT_TRUE(world.Ask(1, "failpoints nccl.before_init=sleep(600000)").ok);
  world.SayBuild({0, 1, 2});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // any moment of it is right
  const int64_t at_us = BootUs();
  world[1].Signal(SIGSTOP);
  for (const int m : {0, 2}) ExpectAborted("stopped in init", m, at_us, world.Heard(m), "rank 1 ");
  world.Build({0, 2});
  world.Check({0, 2});
}

TEST(NcclProcesses, AnErrorOfInitOnOneRankEndsTheJoinOfAll) {
  NcclWorld world(3);
  ASSERT_TRUE(world.Ask(2, "fault nccl.init.error").ok);
  const int64_t at_us = BootUs();
  world.SayBuild({0, 1, 2});
  for (const int m : {0, 1, 2}) {
    const Reply reply = world.Heard(m);
    ExpectAborted("error in init", m, at_us, reply, "NCCL init: ");
    EXPECT_THAT(reply.text, HasSubstr(m == 2 ? "" : "rank 2 gave up"));
  }
  world.Build({0, 1, 2});
  world.Check({0, 1, 2});
}

// All links live, and one does not come to NCCL: the join's own deadline.
TEST(NcclProcesses, AMissingPeerEndsTheJoin) {
  NcclWorld world(3, {.build_ms = 1000});
  ASSERT_TRUE(world.Ask(1, "failpoints nccl.before_init=sleep(3000)").ok);
  world.SayBuild({0, 1, 2});
  for (const int m : {0, 1, 2}) {
    const Reply reply = world.Heard(m);
    EXPECT_THAT(reply.code, AnyOf(kDeadlineExceeded, kAborted)) << m << ": " << reply.text;
    std::printf("missing peer: member %d: %s\n", m, reply.text.c_str());
  }
  ASSERT_TRUE(world.Ask(1, "failpoints nccl.before_init=off").ok);
  world.Build({0, 1, 2});
  world.Check({0, 1, 2});
}

TEST(NcclProcesses, ACancelEndsTheJoin) {
  NcclWorld world(2);
  ASSERT_TRUE(world.Ask(1, "failpoints nccl.before_init=sleep(1500)").ok);
  ASSERT_TRUE(world.Ask(0, "cancel 200").ok);
  world.SayBuild({0, 1});
  EXPECT_EQ(world.Heard(0).code, static_cast<int>(absl::StatusCode::kCancelled));
  const Reply other = world.Heard(1);
  EXPECT_EQ(other.code, kAborted);
  EXPECT_THAT(other.text, HasSubstr("rank 0 gave up: it was cancelled"));
}

TEST(NcclProcesses, KilledInShrink) {
  NcclWorld world(4);
  world.Build({0, 1, 2, 3});
  ASSERT_TRUE(world.Ask(2, "failpoints nccl.in_shrink=kill").ok);
  ASSERT_NO_FATAL_FAILURE(world.StartReducing({0, 1, 2, 3}, 3));
  world[3].Signal(SIGKILL);
  for (const int m : {0, 1, 2}) EXPECT_EQ(world.ReduceError(m).code, kAborted);
  const int64_t at_us = BootUs();
  world.SayBuild({0, 1, 2});
  for (const int m : {0, 1}) ExpectAborted("killed in shrink", m, at_us, world.Heard(m), "rank 2 ");
  // What was half shrunk is gone: the two meet anew.
  EXPECT_THAT(world.Build({0, 1}), StartsWith("met anew"));
  world.Check({0, 1});
}

// NCCL waits for ever, though all live: the join's deadline, and anew the next time.
TEST(NcclProcesses, AShrinkThatHangsEndsWithTheJoin) {
  NcclWorld world(4, {.build_ms = 1000});
  world.Build({0, 1, 2, 3});
  ASSERT_TRUE(world.Ask(0, "fault nccl.shrink.hang").ok);
  ASSERT_NO_FATAL_FAILURE(world.StartReducing({0, 1, 2, 3}, 3));
  world[3].Signal(SIGKILL);
  for (const int m : {0, 1, 2}) EXPECT_EQ(world.ReduceError(m).code, kAborted);
  world.SayBuild({0, 1, 2});
  for (const int m : {0, 1, 2}) {
    const Reply reply = world.Heard(m);
    EXPECT_THAT(reply.code, AnyOf(kDeadlineExceeded, kAborted)) << m << ": " << reply.text;
    EXPECT_THAT(reply.text, HasSubstr("not all members met in 1000 ms"));
  }
  EXPECT_THAT(world.Build({0, 1, 2}), StartsWith("met anew"));
  world.Check({0, 1, 2});
}

TEST(NcclProcesses, KilledInAbort) {
  NcclWorld world(4);
  world.Build({0, 1, 2});
  ASSERT_TRUE(world.Ask(1, "failpoints nccl.in_abort=kill").ok);
  ASSERT_NO_FATAL_FAILURE(world.StartReducing({0, 1, 2}, 2));
  world[2].Signal(SIGKILL);
  for (const int m : {0, 1}) EXPECT_EQ(world.ReduceError(m).code, kAborted);
  // A newcomer: so all abort, and one dies of it.
  const int64_t at_us = BootUs();
  world.SayBuild({0, 1, 3});
  for (const int m : {0, 3}) ExpectAborted("killed in abort", m, at_us, world.Heard(m), "rank 1 ");
  EXPECT_THAT(world.Build({0, 3}), StartsWith("met anew"));
  world.Check({0, 3});
}

// One is lost while another joins: no shrinking then.
TEST(NcclProcesses, LostAndJoinedInOneRound) {
  NcclWorld world(4);
  world.Build({0, 1, 2});
  ASSERT_NO_FATAL_FAILURE(world.StartReducing({0, 1, 2}, 1));
  world[1].Signal(SIGKILL);
  for (const int m : {0, 2}) EXPECT_EQ(world.ReduceError(m).code, kAborted);
  EXPECT_THAT(world.Build({0, 2, 3}), HasSubstr("met anew: rank 2 comes from no former"));
  world.Check({0, 2, 3});
}

TEST(NcclProcesses, AnAbortThatDoesNotReturnEndsTheProcess) {
  NcclWorld world(3, {.abort_ms = 500});
  world.Build({0, 1, 2});
  ASSERT_TRUE(world.Ask(1, "fault nccl.abort.hang").ok);
  ASSERT_NO_FATAL_FAILURE(world.StartReducing({0, 1, 2}, 2));
  world[2].Signal(SIGKILL);
  for (const int m : {0, 1}) EXPECT_EQ(world.ReduceError(m).code, kAborted);
  world.Say(1, "forget");
  EXPECT_EQ(world[1].ExitCode(kKnowMs), static_cast<int>(ExitCode::kDeviceLost));
  world.Build({0});
  world.Check({0});
}

// NCCL reports it to one rank alone, in the middle of its operations; all end, and are told by
// whom.
TEST(NcclProcesses, ANetworkErrorOnOneRankEndsAll) {
  NcclWorld world(3);
  world.Build({0, 1, 2});
  ASSERT_TRUE(world.Ask(1, "fault nccl.collective.error:20").ok);
  const int64_t at_us = BootUs();
  for (const int m : {0, 1, 2}) world.Say(m, "reduce 1000");
  for (const int m : {0, 1, 2}) {
    const Reply reply = world.ReduceError(m);
    ExpectAborted("network error", m, at_us, reply, "NCCL reports: ");
    EXPECT_THAT(reply.text, HasSubstr("rank 1"));
  }
  // Its communicator is no parent to shrink: all meet anew, though one has gone.
  world[2].Signal(SIGKILL);
  EXPECT_THAT(world.Build({0, 1}), HasSubstr("the former communicator of rank 1 has failed"));
  world.Check({0, 1});
}

// Between hosts NCCL sees a death, too, and may be faster than the links. These say who died.
TEST(NcclProcesses, ADeathThatNcclSeesIsNamedByTheLinks) {
  setenv("HOLDFAST_EMU_NETWORK", "0", 1);
  NcclWorld world(3);
  unsetenv("HOLDFAST_EMU_NETWORK");
  world.Build({0, 1, 2});
  ASSERT_NO_FATAL_FAILURE(world.StartReducing({0, 1, 2}, 1));
  const int64_t at_us = BootUs();
  world[1].Signal(SIGKILL);
  int named = 0;
  for (const int m : {0, 2}) {
    const Reply reply = world.ReduceError(m);
    ExpectAborted("killed, over a network", m, at_us, reply, "rank ");
    named += reply.text.find("rank 1 (") != std::string::npos ? 1 : 0;
  }
  // On a machine so loaded that the links' thread of one does not run for a moment, the other's.
  EXPECT_GE(named, 1);
  world.Build({0, 2});
  world.Check({0, 2});
}

// A GPU that is lost to its process: that one is to be replaced, the others regroup.
TEST(NcclProcesses, ALostGpuIsInternalForItsOwnerAloneAndEndsAll) {
  NcclWorld world(3);
  world.Build({0, 1, 2});
  ASSERT_TRUE(world.Ask(1, "fault nccl.collective.sticky:20").ok);
  for (const int m : {0, 1, 2}) world.Say(m, "reduce 1000");
  EXPECT_EQ(world.ReduceError(1).code, kInternal);
  for (const int m : {0, 2}) {
    const Reply reply = world.ReduceError(m);
    EXPECT_EQ(reply.code, kAborted);
    EXPECT_THAT(reply.text, HasSubstr("rank 1 gave up"));
    std::printf("lost GPU: member %d: %s\n", m, reply.text.c_str());
  }
  world.Build({0, 2});
  world.Check({0, 2});
}

TEST(NcclProcesses, AWaitEndsWhenOneDoesNotCome) {
  NcclWorld world(2);
  world.Build({0, 1});
  world.Say(1, "idle");
  world.Say(0, "reduce 1000 500");
  const Reply late = world.ReduceError(0);
  EXPECT_EQ(late.code, kDeadlineExceeded) << late.text;
  EXPECT_THAT(late.text, HasSubstr("all-reduce (step 0"));
  const Reply other = world.Heard(1);
  EXPECT_EQ(other.code, kAborted);
  EXPECT_THAT(other.text, HasSubstr("rank 0 gave up"));
  EXPECT_THAT(other.text, HasSubstr("all-reduce"));
  world.Build({0, 1});
  world.Check({0, 1});
}

TEST(NcclProcesses, TwoMembersOnOneGpuAreTold) {
  NcclWorld world(2);
  ASSERT_TRUE(world.Ask(1, "gpu 0").ok);
  world.SayBuild({0, 1});
  const Reply first = world.Heard(0), second = world.Heard(1);
  EXPECT_THAT((std::vector<int>{first.code, second.code}), testing::Contains(kFailedPrecondition))
      << first.text << second.text;
}

TEST(NcclProcesses, AnOrderlyEndIsNoErrorForAnybody) {
  NcclWorld world(3);
  world.Build({0, 1, 2});
  world.Check({0, 1, 2});
  for (const int m : {0, 1, 2}) world.Say(m, "close");
  for (const int m : {0, 1, 2}) {
    const Reply reply = world.Heard(m);
    EXPECT_TRUE(reply.ok) << reply.text;
  }
  world.Build({1, 2, 0});
  world.Check({1, 2, 0});
}

TEST(NcclProcesses, AnEndThatHangsIsBounded) {
  NcclWorld world(2);
  world.Build({0, 1});
  ASSERT_TRUE(world.Ask(1, "fault nccl.finalize.hang").ok);
  for (const int m : {0, 1}) world.Say(m, "close 1000");
  for (const int m : {0, 1}) {
    const Reply reply = world.Heard(m);
    EXPECT_THAT(reply.code, AnyOf(kDeadlineExceeded, kAborted)) << m << ": " << reply.text;
  }
  world.Build({0, 1});
  world.Check({0, 1});
}

TEST(NcclProcesses, ManyRebuildsLeaveNothingBehind) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kRebuilds = 21;
#else
  constexpr int kRebuilds = 51;
#endif
  NcclWorld world(3);
  const auto drop = [&](int victim, const std::vector<int>& rest) {
    for (const int m : rest) world.Say(m, "idle");
    EXPECT_TRUE(world.Ask(victim, "drop").ok);
    for (const int m : rest) EXPECT_EQ(world.Heard(m).code, kAborted);
  };
  Usage before;
  for (int k = 0; k < 9 + kRebuilds; ++k) {
    if (k == 9) before = UsageOf(world.Ask(0, "usage"));  // allocator and libraries are warm
    // Shrunk, anew after an orderly end, and anew after a loss, in turn.
    if (k % 3 == 0) {
      world.Build({0, 1, 2});
      drop(1, {0, 2});
    } else if (k % 3 == 1) {
      EXPECT_THAT(world.Build({0, 2}), StartsWith("shrunk"));
      for (const int m : {0, 2}) world.Say(m, "close");
      for (const int m : {0, 2}) EXPECT_TRUE(world.Heard(m).ok);
    } else {
      world.Build({0, 1, 2});
      drop(2, {0, 1});
    }
  }
  const Usage after = UsageOf(world.Ask(0, "usage"));
  std::printf("%d rebuilds: fds %ld -> %ld, threads %ld -> %ld, RSS %ld -> %ld KiB\n", kRebuilds,
              before.fds, after.fds, before.threads, after.threads, before.kib, after.kib);
  EXPECT_EQ(after.fds, before.fds);
  EXPECT_EQ(after.threads, before.threads);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(after.kib, before.kib + 8192);
#endif
}

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "member") return holdfast::RunNcclMember(argc, argv);
#if defined(__SANITIZE_THREAD__)
  // A process that is ended by _exit does not join its threads.
  const char* options = getenv("TSAN_OPTIONS");
  setenv("TSAN_OPTIONS",
         (std::string(options == nullptr ? "" : options) + ":report_thread_leaks=0").c_str(), 1);
#endif
  setenv("HOLDFAST_EMU_GPUS", "4", 1);
  setenv("HOLDFAST_EMU_DELAYS", "7:200", 1);  // a forgotten wait shows
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
