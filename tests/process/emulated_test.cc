// The whole program on the emulated GPU: the CUDA device, the kernels and the NCCL communicator as
// they are, on stand-ins of the libraries (tests/emulation). The promise is the same: whatever
// dies, the same bits. HOLDFAST_PROGRAM is the program that is linked with them.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>

#include "runtime/base/text.h"
#include "tests/process/train_run.h"

namespace holdfast::testing {
namespace {

using chaos::FaultKind;
using ::testing::TestParamInfo;

constexpr int64_t kEmulatedMs = 180'000;

// Every run of this file is on emulated GPUs, of which this machine has four.
class OnGpus : public ::testing::Environment {
 public:
  void SetUp() override {
    setenv("HOLDFAST_EMU_GPUS", "4", 1);
    AddToBaseFlags({{"device", "cuda"}});
  }
};
const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new OnGpus);

void ExpectGoodEnd(TrainRun& run) {
  EXPECT_EQ(run.Wait(kEmulatedMs), 0) << run.Output();
  ExpectSameBits(run.dir());
  run.ExpectNoResidue();
}

// A file that arms a fault for the first process that comes to its point.
std::string Armed() {
  const std::string path = FreshFolder("armed");
  std::ofstream(path) << "armed";
  return path;
}
bool Fired(const std::string& path) { return !std::ifstream(path).good(); }

// ---- Without a fault

TEST(Emulated, TheReferenceLearnsInBf16) {
  ASSERT_EQ(Reference().last_step(), kSteps);
  EXPECT_LT(Reference().lines.back().loss, 0.9 * Reference().lines.front().loss);
}

class Worlds : public ::testing::TestWithParam<int> {};
TEST_P(Worlds, HaveTheSameBits) {
  TrainRun run({.flags = {{"workers", Cat(GetParam())}}});
  ExpectGoodEnd(run);
  EXPECT_GT(CountEventLines(run.dir(), "over nccl"), 0) << run.Output();
}
INSTANTIATE_TEST_SUITE_P(Emulated, Worlds, ::testing::Values(2, 3));

TEST(Emulated, AutoTakesEveryGpu) {
  TrainRun run({.flags = {{"device", "auto"}, {"workers", "0"}, {"steps", "4"}}});
  EXPECT_EQ(run.Wait(kEmulatedMs), 0) << run.Output();
  EXPECT_NE(run.Output().find("device auto: cuda, 4 GPUs"), std::string::npos) << run.Output();
  const auto steps = chaos::ReadSteps(run.dir());
  ASSERT_TRUE(steps.ok() && !steps->lines.empty());
  EXPECT_EQ(steps->lines.back().world_size, 4);
}

// A run stays where it is, whatever the machine has got since.
TEST(Emulated, ARunOnTheCpuStaysThere) {
  TrainRun first({.flags = {{"device", "cpu"}, {"steps", "6"}}});
  ASSERT_EQ(first.Wait(), 0) << first.Output();
  TrainRun again({.dir = first.dir(), .flags = {{"device", "auto"}, {"steps", "9"}}});
  ASSERT_EQ(again.Wait(), 0) << again.Output();
  EXPECT_EQ(again.Output().find("cuda"), std::string::npos) << again.Output();
  std::ifstream config(first.dir() + "/config.toml");
  const std::string text{std::istreambuf_iterator<char>(config), {}};
  EXPECT_NE(text.find("device = \"cpu\""), std::string::npos) << text;
}

TEST(Emulated, MoreWorkersThanGpusAreRefused) {
  TrainRun run({.flags = {{"workers", "5"}}});
  EXPECT_EQ(run.Wait(), static_cast<int>(ExitCode::kUsage));
  EXPECT_NE(run.Output().find("this machine has 4 GPUs"), std::string::npos) << run.Output();
}

TEST(Emulated, WithoutADriverCudaIsRefusedAndAutoIsTheCpu) {
  const std::map<std::string, std::string> none = {{"HOLDFAST_EMU_DRIVER", "0"}};
  TrainRun cuda({.flags = {}, .env = none});
  EXPECT_EQ(cuda.Wait(), static_cast<int>(ExitCode::kUsage));
  EXPECT_NE(cuda.Output().find("driver"), std::string::npos) << cuda.Output();
  TrainRun automatic({.flags = {{"device", "auto"}, {"steps", "3"}}, .env = none});
  EXPECT_EQ(automatic.Wait(), 0) << automatic.Output();
  EXPECT_NE(automatic.Output().find("device auto: the CPU"), std::string::npos)
      << automatic.Output();
}

// ---- Deaths

TEST(Emulated, AKilledWorkerLeavesTheBitsAlone) {
  TrainRun run({.flags = {{"workers", "3"}}});
  run.Do({.kind = FaultKind::kKillWorker, .slot = 1, .at_step = 15});
  ExpectGoodEnd(run);
}

TEST(Emulated, AFrozenWorkerLeavesTheBitsAlone) {
  TrainRun run({.flags = {{"workers", "3"}}});
  run.Do({.kind = FaultKind::kStopWorker, .slot = 2, .at_step = 15});
  ExpectGoodEnd(run);
}

TEST(Emulated, AllKilledAndResumedWithAnotherWorldSize) {
  std::string dir;
  {
    TrainRun run({.flags = {{"workers", "3"}}});
    dir = run.dir();
    run.Do({.kind = FaultKind::kKillAll, .at_step = 25});
    run.WaitText(kEmulatedMs);
  }
  TrainRun again({.dir = dir, .flags = {{"workers", "2"}}});
  ExpectGoodEnd(again);
}

struct Point {
  const char* name;
  const char* fault;  // HOLDFAST_EMU_FAULT without the path
};

// One worker of three dies (or does what is worse) inside the library.
class AtThePoint : public ::testing::TestWithParam<Point> {};
TEST_P(AtThePoint, TheRunEndsInTheSameBits) {
  const std::string armed = Armed();
  TrainRun run({.flags = {{"workers", "3"}},
                .env = {{"HOLDFAST_EMU_FAULT", Cat(GetParam().fault, "@", armed)}}});
  ExpectGoodEnd(run);
  EXPECT_TRUE(Fired(armed)) << "inconclusive: the fault never fired\n" << run.Output();
}
INSTANTIATE_TEST_SUITE_P(
    Emulated, AtThePoint,
    ::testing::Values(Point{"KilledInInit", "nccl.init.kill"},
                      Point{"KilledInACollective", "nccl.collective.kill:200"},
                      Point{"HangsInACollective", "nccl.collective.hang:200"},
                      Point{"NetworkErrorOnOneRank", "nccl.collective.error:200"},
                      Point{"StickyErrorInAKernel", "cuda.launch.sticky:3000"},
                      Point{"FrozenInACollective", "nccl.collective.stop:200"}),
    [](const TestParamInfo<Point>& info) { return info.param.name; });

// A second fault meets what the survivors of a first one do.
class AfterALoss : public ::testing::TestWithParam<Point> {};
TEST_P(AfterALoss, TheRunEndsInTheSameBits) {
  const std::string armed = Armed();
  TrainRun run({.flags = {{"workers", "4"}},
                .env = {{"HOLDFAST_EMU_FAULT", Cat(GetParam().fault, "@", armed)}}});
  run.Do({.kind = FaultKind::kKillWorker, .slot = 1, .at_step = 10});
  ExpectGoodEnd(run);
  EXPECT_TRUE(Fired(armed)) << "inconclusive: the fault never fired\n" << run.Output();
}
INSTANTIATE_TEST_SUITE_P(Emulated, AfterALoss,
                         ::testing::Values(Point{"KilledInShrink", "nccl.shrink.kill"},
                                           Point{"KilledInAbort", "nccl.abort.kill"},
                                           Point{"AbortNeverReturns", "nccl.abort.hang"}),
                         [](const TestParamInfo<Point>& info) { return info.param.name; });

TEST(Emulated, KilledInTheStateTransfer) {
  TrainRun run({.flags = {{"workers", "3"}}, .failpoints = "transfer.piece=sleep(30)"});
  run.Do({.kind = FaultKind::kKillWorker, .slot = 1, .at_step = 10});
  run.Do({.kind = FaultKind::kKillWorker, .slot = 0, .at_step = 12});
  ExpectGoodEnd(run);
}

// Another machine's GPU asks to be taken in while a rank of this one dies.
TEST(Emulated, ARankIsLostWhileAnotherMachineJoins) {
  TestRedis redis;
  const Flags flags = {{"redis", redis.url()}, {"run", "join-and-loss"}};
  const auto with = [&](const std::string& workers, const std::string& gpus) {
    RunSpec spec{.flags = flags, .env = redis.env(), .failpoints = "step.begin=sleep(60)"};
    spec.flags["workers"] = workers;
    spec.env["CUDA_VISIBLE_DEVICES"] = gpus;
    return spec;
  };
  TrainRun first(with("2", "0,1"));
  ASSERT_TRUE(first.WaitForStep(8));
  TrainRun second(with("1", "2"));
  first.Do({.kind = FaultKind::kKillWorker, .slot = 1, .at_step = 12});
  EXPECT_EQ(first.Wait(kEmulatedMs), 0) << first.Output();
  EXPECT_EQ(second.Wait(kEmulatedMs), 0) << second.Output();
  ExpectSameBits(first.dir());
  const auto steps = chaos::ReadSteps(first.dir());
  ASSERT_TRUE(steps.ok() && !steps->lines.empty());
  EXPECT_EQ(steps->lines.back().world_size, 3) << "the other machine and the replacement are in";
}

// ---- Mixed fleets, precision

TEST(Emulated, ACpuWorkerDoesNotJoinARunOnGpus) {
  TestRedis redis;
  const Flags flags = {
      {"workers", "1"}, {"redis", redis.url()}, {"run", "mixed"}, {"precision", "fp32"}};
  TrainRun gpu({.flags = flags, .env = redis.env(), .failpoints = "step.begin=sleep(50)"});
  ASSERT_TRUE(gpu.WaitForStep(2));
  Flags of_cpu = flags;
  of_cpu["device"] = "cpu";
  TrainRun cpu({.flags = of_cpu, .env = redis.env()});
  EXPECT_EQ(cpu.Wait(), static_cast<int>(ExitCode::kRefused)) << cpu.Output();
  EXPECT_NE(cpu.Output().find("CPU"), std::string::npos) << "both classes are named";
  EXPECT_NE(cpu.Output().find("sm_"), std::string::npos) << cpu.Output();
  EXPECT_EQ(gpu.Wait(kEmulatedMs), 0) << gpu.Output();
}

TEST(Emulated, TheLossScaleSurvivesKillAndResume) {
  const Flags fp16 = {{"precision", "fp16"}};
  TrainRun whole({.flags = fp16});
  ASSERT_EQ(whole.Wait(kEmulatedMs), 0) << whole.Output();
  std::string dir;
  {
    TrainRun run({.flags = fp16});
    dir = run.dir();
    run.Do({.kind = FaultKind::kKillAll, .at_step = 25});
    run.WaitText(kEmulatedMs);
  }
  Flags two = fp16;
  two["workers"] = "2";
  TrainRun again({.dir = dir, .flags = two});
  ASSERT_EQ(again.Wait(kEmulatedMs), 0) << again.Output();
  const auto expected = chaos::ReadSteps(whole.dir()), got = chaos::ReadSteps(dir);
  ASSERT_TRUE(expected.ok() && got.ok());
  EXPECT_EQ(chaos::JudgeSteps(*expected, *got, {}), std::vector<std::string>());
}

}  // namespace
}  // namespace holdfast::testing
