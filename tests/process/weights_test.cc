// What leaves a run and enters one: sampling, export, --init-from, and the checkpoint that is kept
// because it is the best.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/base/text.h"
#include "tests/process/train_run.h"

namespace holdfast::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
namespace fs = std::filesystem;

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The bytes behind the header of a safetensors file.
std::string TensorBytes(const std::string& path) {
  const std::string bytes = Contents(path);
  uint64_t length = 0;
  if (bytes.size() < 8) return "";
  std::memcpy(&length, bytes.data(), 8);
  return length + 8 <= bytes.size() ? bytes.substr(length + 8) : "";
}

// A finished run, made once.
const std::string& FinishedRun() {
  static const std::string dir = [] {
    TrainRun run({.dir = FreshFolder("weights"), .flags = {{"workers", "2"}}});
    EXPECT_EQ(run.Wait(), 0) << run.Output();
    return run.dir();
  }();
  return dir;
}

CommandResult Sample(const std::string& dir, std::vector<std::string> more) {
  std::vector<std::string> args = {"sample", "--dir", dir};
  args.insert(args.end(), more.begin(), more.end());
  return Command(args);
}

CommandResult Export(const std::string& dir, const std::string& out,
                     std::vector<std::string> more = {}) {
  std::vector<std::string> args = {"checkpoint", "export", "--dir",    dir,
                                   "--out",      out,      "--format", "safetensors"};
  args.insert(args.end(), more.begin(), more.end());
  return Command(args);
}

TEST(Weights, TheSameSeedSaysTheSame) {
  const std::string& dir = FinishedRun();
  const CommandResult one = Sample(dir, {"--prompt", "the ship ", "--tokens", "60", "--seed", "5"});
  ASSERT_EQ(one.code, 0) << one.output;
  EXPECT_THAT(one.output, HasSubstr("from the checkpoint of step 60"));
  EXPECT_THAT(one.output, HasSubstr("the ship "));
  EXPECT_EQ(Sample(dir, {"--prompt", "the ship ", "--tokens", "60", "--seed", "5"}).output,
            one.output);
  EXPECT_NE(Sample(dir, {"--prompt", "the ship ", "--tokens", "60", "--seed", "6"}).output,
            one.output);
  // Greedy: no seed moves it; longer than the context, so that the window slides.
  const std::string greedy = Sample(dir, {"--temperature", "0", "--tokens", "40"}).output;
  EXPECT_EQ(Sample(dir, {"--temperature", "0", "--tokens", "40", "--seed", "9"}).output, greedy);
  EXPECT_EQ(Sample(dir, {"--top-k", "1", "--tokens", "40"}).output, greedy);
  EXPECT_NE(Sample(dir, {"--step", "40", "--tokens", "60"}).output,
            Sample(dir, {"--tokens", "60"}).output);
}

TEST(Weights, SamplingAndExportBesideALiveRunDisturbNothing) {
  TrainRun run({.flags = {{"workers", "2"}}, .failpoints = "step.begin=sleep(60)"});
  ASSERT_TRUE(run.WaitForStep(22));
  const CommandResult sample = Sample(run.dir(), {"--tokens", "30"});
  EXPECT_EQ(sample.code, 0) << sample.output;
  const std::string out = FreshFolder("live") + ".safetensors";
  EXPECT_EQ(Export(run.dir(), out, {"--step", "20"}).code, 0);
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(run.dir());
  run.ExpectNoResidue();
  // The same step of another run: the same weights.
  const std::string again = FreshFolder("again") + ".safetensors";
  EXPECT_EQ(Export(run.dir(), again, {"--step", "60"}).code, 0);
  const std::string other = FreshFolder("other") + ".safetensors";
  EXPECT_EQ(Export(FinishedRun(), other, {"--step", "60"}).code, 0);
  EXPECT_FALSE(TensorBytes(again).empty());
  EXPECT_EQ(TensorBytes(again), TensorBytes(other));
  EXPECT_NE(TensorBytes(again), TensorBytes(out));
}

