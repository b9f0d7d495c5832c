// Lines of metrics.csv, and which rows a long run keeps.
#include "runtime/metrics/row.h"

#include <gtest/gtest.h>

#include "absl/strings/str_split.h"

namespace holdfast::metrics {
namespace {

TEST(Row, OneFieldForEachColumn) {
  Row row;
  row.step = 250;
  row.wall_s = 1'796'000'000.1234;
  row.loss = 2.25;
  row.gradient_norm = 0.875;
  row.learning_rate = 2e-5;
  row.tokens = 768;
  row.tokens_per_s = 41'234.56;
  row.flops_per_s = 4.37e10;
  row.step_s = 0.0186;
  row.world_size = 4;
  row.generation = 3;
  row.saved_step = 200;
  EXPECT_EQ(CsvLine(row),
            "250,1796000000.123,2.25,,0.875,2e-05,768,41234.6,43700000000,0.018600,4,3,200,0");
  row.eval_loss = 2.5;
  row.skipped = true;
  row.loss = NAN;
  row.saved_step = -1;
  EXPECT_EQ(CsvLine(row),
            "250,1796000000.123,,2.5,0.875,2e-05,768,41234.6,43700000000,0.018600,4,3,,1");
  const std::vector<std::string> names = absl::StrSplit(CsvHeader(), ','),
                                 values = absl::StrSplit(CsvLine(row), ',');
  EXPECT_EQ(names.size(), values.size());
}

TEST(Row, TheLossComesBackBitForBit) {
  Row row;
  row.loss = 1.0 / 3;
  const std::vector<std::string> values = absl::StrSplit(CsvLine(row), ',');
  EXPECT_EQ(std::stod(values[2]), 1.0 / 3);
}

TEST(Row, StepOfALine) {
  EXPECT_EQ(CsvStep("250,1.0,2"), 250);
  EXPECT_EQ(CsvStep(CsvHeader()), -1);
  EXPECT_EQ(CsvStep(""), -1);
  EXPECT_EQ(CsvStep("250"), -1);
  EXPECT_EQ(CsvStep("-3,1"), -1);
  EXPECT_EQ(CsvStep("99999999999999999999,1"), -1);
}

TEST(Row, FieldsByName) {
  Row row;
  row.step = 7;
  row.loss = 0.1;
  row.saved_step = 5;
  row.skipped = true;
  EXPECT_EQ(CsvField(CsvLine(row), "step"), 7);
  EXPECT_EQ(CsvField(CsvLine(row), "loss"), 0.1);
  EXPECT_EQ(CsvField(CsvLine(row), "skipped"), 1);
  EXPECT_TRUE(std::isnan(CsvField(CsvLine(row), "eval_loss")));
  EXPECT_TRUE(std::isnan(CsvField(CsvLine(row), "nothing")));
  EXPECT_TRUE(std::isnan(CsvField(CsvHeader(), "loss")));
  EXPECT_TRUE(std::isnan(CsvField("", "loss")));
  EXPECT_TRUE(std::isnan(CsvField("1,2", "loss")));
}

TEST(Row, ALongRunKeepsFewerAndFewer) {
  int64_t kept = 0;
  for (int64_t i = 0; i < 100'000; ++i) kept += KeepsRow(i);
  EXPECT_EQ(kept, 100'000);
  for (int64_t i = 100'000; i < 3'200'000; ++i) kept += KeepsRow(i);
  EXPECT_EQ(kept, 100'000 + 5 * 50'000);    // five doublings: 50,000 each
  EXPECT_TRUE(KeepsRow(int64_t{1} << 62));  // ends, and so does the search
}

}  // namespace
}  // namespace holdfast::metrics
