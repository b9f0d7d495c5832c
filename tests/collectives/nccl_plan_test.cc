// The parts of the NCCL communicator that need neither a GPU nor NCCL: how members decide to come
// together, the environment, and the guard of NCCL's calls.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/clock.h"
#include "runtime/collectives/nccl/call_guard.h"
#include "runtime/collectives/nccl/environment.h"
#include "runtime/collectives/nccl/join_plan.h"

namespace holdfast {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// What is left of a healthy communicator of `world` members of generation 7.
std::vector<JoinRow> Left(int world, const std::vector<int>& parent_ranks) {
  std::vector<JoinRow> rows;
  for (const int rank : parent_ranks) {
    JoinRow row;
    row.nccl_version = 22809;
    row.parent_generation = 7;
    row.parent_rank = rank;
    row.parent_world = world;
    row.parent_healthy = row.can_shrink = 1;
    rows.push_back(row);
  }
  return rows;
}

TEST(JoinPlan, WhatIsLeftOfOneCommunicatorIsShrunk) {
  const JoinPlan plan = DecideJoin(Left(5, {0, 2, 4}));
  EXPECT_TRUE(plan.shrink);
  EXPECT_THAT(plan.excluded, ElementsAre(1, 3));
  EXPECT_THAT(plan.why, HasSubstr("2 of 5 members of generation 7 were lost"));
  EXPECT_THAT(DecideJoin(Left(4, {1, 2})).excluded, ElementsAre(0, 3));
  EXPECT_THAT(DecideJoin(Left(3, {0, 1})).excluded, ElementsAre(2));
}

TEST(JoinPlan, EverythingElseMeetsAnew) {
  struct Case {
    const char* why;
    std::vector<JoinRow> rows;
  };
  std::vector<Case> cases = {
      {"nobody was lost", Left(3, {0, 1, 2})},
      {"one member is left", Left(3, {1})},
      {"rank 1 has changed its place", Left(4, {2, 0, 3})},
      {"rank 2 has changed its place", Left(4, {0, 1, 1})},
      {"rank 1 comes from no former communicator", Left(4, {0, 1, 3})},
      {"rank 2 comes from generation 6, rank 0 from 7", Left(4, {0, 1, 3})},
      {"the former communicator of rank 0 has failed", Left(4, {0, 1, 3})},
      {"rank 2 has an NCCL before 2.27", Left(4, {0, 1, 3})},
      {"rank 1 does not know its former rank", Left(4, {0, 4, 3})},
  };
  cases[4].rows[1] = JoinRow{};
  cases[5].rows[2].parent_generation = 6;
  cases[6].rows[0].parent_healthy = 0;
  cases[7].rows[2].can_shrink = 0;
  for (const Case& c : cases) {
    const JoinPlan plan = DecideJoin(c.rows);
    EXPECT_FALSE(plan.shrink) << c.why;
    EXPECT_THAT(plan.excluded, IsEmpty()) << c.why;
    EXPECT_EQ(plan.why, c.why);
  }
}

TEST(JoinPlan, TwoVersionsDoNotMeet) {
  std::vector<JoinRow> rows = Left(3, {0, 1, 2});
  EXPECT_TRUE(CheckJoinRows(rows).ok());
  rows[2].nccl_version = 22703;
  const absl::Status status = CheckJoinRows(rows);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 0 has NCCL 2.28.9, rank 2 has 2.27.3"));
  rows[1].magic = 5;
  EXPECT_EQ(CheckJoinRows(rows).code(), absl::StatusCode::kAborted);
}

class Environment : public testing::Test {
 protected:
  void SetUp() override { Clear(); }
  void TearDown() override { Clear(); }
  static void Clear() {
    for (const NcclSetting& setting : NcclSettings(true, "")) unsetenv(setting.name.c_str());
  }
  static std::string Get(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "(none)" : value;
  }
};

TEST_F(Environment, DefaultsAreSet) {
  EXPECT_THAT(PinNcclEnvironment(NcclSettings(true, "eth7")), IsEmpty());
  EXPECT_EQ(Get("NCCL_COMM_BLOCKING"), "0");
  EXPECT_EQ(Get("NCCL_COMM_ID"), "(none)");
  EXPECT_EQ(Get("NCCL_SOCKET_IFNAME"), "=lo");
  EXPECT_EQ(Get("NCCL_RAS_ENABLE"), "0");
  EXPECT_EQ(Get("NCCL_DEBUG"), "WARN");
}

TEST_F(Environment, TheInterfaceIsTheOneAskedForOrNcclsChoice) {
  EXPECT_THAT(PinNcclEnvironment(NcclSettings(false, "")), IsEmpty());
  EXPECT_EQ(Get("NCCL_SOCKET_IFNAME"), "(none)");
  EXPECT_THAT(PinNcclEnvironment(NcclSettings(false, "eth7")), IsEmpty());
  EXPECT_EQ(Get("NCCL_SOCKET_IFNAME"), "=eth7");
}

TEST_F(Environment, TheUsersValuesStayUnlessTheyAreUnsafe) {
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_SOCKET_IFNAME", "ib0", 1);
  setenv("NCCL_IB_TIMEOUT", "22", 1);
  setenv("NCCL_COMM_BLOCKING", "1", 1);
  setenv("NCCL_COMM_ID", "10.0.0.1:4000", 1);
  const std::vector<std::string> replaced = PinNcclEnvironment(NcclSettings(true, ""));
  ASSERT_THAT(replaced, SizeIs(2));
  EXPECT_THAT(replaced[0], HasSubstr("NCCL_COMM_BLOCKING=1 is replaced by 0"));
  EXPECT_THAT(replaced[1], HasSubstr("NCCL_COMM_ID=10.0.0.1:4000 is taken out"));
  EXPECT_EQ(Get("NCCL_DEBUG"), "INFO");
  EXPECT_EQ(Get("NCCL_SOCKET_IFNAME"), "ib0");
  EXPECT_EQ(Get("NCCL_IB_TIMEOUT"), "22");
  EXPECT_EQ(Get("NCCL_COMM_BLOCKING"), "0");
  EXPECT_EQ(Get("NCCL_COMM_ID"), "(none)");
}

// What determines the sums' bits or NCCL's speed is the user's and NCCL's own.
TEST_F(Environment, AlgorithmsAreNotPinned) {
  for (const NcclSetting& setting : NcclSettings(true, "")) {
    EXPECT_THAT(setting.name,
                testing::Not(testing::AnyOf("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE")));
    EXPECT_STRNE(setting.why, "") << setting.name;
  }
}

TEST_F(Environment, TheReadmeHasTheTable) {
  std::ifstream file(HOLDFAST_SOURCE_DIR "/README.md");
  const std::string readme((std::istreambuf_iterator<char>(file)), {});
  for (const NcclSetting& setting : NcclSettings(true, "")) {
    const std::string value = setting.value.empty() ? "(taken out)" : "`" + setting.value + "`";
    EXPECT_THAT(readme, HasSubstr("| `" + setting.name + "` | " + value + " | " +
                                  (setting.enforced ? "always: " : "") + setting.why + " |"));
  }
}

std::atomic<int> expired{0};
void CountExpired(const char*, int64_t) { ++expired; }

TEST(CallGuard, OnlyACallThatDoesNotComeBackExpires) {
  expired = 0;
  auto guard = CallGuard::Start(CountExpired);
  ASSERT_TRUE(guard.ok());
  // Many short ones, together longer than one may take.
  const Deadline end = Deadline::After(1500);
  while (!end.passed()) const auto armed = (*guard)->Arm("short", 1000);
  EXPECT_EQ(expired, 0);
  const auto armed = (*guard)->Arm("long", 2 * CallGuard::kTickMs);
  const Deadline bound = Deadline::After(60'000);
  while (expired == 0 && !bound.passed()) std::this_thread::yield();
  EXPECT_GE(expired, 1);
}

TEST(CallGuardDeathTest, TheProcessEndsWithItsOwnCode) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        auto guard = CallGuard::Start();
        const auto armed = (*guard)->Arm("ncclCommAbort", 100);
        std::this_thread::sleep_for(std::chrono::seconds(60));
      },
      testing::ExitedWithCode(24), "ncclCommAbort did not return within 100 ms");
}

}  // namespace
}  // namespace holdfast