TEST(Weights, ErrorsTeach) {
  const std::string dir = FreshFolder("early");
  fs::create_directories(dir);
  EXPECT_EQ(Sample(dir, {}).code, static_cast<int>(ExitCode::kUsage));
  fs::copy(FinishedRun() + "/config.toml", dir + "/config.toml");
  const CommandResult early = Sample(dir, {});
  EXPECT_EQ(early.code, static_cast<int>(ExitCode::kCheckpoint)) << early.output;
  EXPECT_THAT(early.output, HasSubstr("saves next at step 10"));
  const CommandResult step = Sample(FinishedRun(), {"--step", "33"});
  EXPECT_EQ(step.code, static_cast<int>(ExitCode::kCheckpoint));
  EXPECT_THAT(step.output, HasSubstr("no checkpoint of step 33 is here; there are those of step"));
  EXPECT_EQ(Sample(FinishedRun(), {"--best", "--step", "60"}).code,
            static_cast<int>(ExitCode::kUsage));
  const CommandResult nowhere = Export(FinishedRun(), "/nonexistent/file");
  EXPECT_EQ(nowhere.code, static_cast<int>(ExitCode::kFailed));
  EXPECT_THAT(nowhere.output, HasSubstr("/nonexistent/file"));
}

// Weights that are exported and taken up again are the same bits, whoever takes them up.
TEST(Weights, AnExportedCheckpointBeginsANewRun) {
  const std::string file = FreshFolder("init") + ".safetensors";
  ASSERT_EQ(Export(FinishedRun(), file).code, 0);
  const Flags flags = {{"init-from", file}, {"steps", "12"}, {"workers", "1"}};
  TrainRun one({.flags = flags});
  EXPECT_EQ(one.Wait(), 0) << one.Output();
  Flags killed_flags = flags;
  killed_flags["workers"] = "3";
  TrainRun three({.flags = killed_flags, .failpoints = "step.begin=sleep(40)"});
  three.Do({.kind = chaos::FaultKind::kKillWorker, .slot = 1, .at_step = 4});
  EXPECT_EQ(three.Wait(), 0) << three.Output();
  const auto a = chaos::ReadSteps(one.dir()), b = chaos::ReadSteps(three.dir());
  ASSERT_TRUE(a.ok() && b.ok());
  ASSERT_EQ(a->last_step(), 12);
  for (size_t i = 0; i < a->lines.size(); ++i)
    EXPECT_EQ(a->lines[i].digest, b->lines[i].digest) << i;
  // It goes on where the file was, not at the loss of random weights (ln 256 = 5.5).
  EXPECT_LT(a->lines[0].loss, 4.5);
  // A step at learning rate 0 leaves the file's weights, bit for bit.
  TrainRun still({.flags = {{"init-from", file},
                            {"steps", "1"},
                            {"learning-rate", "0"},
                            {"min-learning-rate", "0"}}});
  EXPECT_EQ(still.Wait(), 0) << still.Output();
  const std::string first = FreshFolder("first") + ".safetensors";
  const CommandResult exported = Export(still.dir(), first);
  ASSERT_EQ(exported.code, 0) << exported.output;
  EXPECT_EQ(TensorBytes(first), TensorBytes(file));

  // An existing run needs neither flag nor file; other contents are another run's.
  fs::rename(file, file + ".gone");
  TrainRun on({.dir = one.dir(), .flags = {{"steps", "14"}}});
  EXPECT_EQ(on.Wait(), 0) << on.Output();
  fs::copy(FinishedRun() + "/steps.jsonl", file);
  const CommandResult bad =
      Command({"run", "--dir", FreshFolder("bad"), "--data", TextFile(), "--init-from", file});
  EXPECT_EQ(bad.code, static_cast<int>(ExitCode::kData)) << bad.output;
  EXPECT_THAT(bad.output, HasSubstr("is no safetensors file"));
  fs::remove(file);
  ASSERT_EQ(Export(one.dir(), file).code, 0);
  TrainRun other({.dir = one.dir(), .flags = {{"steps", "16"}, {"init-from", file}}});
  EXPECT_EQ(other.Wait(), static_cast<int>(ExitCode::kRefused)) << other.Output();
  EXPECT_THAT(other.Output(), HasSubstr("init_digest"));
}

TEST(Weights, ShapesThatDoNotFitAreNamed) {
  const std::string file = FreshFolder("shapes") + ".safetensors";
  ASSERT_EQ(Export(FinishedRun(), file).code, 0);
  TrainRun run({.flags = {{"init-from", file}, {"context", "8"}}});
  EXPECT_EQ(run.Wait(), static_cast<int>(ExitCode::kData)) << run.Output();
  EXPECT_THAT(run.Output(), HasSubstr("wpe.weight is [16, 32] in the file and [8, 32] here"));
  // Before a run, too.
  Flags flags = BaseFlags();
  flags["dir"] = FreshFolder("dry");
  flags["init-from"] = file;
  flags["context"] = "8";
  std::vector<std::string> args = {"run", "--dry-run"};
  for (const auto& [name, value] : flags) args.insert(args.end(), {"--" + name, value});
  const CommandResult dry = Command(args);
  EXPECT_EQ(dry.code, static_cast<int>(ExitCode::kData)) << dry.output;
  EXPECT_THAT(dry.output, HasSubstr("wpe.weight is [16, 32] in the file and [8, 32] here"));
}

