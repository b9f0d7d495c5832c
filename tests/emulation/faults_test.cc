// The language of faults.h.
#include "tests/emulation/faults.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/emulation/cuda_testing.h"

namespace holdfast::emulation {
namespace {

int Kind(const char* point, int rank = -1) { return ReachFaultPoint(point, rank).kind; }

class FaultLanguage : public testing::Test {
 protected:
  ~FaultLanguage() override { (void)SetFaults(""); }
};

TEST_F(FaultLanguage, WhatIsNotUnderstoodIsRefused) {
  for (const char* bad :
       {"cuda.alloc", "cuda.nothing.error", "cuda.alloc.explode", "cuda.alloc.error:x",
        "cuda.alloc.error=", "cuda.alloc.error#1", "nccl.init.sticky", "nccl.init.hang:2:3"}) {
    const absl::Status status = SetFaults(bad);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_NE(std::string(status.message()).find(bad), std::string::npos) << status;
  }
}

TEST_F(FaultLanguage, CountsAndFiresOnceOrFromThenOn) {
  ASSERT_TRUE(SetFaults(" cuda.alloc.error:2=46 ; cuda.copy.error:2+ ").ok());
  EXPECT_EQ(Kind("cuda.alloc"), FaultAction::kNone);
  const FaultAction second = ReachFaultPoint("cuda.alloc");
  EXPECT_EQ(second.kind, FaultAction::kError);
  EXPECT_EQ(second.code, 46);
  EXPECT_EQ(Kind("cuda.alloc"), FaultAction::kNone);
  EXPECT_EQ(Kind("cuda.copy"), FaultAction::kNone);
  EXPECT_EQ(Kind("cuda.copy"), FaultAction::kError);
  EXPECT_EQ(Kind("cuda.copy"), FaultAction::kError);
}

TEST_F(FaultLanguage, ARankIsMeant) {
  ASSERT_TRUE(SetFaults("nccl.collective.hang:2#1").ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Kind("nccl.collective", 0), FaultAction::kNone);
  EXPECT_EQ(Kind("nccl.collective", 1), FaultAction::kNone);
  EXPECT_EQ(Kind("nccl.collective", 1), FaultAction::kHang);
  EXPECT_EQ(Kind("nccl.collective", 1), FaultAction::kNone);
}

TEST_F(FaultLanguage, AFileArmsItForOneProcess) {
  const std::string flag = testing::TempDir() + "fault_flag_" + std::to_string(getpid());
  ASSERT_TRUE(SetFaults("nccl.abort.hang@" + flag).ok());
  EXPECT_EQ(Kind("nccl.abort", 0), FaultAction::kNone) << "not armed yet";
  std::ofstream(flag) << "x";
  EXPECT_EQ(Kind("nccl.abort", 0), FaultAction::kHang);
  EXPECT_FALSE(std::filesystem::exists(flag));
  std::ofstream(flag) << "x";
  EXPECT_EQ(Kind("nccl.abort", 0), FaultAction::kNone) << "fires once in a process";
  std::filesystem::remove(flag);
}

TEST_F(FaultLanguage, KillIsAKill) {
  const int status = RunChild({{"HOLDFAST_EMU_FAULT", "cuda.alloc.kill:2"}}, "Child.Killed");
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}
TEST(Child, Killed) {
  if (!IsChild()) return;
  EXPECT_EQ(Kind("cuda.alloc"), FaultAction::kNone);
  (void)ReachFaultPoint("cuda.alloc");
  FAIL() << "alive";
}

TEST_F(FaultLanguage, ABadEnvironmentEndsTheProcess) {
  const int status = RunChild({{"HOLDFAST_EMU_FAULT", "cuda.alloc.kil"}}, "Child.Killed");
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGABRT);
}

}  // namespace
}  // namespace holdfast::emulation
