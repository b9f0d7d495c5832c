#include "runtime/session/time_ledger.h"

#include "gtest/gtest.h"

namespace holdfast {
namespace {

constexpr TimeKind kKinds[] = {TimeKind::kCompute, TimeKind::kReduce, TimeKind::kWait,
                               TimeKind::kCheckpoint, TimeKind::kLost};

double Sum(const TimeLedger& ledger) {
  double sum = 0;
  for (const TimeKind kind : kKinds) sum += ledger.seconds(kind);
  return sum;
}

void Spend(int64_t us) {
  for (const int64_t until = BootUs() + us; BootUs() < until;) {
  }
}

// Read one after the other while the clock runs on.
constexpr double kReading = 0.5;

TEST(TimeLedger, BucketsAddUpToTheWallTime) {
  TimeLedger ledger;
  for (int i = 0; i < 20; ++i) {
    ledger.Switch(kKinds[i % 5]);
    Spend(200);
  }
  const double before = ledger.wall_s();
  const double sum = Sum(ledger);
  EXPECT_GE(sum, before - 1e-9);
  EXPECT_LE(sum, before + kReading);
  for (const TimeKind kind : kKinds) EXPECT_GE(ledger.seconds(kind), 0.00079);
}

TEST(TimeLedger, TheOpenStretchCounts) {
  TimeLedger ledger;
  ledger.Switch(TimeKind::kReduce);
  Spend(2000);
  EXPECT_GE(ledger.seconds(TimeKind::kReduce), 0.0019);
  EXPECT_EQ(ledger.seconds(TimeKind::kCompute), 0);
}

TEST(TimeLedger, ScopesGoBackToWhatItWas) {
  TimeLedger ledger;
  ledger.Switch(TimeKind::kCompute);
  {
    TimeScope scope(ledger, TimeKind::kCheckpoint);
    Spend(1000);
  }
  EXPECT_EQ(ledger.Switch(TimeKind::kWait), TimeKind::kCompute);
  EXPECT_GE(ledger.seconds(TimeKind::kCheckpoint), 0.0009);
}

TEST(TimeLedger, LostWorkIsBookedAnew) {
  TimeLedger ledger;
  ledger.Switch(TimeKind::kCompute);
  Spend(1000);
  ledger.Switch(TimeKind::kWait);
  const double kept = ledger.seconds(TimeKind::kCompute);
  const TimeLedger mark = ledger;
  ledger.Switch(TimeKind::kCompute);
  Spend(1000);
  ledger.Switch(TimeKind::kLost);
  ledger.Rebook(mark, TimeKind::kCompute, TimeKind::kLost);
  EXPECT_DOUBLE_EQ(ledger.seconds(TimeKind::kCompute), kept);
  EXPECT_GE(ledger.seconds(TimeKind::kLost), 0.0009);
  EXPECT_LE(Sum(ledger), ledger.wall_s() + kReading);
}

}  // namespace
}  // namespace holdfast