struct Eval {
  int64_t step = -1;
  double loss = std::numeric_limits<double>::infinity();
};

Eval SmallestEval(const std::string& dir) {
  Eval best;
  const auto events = chaos::ReadEvents(dir);
  if (!events.ok()) return best;
  for (const chaos::EventLine& event : *events) {
    if (event.kind != "eval") continue;
    const auto json = nlohmann::json::parse(event.line, nullptr, false);
    const double loss = json["loss"];
    if (loss < best.loss) best = {json["step"], loss};
  }
  return best;
}

// A learning rate that spoils the model again: the best evaluation is not the last, its step is no
// step of a regular checkpoint, and workers die on the way.
TEST(Weights, TheBestCheckpointStays) {
  const std::string dir = FreshFolder("best");
  const Flags flags = {{"workers", "3"},          {"keep", "1"},
                       {"eval-every", "7"},       {"learning-rate", "0.3"},
                       {"lr-schedule", "linear"}, {"warmup-steps", "40"}};
  {
    TrainRun run({.dir = dir, .flags = flags, .failpoints = "step.begin=sleep(20)"});
    run.Do({.kind = chaos::FaultKind::kKillWorker, .slot = 0, .at_step = 15});
    run.Do({.kind = chaos::FaultKind::kKillAll, .at_step = 47});
    EXPECT_EQ(run.WaitText(), "signal 9 (Killed)");
  }
  Flags resumed = flags;
  resumed["workers"] = "2";
  TrainRun run({.dir = dir, .flags = resumed});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  const Eval smallest = SmallestEval(dir);
  ASSERT_GT(smallest.step, 0);
  ASSERT_LT(smallest.step, 47) << "the settings of this test do not spoil the model any more";
  ASSERT_NE(smallest.step % 10, 0);

  const CommandResult list = Command({"checkpoint", "list", "--json", "--dir", dir});
  auto json = nlohmann::json::parse(list.output, nullptr, false);
  ASSERT_TRUE(json.is_object()) << list.output;
  // What the third slot, which has no worker any more, had not pruned when it was killed.
  auto& all = json["checkpoints"];
  for (size_t i = all.size(); i-- > 0;) {
    if (!all[i]["complete"]) all.erase(i);
  }
  EXPECT_EQ(json["best"]["step"], smallest.step) << list.output;
  EXPECT_EQ(json["best"]["eval_loss"], smallest.loss);
  ASSERT_EQ(json["checkpoints"].size(), 2u) << "the newest and the best: " << list.output;
  EXPECT_EQ(json["checkpoints"][0]["step"], smallest.step);
  EXPECT_EQ(json["checkpoints"][0]["best"], true);
  EXPECT_EQ(json["checkpoints"][0]["complete"], true);
  EXPECT_EQ(json["checkpoints"][1]["step"], kSteps);
  EXPECT_EQ(Command({"checkpoint", "verify", "--dir", dir}).code, 0);
  const CommandResult sample = Sample(dir, {"--best", "--tokens", "20"});
  EXPECT_EQ(sample.code, 0) << sample.output;
  EXPECT_THAT(sample.output, HasSubstr(Cat("checkpoint of step ", smallest.step)));
}

// The save of a candidate breaks off with its generation: it is done again, of the same step.
TEST(Weights, AWorkerDiesWhileTheBestStateIsSaved) {
  TrainRun run({.flags = {{"workers", "3"}, {"eval-every", "7"}, {"keep", "1"}},
                .failpoints = "ckpt.begun=sleep(700)@7"});
  run.Do({.kind = chaos::FaultKind::kKillWorker, .slot = 1, .at_step = 7});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(run.dir());
  EXPECT_EQ(CountEventLines(run.dir(), "the checkpoint of step 7 is kept"), 1) << run.Output();
  run.ExpectNoResidue();
  const Eval smallest = SmallestEval(run.dir());
  const CommandResult list = Command({"checkpoint", "list", "--json", "--dir", run.dir()});
  const auto json = nlohmann::json::parse(list.output, nullptr, false);
  ASSERT_TRUE(json.is_object()) << list.output;
  EXPECT_EQ(json["best"]["step"], smallest.step) << list.output;
}

}  // namespace
}  // namespace holdfast::testing
