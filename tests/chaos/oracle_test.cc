// The judge must find every planted fault: a judge that passes everything would make all drills
// worthless.
#include "chaos/oracle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/digest.h"
#include "runtime/base/text.h"

namespace holdfast::chaos {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string Folder() {
  const std::string dir = Cat(::testing::TempDir(), "oracle_", Hex64(RandomNonce()));
  std::filesystem::create_directories(dir);
  return dir;
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

StepLog Good(int64_t steps = 5) {
  StepLog log;
  for (int64_t step = 1; step <= steps; ++step) {
    log.lines.push_back({step, 3.0 - 0.1 * static_cast<double>(step), Hex64(Mix64(step)),
                         Hex64(Mix64(step + 1000)), 1, 1});
  }
  return log;
}

TEST(Oracle, EqualRunsPass) {
  StepLog faulted = Good();
  for (StepLine& line : faulted.lines) line.world_size = line.step < 3 ? 4 : 3;
  for (StepLine& line : faulted.lines) line.generation = line.step < 3 ? 1 : 2;
  EXPECT_THAT(JudgeSteps(Good(), faulted, {}), IsEmpty());
}

TEST(Oracle, FindsAnotherDigest) {
  StepLog log = Good();
  log.lines[2].digest[5] ^= 1;
  EXPECT_THAT(JudgeSteps(Good(), log, {}), ElementsAre(HasSubstr("step 3: digest")));
}

TEST(Oracle, FindsOtherSamplesAndLosses) {
  StepLog log = Good();
  log.lines[1].samples[0] ^= 1;
  log.lines[4].loss += 1e-12;
  EXPECT_THAT(JudgeSteps(Good(), log, {}),
              ElementsAre(HasSubstr("step 2: samples"), HasSubstr("step 5: loss")));
}

TEST(Oracle, FindsGapsAndShortRuns) {
  StepLog log = Good();
  log.lines.erase(log.lines.begin() + 2);
  log.lines.pop_back();
  EXPECT_THAT(JudgeSteps(Good(), log, {}),
              ElementsAre(HasSubstr("steps 3 to 3 are missing before step 4"),
                          HasSubstr("ends at step 4 instead of 5")));
}

TEST(Oracle, FindsStepsTakenTwice) {
  StepLog log = Good();
  log.lines.insert(log.lines.begin() + 3, log.lines[2]);
  EXPECT_THAT(JudgeSteps(Good(), log, {}), ElementsAre(HasSubstr("step 3 is there 2 times")));
}

TEST(Oracle, FindsGenerationsThatGoBackOrChange) {
  StepLog log = Good();
  log.lines[2].generation = 4;
  log.lines[4].world_size = 2;
  EXPECT_THAT(JudgeSteps(Good(), log, {}),
              ElementsAre(HasSubstr("step 4: generation 1 after generation 4"),
                          HasSubstr("step 5: generation 1 after generation 4"),
                          HasSubstr("step 5: generation 1 had world size 1 and has 2")));
}

TEST(Oracle, ALateJoinerCoversItsPart) {
  StepLog log = Good();
  log.lines.erase(log.lines.begin(), log.lines.begin() + 2);
  EXPECT_THAT(JudgeSteps(Good(), log, {.first_step = 3}), IsEmpty());
  EXPECT_THAT(JudgeSteps(Good(), log, {}), Not(IsEmpty()));
}

TEST(Oracle, ReadsStepsAndCutsATornTail) {
  const std::string dir = Folder();
  const std::string line =
      R"({"step":1,"loss":2.5,"state_digest":"00000000000000ff","world_size":2,"generation":1,"samples":"0000000000000001"})";
  Write(dir + "/steps.jsonl", line + "\n" + line.substr(0, 20));
  const auto log = ReadSteps(dir);
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_TRUE(log->torn);
  ASSERT_EQ(log->lines.size(), 1u);
  EXPECT_EQ(log->lines[0].digest, "00000000000000ff");

  Write(dir + "/steps.jsonl", line.substr(0, 20) + "\n" + line + "\n");
  EXPECT_EQ(ReadSteps(dir).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReadSteps(dir + "/none").status().code(), absl::StatusCode::kNotFound);
}

std::string SummaryText(double lost) {
  return Cat(
      R"({"final_step":5,"state_digest":")", Hex64(Mix64(5)),
      R"(","train_loss":2.5,"eval_loss":null,"generations":2,)",
      R"("workers_lost":1,"steps_lost":0,"wall_s":10.0,"tokens_per_s":100.0,"parallel_efficiency":0.6,)",
      R"("recoveries":[{"cause":"SIGKILL","detect_ms":5,"regroup_ms":100,"first_step_ms":20}],)",
      R"("time":{"compute":6.0,"reduce":2.0,"wait":1.0,"checkpoint":0.5,"lost":)", lost, "}}");
}

TEST(Oracle, JudgesTheSummary) {
  const std::string dir = Folder();
  Write(dir + "/summary.json", SummaryText(0.5));
  auto summary = ReadSummary(dir);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->recoveries.at(0).cause, "SIGKILL");
  EXPECT_THAT(JudgeSummary(Good(), *summary), IsEmpty());

  Write(dir + "/summary.json", SummaryText(0.9));
  summary = ReadSummary(dir);
  ASSERT_TRUE(summary.ok());
  EXPECT_THAT(JudgeSummary(Good(), *summary),
              ElementsAre(HasSubstr("add up to 10.4 s, wall time 10 s")));
  summary->digest = Hex64(1);
  EXPECT_THAT(JudgeSummary(Good(), *summary), Contains(HasSubstr("state_digest")));

  Write(dir + "/summary.json", R"({"final_step":5})");
  EXPECT_EQ(ReadSummary(dir).status().code(), absl::StatusCode::kDataLoss);
}

TEST(Oracle, OneRosterPerGeneration) {
  const std::string dir = Folder();
  Write(dir + "/events.jsonl",
        "{\"event\":\"joined\",\"generation\":1,\"world_size\":4}\n"
        "{\"event\":\"joined\",\"generation\":2,\"world_size\":3}\n"
        "{\"event\":\"joined\",\"generation\":1,\"world_size\":3}\n");
  const auto events = ReadEvents(dir);
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_EQ(events->size(), 3u);
  EXPECT_THAT(JudgeEvents(*events), ElementsAre(HasSubstr("generation 1 has world sizes 4 and 3")));
}

}  // namespace
}  // namespace holdfast::chaos
