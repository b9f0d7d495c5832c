// The promise without faults: the number of workers and of threads moves no bit.
#include <gtest/gtest.h>

#include "runtime/base/text.h"
#include "tests/process/train_run.h"

namespace holdfast::testing {
namespace {

TEST(SameBits, TheReferenceLearns) {
  ASSERT_EQ(Reference().last_step(), kSteps);
  EXPECT_LT(Reference().lines.back().loss, 0.85 * Reference().lines.front().loss);
}

class Worlds : public ::testing::TestWithParam<int> {};

TEST_P(Worlds, EqualTheReference) {
  TrainRun run({.flags = {{"workers", Cat(GetParam())}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(run.dir());
  run.ExpectNoResidue();
  const auto steps = chaos::ReadSteps(run.dir());
  ASSERT_TRUE(steps.ok() && !steps->lines.empty());
  EXPECT_EQ(steps->lines.back().world_size, GetParam());
  // Nobody asked for it: on one host it is shared memory.
  EXPECT_EQ(CountEventLines(run.dir(), "over shm") > 0, GetParam() > 1);
  EXPECT_EQ(CountEventLines(run.dir(), "over tcp"), 0);
}
INSTANTIATE_TEST_SUITE_P(SameBits, Worlds, ::testing::Values(1, 2, 3, 4));

TEST(SameBits, OverTcpToo) {
  TrainRun run({.flags = {{"workers", "3"}, {"transport", "tcp"}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(run.dir());
  run.ExpectNoResidue();
  EXPECT_GT(CountEventLines(run.dir(), "over tcp"), 0);
  EXPECT_EQ(CountEventLines(run.dir(), "over shm"), 0);
}

class Threads : public ::testing::TestWithParam<int> {};

TEST_P(Threads, EqualTheReference) {
  TrainRun run({.flags = {{"workers", GetParam() == 7 ? "2" : "1"}, {"threads", Cat(GetParam())}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(run.dir());
  run.ExpectNoResidue();
}
INSTANTIATE_TEST_SUITE_P(SameBits, Threads, ::testing::Values(2, 3, 7));

// Six micro-batches: two of eight workers have nothing to do and wait as spares.
TEST(SameBits, MoreWorkersThanMicroBatches) {
  TrainRun run({.flags = {{"workers", "8"}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(run.dir());
  run.ExpectNoResidue();
  EXPECT_NE(run.Output().find("spare"), std::string::npos) << run.Output();
  const auto steps = chaos::ReadSteps(run.dir());
  ASSERT_TRUE(steps.ok() && !steps->lines.empty());
  EXPECT_LE(steps->lines.back().world_size, 6);
}

// The canary of these tests: another seed must not pass as the same bits.
TEST(SameBits, AnotherSeedIsSeen) {
  TrainRun run({.flags = {{"seed", "8"}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  const auto steps = chaos::ReadSteps(run.dir());
  ASSERT_TRUE(steps.ok());
  EXPECT_FALSE(chaos::JudgeSteps(Reference(), *steps, {}).empty());
}

}  // namespace
}  // namespace holdfast::testing
