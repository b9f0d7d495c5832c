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

// Raising `steps` moves no step's rate once the end of the decay is fixed.
TEST(Schedule, TheDecayHasAnEndOfItsOwn) {
  Config c = Make("cosine");
  c.decay_steps = 110;
  Config longer = c;
  longer.steps = 5000;
  for (int step = 1; step <= 200; ++step) {
    EXPECT_EQ(LearningRate(c, step), LearningRate(longer, step)) << step;
    EXPECT_EQ(LearningRate(c, step), LearningRate(Make("cosine"), step)) << step;
  }
  EXPECT_NEAR(LearningRate(longer, 2000), 1e-4, 1e-12);
}

TEST(Schedule, EveryStepHasTheScheduleOfItsBranch) {
  const Config c = Make("constant");
  Config later = c;
  later.learning_rate = 5e-4;
  Config last = c;
  last.learning_rate = 2e-4;
  const rendezvous::Lineage lineage = {{0, 0, c.ScheduleText()}, {1, 60, later.ScheduleText()}};
  const auto schedules = Schedules::Of(last, lineage);
  ASSERT_TRUE(schedules.ok()) << schedules.status();
  EXPECT_DOUBLE_EQ(schedules->LearningRate(60), 1e-3);
  EXPECT_DOUBLE_EQ(schedules->LearningRate(61), 5e-4);
  // A later branch that forks earlier: what lies between belongs to it.
  rendezvous::Lineage more = lineage;
  more.push_back({2, 40, last.ScheduleText()});
  const auto three = Schedules::Of(last, more);
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_DOUBLE_EQ(three->LearningRate(40), 1e-3);
  EXPECT_DOUBLE_EQ(three->LearningRate(41), 2e-4);
  EXPECT_DOUBLE_EQ(three->LearningRate(61), 2e-4);
  more.back().schedule = "learning_rate = fast\n";
  EXPECT_FALSE(Schedules::Of(last, more).ok());
}

}  // namespace
}  // namespace holdfast
