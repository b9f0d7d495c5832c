// The emulated NCCL between processes, and their deaths.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/emulation/nccl_testing.h"

namespace holdfast::emulation {
namespace {

const bool gpus_set = setenv("HOLDFAST_EMU_GPUS", "8", 1) == 0;

constexpr const char* kSuccess = "0";
constexpr const char* kInvalidArgument = "4";
constexpr const char* kRemoteError = "6";
constexpr const char* kInProgress = "7";

using Ranks = std::vector<std::unique_ptr<RankProcess>>;

Ranks Start(int n, const Environment& environment = {}) {
  Ranks ranks;
  for (int r = 0; r < n; ++r) ranks.push_back(std::make_unique<RankProcess>(r, environment));
  return ranks;
}

void Say(Ranks& ranks, const std::string& line) {
  for (auto& rank : ranks) rank->Say(line);
}
void Expect(Ranks& ranks, const std::string& answer) {
  for (size_t r = 0; r < ranks.size(); ++r) EXPECT_EQ(ranks[r]->Hear(), answer) << "rank " << r;
}
void All(Ranks& ranks, const std::string& line, const std::string& answer) {
  Say(ranks, line);
  Expect(ranks, answer);
}

void Init(Ranks& ranks) {
  const std::string id = ranks[0]->Ask("id");
  for (size_t r = 0; r < ranks.size(); ++r)
    ranks[r]->Say("init " + std::to_string(ranks.size()) + " " + std::to_string(r) + " " + id);
  Expect(ranks, kSuccess);
}

void Reduce(Ranks& ranks, size_t count) {
  const auto n = static_cast<int64_t>(ranks.size());
  const std::string sum = std::to_string(n * (n + 1) / 2);
  All(ranks, "launch " + std::to_string(count), kSuccess);
  All(ranks, "drained 30000", "yes");
  All(ranks, "sum", sum + " " + sum);
}

std::unique_ptr<RankProcess> Lose(Ranks& ranks, size_t rank) {
  auto lost = std::move(ranks[rank]);
  ranks.erase(ranks.begin() + static_cast<int64_t>(rank));
  return lost;
}

TEST(Processes, MeetReduceAndEndInOrder) {
  Ranks ranks = Start(3);
  Init(ranks);
  Reduce(ranks, 1);
  Reduce(ranks, 300'000);
  All(ranks, "finalize", kSuccess);
  All(ranks, "destroy", kSuccess);
}

TEST(Processes, AKillInACollectiveIsSilentAndAbortAndANewIdGoOn) {
  Ranks ranks = Start(3);
  Init(ranks);
  Reduce(ranks, 1'000);
  auto lost = Lose(ranks, 1);
  All(ranks, "launch 400000", kSuccess);
  lost->Kill();
  All(ranks, "drained 100", "no");
  All(ranks, "state", kSuccess);
  All(ranks, "abort", kSuccess);
  All(ranks, "drained 30000", "yes");
  const std::string id = ranks[1]->Ask("id");
  ranks[0]->Say("init 2 0 " + id);
  ranks[1]->Say("init 2 1 " + id);
  Expect(ranks, kSuccess);
  Reduce(ranks, 1'000);
}

TEST(Processes, AKillInACollectiveAndShrink) {
  Ranks ranks = Start(4);
  Init(ranks);
  Reduce(ranks, 1'000);
  auto lost = Lose(ranks, 0);  // with the root of the id
  All(ranks, "launch 400000", kSuccess);
  lost->Kill();
  All(ranks, "shrink 0", kSuccess);
  for (size_t r = 0; r < ranks.size(); ++r)
    EXPECT_EQ(ranks[r]->Ask("rank"), std::to_string(r) + " of 3");
  All(ranks, "launch 1000", kSuccess);
  All(ranks, "drained 30000", "yes");
  All(ranks, "sum", "9 9");  // they still add 2, 3 and 4
  auto second = Lose(ranks, 1);
  All(ranks, "launch 1000", kSuccess);
  second->Kill();
  All(ranks, "shrink 1", kSuccess);
  All(ranks, "launch 10", kSuccess);
  All(ranks, "drained 30000", "yes");
  All(ranks, "sum", "6 6");
}

TEST(Processes, AKillInInitLeavesTheOthersInProgress) {
  Ranks ranks = Start(3);
  const std::string id = ranks[0]->Ask("id");
  EXPECT_EQ(ranks[0]->Ask("begin 3 0 " + id), kInProgress);
  EXPECT_EQ(ranks[2]->Ask("begin 3 2 " + id), kInProgress);
  ranks[1]->Kill();
  EXPECT_EQ(ranks[0]->Ask("state"), kInProgress);
  EXPECT_EQ(ranks[2]->Ask("state"), kInProgress);
  EXPECT_EQ(ranks[0]->Ask("abort"), kSuccess);
  EXPECT_EQ(ranks[2]->Ask("abort"), kSuccess);
}

const Environment kFewTries = {{"NCCL_SOCKET_RETRY_CNT", "3"},
                               {"NCCL_SOCKET_RETRY_SLEEP_MSEC", "2"}};

TEST(Processes, TheDeathOfTheRootInInitIsARemoteError) {
  Ranks ranks = Start(3, kFewTries);
  const std::string id = ranks[0]->Ask("id");
  EXPECT_EQ(ranks[1]->Ask("begin 3 1 " + id), kInProgress);
  ranks[0]->Kill();
  EXPECT_EQ(ranks[1]->Ask("wait"), kRemoteError);
  EXPECT_EQ(ranks[1]->Ask("abort"), kSuccess);
}

TEST(Processes, AnIdWhoseRootIsGoneIsARemoteErrorAfterItsRetries) {
  Ranks ranks = Start(2, kFewTries);
  const std::string id = ranks[0]->Ask("id");
  ranks[0]->Kill();
  EXPECT_EQ(ranks[1]->Ask("init 2 1 " + id), kRemoteError);
  EXPECT_EQ(ranks[1]->Ask("abort"), kSuccess);
}

TEST(Processes, AFrozenRankIsAHang) {
  Ranks ranks = Start(2);
  Init(ranks);
  Reduce(ranks, 10);
  ranks[1]->Signal(SIGSTOP);
  EXPECT_EQ(ranks[0]->Ask("launch 10"), kSuccess);
  EXPECT_EQ(ranks[0]->Ask("drained 100"), "no");
  ranks[1]->Signal(SIGCONT);
  EXPECT_EQ(ranks[1]->Ask("launch 10"), kSuccess);
  EXPECT_EQ(ranks[0]->Ask("drained 30000"), "yes");
}

TEST(Processes, OverANetworkTheNeighboursOfTheDeadGetARemoteError) {
  Ranks ranks = Start(4, {{"HOLDFAST_EMU_NETWORK", "30"}});
  Init(ranks);
  Reduce(ranks, 10);
  ranks[0]->Kill();
  for (const size_t neighbour : {1u, 3u}) {
    std::string state = kSuccess;
    for (int i = 0; i < kBoundMs && state == kSuccess; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      state = ranks[neighbour]->Ask("state");
    }
    EXPECT_EQ(state, kRemoteError) << "rank " << neighbour;
    EXPECT_EQ(ranks[neighbour]->Ask("call 10"), kRemoteError);
  }
  EXPECT_EQ(ranks[2]->Ask("state"), kSuccess) << "it has no connection to the dead";
  EXPECT_EQ(ranks[2]->Ask("launch 10"), kSuccess);
  EXPECT_EQ(ranks[2]->Ask("drained 100"), "no");
  auto dead = Lose(ranks, 0);
  All(ranks, "abort", kSuccess);
}

TEST(Processes, TheOrderlyEndOfAPeerIsNoNetworkError) {
  Ranks ranks = Start(2, {{"HOLDFAST_EMU_NETWORK", "0"}});
  Init(ranks);
  Reduce(ranks, 10);
  All(ranks, "finalize", kSuccess);
  EXPECT_EQ(ranks[0]->Ask("destroy"), kSuccess);
  EXPECT_EQ(ranks[1]->Ask("state"), kSuccess);
  EXPECT_EQ(ranks[1]->Ask("destroy"), kSuccess);
}

TEST(Processes, ADeathWhileTheyConnectIsARemoteError) {
  Ranks ranks = Start(2);
  Init(ranks);
  EXPECT_EQ(ranks[0]->Ask("call 10"), kInProgress);
  ranks[1]->Kill();
  EXPECT_EQ(ranks[0]->Ask("wait"), kRemoteError);
  EXPECT_EQ(ranks[0]->Ask("abort"), kSuccess);
}

TEST(Processes, AFaultsFileHitsOneOfThem) {
  const std::string flag = testing::TempDir() + "nccl_fault_" + std::to_string(getpid());
  Ranks ranks = Start(3, {{"HOLDFAST_EMU_FAULT", "nccl.collective.kill@" + flag}});
  Init(ranks);
  Reduce(ranks, 10);
  std::ofstream(flag) << "x";
  Say(ranks, "launch 100000");
  size_t alive = 0;
  for (auto& rank : ranks) alive += rank->Hear().empty() ? 0 : 1;
  for (int i = 0; i < kBoundMs && alive == 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Say(ranks, "state");
    alive = 0;
    for (auto& rank : ranks) alive += rank->Hear().empty() ? 0 : 1;
  }
  EXPECT_EQ(alive, 2u);
  EXPECT_FALSE(std::filesystem::exists(flag));
}

TEST(Processes, KilledInShrinkLeavesTheOthersInProgressUntilTheyAbort) {
  Ranks ranks = Start(3, {{"HOLDFAST_EMU_FAULT", "nccl.shrink.kill#1"}});
  Init(ranks);
  Reduce(ranks, 10);
  ranks[1]->Say("shrink 2");  // dies in it
  EXPECT_EQ(ranks[1]->Hear(), "");
  ranks[0]->Say("shrink 2");
  EXPECT_EQ(ranks[0]->Hear(100), "") << "nobody came";
}

// Run by RankProcess.
TEST(Child, Rank) {
  if (IsChild()) ObeyParent();
}

}  // namespace
}  // namespace holdfast::emulation
