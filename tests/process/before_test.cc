// Before a run, and small runs: the dry run leaves everything as it is, limits and hints do what
// they say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/base/text.h"
#include "tests/process/train_run.h"

namespace holdfast::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

CommandResult DryRun(const Flags& more, const std::map<std::string, std::string>& env = {}) {
  Flags flags = BaseFlags();
  for (const auto& [key, value] : more) flags[key] = value;
  std::vector<std::string> args = {"run", "--dry-run"};
  for (const auto& [key, value] : flags) {
    args.push_back("--" + key);
    if (!value.empty()) args.push_back(value);
  }
  return Command(args, env);
}

// Every file below `dir` with its size and the time of its last change.
std::map<std::string, std::pair<uintmax_t, fs::file_time_type>> Snapshot(const std::string& dir) {
  std::map<std::string, std::pair<uintmax_t, fs::file_time_type>> files;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    files[entry.path().string()] = {entry.is_regular_file() ? entry.file_size() : 0,
                                    entry.last_write_time()};
  }
  return files;
}

TEST(Before, ADryRunSaysWhatARunWouldTakeAndLeavesNothing) {
  const std::string dir = FreshFolder("dry");
  chaos::Residue residue;
  const CommandResult text =
      DryRun({{"dir", dir}, {"price-per-hour", "2"}}, {{"RANK", "0"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(text.code, 0) << text.output;
  for (const char* part :
       {"nothing was changed", "a new run", "training tokens", "each worker", "fixed point",
        "speed-up", "cheapest", "fastest", "64", "same bits", "Checkpoints", "WORLD_SIZE"}) {
    EXPECT_THAT(text.output, HasSubstr(part));
  }
  EXPECT_THAT(text.output, Not(HasSubstr("DIFFERENT")));
  EXPECT_FALSE(fs::exists(dir));
  const CommandResult json = DryRun({{"dir", dir}, {"json", ""}});
  const auto parsed = nlohmann::json::parse(json.output, nullptr, false);
  ASSERT_TRUE(parsed.is_object()) << json.output;
  EXPECT_EQ(parsed["worlds"].size(), 6u);
  EXPECT_GT(parsed["time"]["step_ms"], 0);
  EXPECT_EQ(parsed["determinism"]["threads"], "");
  EXPECT_FALSE(fs::exists(dir));
}

TEST(Before, ADryRunOnAnExistingRunChangesNothing) {
  const std::string dir = FreshFolder("there");
  {
    TrainRun run({.dir = dir, .flags = {{"steps", "12"}}});
    ASSERT_EQ(run.Wait(), 0) << run.Output();
  }
  const auto before = Snapshot(dir);
  const CommandResult good = DryRun({{"dir", dir}});
  EXPECT_EQ(good.code, 0) << good.output;
  EXPECT_THAT(good.output, HasSubstr("continues the run that has reached step 12"));
  const CommandResult other = DryRun({{"dir", dir}, {"seed", "9"}});
  EXPECT_EQ(other.code, static_cast<int>(ExitCode::kRefused)) << other.output;
  EXPECT_THAT(other.output, HasSubstr("seed was 7 and is now 9"));
  EXPECT_EQ(DryRun({{"dir", dir}, {"fresh", ""}}).code, 0);
  EXPECT_EQ(Snapshot(dir), before);
}

TEST(Before, ADryRunEndsWithTheCodeOfTheRun) {
  const CommandResult data = DryRun({{"data", "/no/such/file.txt"}});
  EXPECT_EQ(data.code, static_cast<int>(ExitCode::kData)) << data.output;
  EXPECT_THAT(data.output, HasSubstr("/no/such/file.txt"));
  const CommandResult big = DryRun({{"layers", "1024"}, {"embed", "65536"}, {"heads", "256"}});
  EXPECT_EQ(big.code, static_cast<int>(ExitCode::kUsage)) << big.output;
  EXPECT_THAT(big.output, AllOf(HasSubstr("does not fit"), HasSubstr("--embed")));
  EXPECT_EQ(Command({"run", "--data", TextFile(), "--json"}).code,
            static_cast<int>(ExitCode::kUsage));
}

TEST(Before, ADryRunHoldsNothingInRedis) {
  TestRedis redis;
  const Flags flags = {{"redis", redis.url()}, {"run", "dry"}, {"dir", FreshFolder("none")}};
  const CommandResult good = DryRun(flags, redis.env());
  EXPECT_EQ(good.code, 0) << good.output;
  EXPECT_EQ(redis.Cli({"dbsize"}), "0\n");
  const CommandResult wrong = DryRun(flags, {{"HOLDFAST_REDIS_PASSWORD", "wrong-secret-word"}});
  EXPECT_EQ(wrong.code, static_cast<int>(ExitCode::kStore)) << wrong.output;
  EXPECT_THAT(wrong.output, AllOf(HasSubstr("password"), Not(HasSubstr("wrong-secret-word"))));
}

// Two micro-batches again and again: their loss falls far below what the text allows, in the same
// bits for any number of workers.
TEST(Before, OverfitLearnsItsFewMicroBatchesByHeart) {
  const Flags flags = {{"overfit", "2"}, {"learning-rate", "1e-2"}, {"min-learning-rate", "1e-2"}};
  Flags three = flags;
  three["workers"] = "3";
  TrainRun one({.flags = flags});
  EXPECT_EQ(one.Wait(), 0) << one.Output();
  TrainRun other({.flags = three, .env = {{"RANK", "1"}, {"WORLD_SIZE", "3"}}});
  EXPECT_EQ(other.Wait(), 0) << other.Output();
  const auto a = chaos::ReadSteps(one.dir()), b = chaos::ReadSteps(other.dir());
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_TRUE(chaos::JudgeSteps(*a, *b, {}).empty());
  EXPECT_LT(a->lines.back().loss, 0.5 * Reference().lines.back().loss);
  EXPECT_THAT(other.Output(), HasSubstr("RANK, WORLD_SIZE of another launcher"));
}

// The time is over in the middle: saved at a step boundary, and the same command goes on.
TEST(Before, MaxTimeSavesAndStops) {
  const std::string dir = FreshFolder("time");
  {
    TrainRun run({.dir = dir,
                  .flags = {{"max-time", "12s"}, {"workers", "2"}},
                  .failpoints = "step.begin=sleep(250)"});
    EXPECT_EQ(run.Wait(), static_cast<int>(ExitCode::kTimeUp)) << run.Output();
    EXPECT_THAT(run.Output(), HasSubstr("--max-time"));
    run.ExpectNoResidue();
  }
  const auto steps = chaos::ReadSteps(dir);
  ASSERT_TRUE(steps.ok());
  EXPECT_LT(steps->last_step(), kSteps);
  TrainRun run({.dir = dir, .flags = {{"max-time", "10m"}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  EXPECT_THAT(run.Output(), HasSubstr(Cat("checkpoint of step ", steps->last_step())));
  ExpectSameBits(dir);
}

}  // namespace
}  // namespace holdfast::testing
