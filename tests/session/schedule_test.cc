#include "runtime/session/schedule.h"

#include "gtest/gtest.h"

namespace holdfast {
namespace {

Config Make(const std::string& schedule) {
  Config c;
  c.learning_rate = 1e-3;
  c.min_learning_rate = 1e-4;
  c.warmup_steps = 10;
  c.steps = 110;
  c.lr_schedule = schedule;
  return c;
}

TEST(Schedule, WarmUpIsLinearFromTheFirstStep) {
  const Config c = Make("cosine");
  EXPECT_DOUBLE_EQ(LearningRate(c, 1), 1e-4);
  EXPECT_DOUBLE_EQ(LearningRate(c, 5), 5e-4);
  EXPECT_DOUBLE_EQ(LearningRate(c, 10), 1e-3);
}

TEST(Schedule, CosineEndsAtTheMinimum) {
  const Config c = Make("cosine");
  EXPECT_NEAR(LearningRate(c, 60), 5.5e-4, 1e-12);
  EXPECT_NEAR(LearningRate(c, 110), 1e-4, 1e-12);
  EXPECT_NEAR(LearningRate(c, 500), 1e-4, 1e-12);
  for (int step = 11; step <= 110; ++step) {
    EXPECT_LT(LearningRate(c, step), LearningRate(c, step - 1));
  }
}

TEST(Schedule, LinearAndConstant) {
  EXPECT_NEAR(LearningRate(Make("linear"), 60), 5.5e-4, 1e-12);
  EXPECT_NEAR(LearningRate(Make("linear"), 110), 1e-4, 1e-12);
  EXPECT_DOUBLE_EQ(LearningRate(Make("constant"), 99), 1e-3);
}

TEST(Schedule, WithoutWarmUpAndWithWarmUpToTheEnd) {
  Config c = Make("linear");
  c.warmup_steps = 0;
  EXPECT_GT(LearningRate(c, 1), LearningRate(c, 2));
  c.warmup_steps = c.steps;
  EXPECT_DOUBLE_EQ(LearningRate(c, c.steps), 1e-3);
}

}  // namespace
}  // namespace holdfast
