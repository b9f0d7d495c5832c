// The package as a user gets it: installed into a folder of its own, an example copied out of the
// tree and built against it, and then what every run is promised: the bits of the undisturbed run
// with one worker, after the SIGKILL of a worker and after a total loss. HOLDFAST_EXAMPLE names the
// example.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/base/text.h"
#include "tests/process/train_run.h"

namespace holdfast::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

std::string Example() {
  const char* name = std::getenv("HOLDFAST_EXAMPLE");
  return name != nullptr ? name : "spirals";
}

// Empty when the command ended with 0; else what it said.
std::string Failure(const std::vector<std::string>& args) {
  auto child =
      chaos::ChildProcess::Start({.args = args, .output_path = FreshFolder("build-output")});
  if (!child.ok()) return child.status().ToString();
  const auto end = (*child)->Wait(Deadline::After(600'000));
  if (end.ok() && end->exited && end->code == 0) return "";
  return Cat(args[0], " ", args[1], ": ", end.ok() ? end->Text() : end.status().ToString(), "\n",
             (*child)->Output());
}

std::string Contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Prefix() { return Cat(ScratchFolder(), "/prefix"); }

// Installs, copies, configures and builds once for all tests here.
class Installed : public ::testing::Environment {
 public:
  void SetUp() override {
    const std::string source = Cat(ScratchFolder(), "/", Example()), build = Cat(source, "/build");
    ASSERT_EQ(Failure({CMAKE_PROGRAM, "--install", BUILD_FOLDER, "--prefix", Prefix()}), "");
    fs::copy(fs::path(SOURCE_FOLDER) / "tests/own_model" / Example(), source);
    ASSERT_EQ(
        Failure({CMAKE_PROGRAM, "-S", source, "-B", build, Cat("-DCMAKE_PREFIX_PATH=", Prefix()),
                 "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_COMPILER=" CXX_PROGRAM,
                 "-DCMAKE_CXX_COMPILER_LAUNCHER=" CXX_LAUNCHER,
                 "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"}),
        "");
    ASSERT_EQ(Failure({CMAKE_PROGRAM, "--build", build}), "");
    setenv("HOLDFAST_PROGRAM", Cat(build, "/", Example()).c_str(), 1);
  }
};
[[maybe_unused]] ::testing::Environment* const installed =
    ::testing::AddGlobalTestEnvironment(new Installed());

std::string Slow() { return "step.begin=sleep(20)"; }

TEST(OwnModel, ThePackageNeedsNothingOfTheSourceTree) {
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(Prefix())) {
    const std::string kind = entry.path().extension().string();
    if (!entry.is_regular_file() || (kind != ".cmake" && kind != ".h")) continue;
    ++files;
    EXPECT_THAT(Contents(entry.path()), Not(HasSubstr(SOURCE_FOLDER))) << entry.path();
  }
  EXPECT_GT(files, 10);
  EXPECT_TRUE(fs::exists(Prefix() + "/bin/holdfast"));
}

TEST(OwnModel, Learns) {
  const chaos::StepLog& log = Reference();
  ASSERT_EQ(log.last_step(), kSteps);
  double first = 0, last = 0;
  for (const chaos::StepLine& line : log.lines) {
    ASSERT_TRUE(std::isfinite(line.loss)) << line.step;
    if (line.step <= 10) first += line.loss / 10;
    if (line.step > kSteps - 10) last += line.loss / 10;
  }
  EXPECT_LT(last, 0.9 * first);
}

TEST(OwnModel, TheSameBitsAfterAWorkerIsKilled) {
  TrainRun run({.flags = {{"workers", "3"}}, .failpoints = Slow()});
  run.Do({.kind = chaos::FaultKind::kKillWorker, .slot = 1, .at_step = 22});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(run.dir());
  run.ExpectNoResidue();
}

TEST(OwnModel, TheSameBitsAfterEverythingIsKilled) {
  const std::string dir = FreshFolder("killed");
  {
    TrainRun run({.dir = dir, .flags = {{"workers", "3"}}, .failpoints = Slow()});
    run.Do({.kind = chaos::FaultKind::kKillAll, .at_step = 37});
    EXPECT_EQ(run.WaitText(), "signal 9 (Killed)");
    run.ExpectNoResidue(true);
  }
  TrainRun run({.dir = dir, .flags = {{"workers", "2"}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(dir);
  run.ExpectNoResidue();
}

TEST(OwnModel, TheToolsKnowTheRun) {
  const std::string dir = FreshFolder("tools");
  TrainRun run({.dir = dir});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  EXPECT_EQ(Command({"checkpoint", "verify", "--dir", dir}).code, 0);
  const CommandResult exported = Command(
      {"checkpoint", "export", "--dir", dir, "--format", "safetensors", "--out", dir + "/weights"});
  EXPECT_EQ(exported.code, 0) << exported.output;
  const CommandResult sample = Command({"sample", "--dir", dir, "--prompt", "the ", "--seed", "3"});
  if (Example() == "next_byte") {
    EXPECT_EQ(sample.code, 0) << sample.output;
    EXPECT_GE(sample.output.size(), 200u);
  } else {
    EXPECT_EQ(sample.code, static_cast<int>(ExitCode::kFailed)) << sample.output;
    EXPECT_THAT(sample.output, HasSubstr("Implement Model::NextToken"));
  }
  EXPECT_THAT(Contents(dir + "/config.toml"), HasSubstr(Cat("model = \"", Example(), "\"")));
  const CommandResult other =
      Command({"run", "--dir", dir, "--data", TextFile(), "--set", "no-key=1"});
  EXPECT_EQ(other.code, static_cast<int>(ExitCode::kRefused)) << other.output;
}

TEST(OwnModel, AMisspeltOwnKeyIsNamed) {
  if (Example() != "next_byte") return;  // the first example has no keys of its own
  const CommandResult wrong =
      Command({"run", "--dir", FreshFolder("misspelt"), "--data", TextFile(), "--set", "widnow=4"});
  EXPECT_EQ(wrong.code, static_cast<int>(ExitCode::kData)) << wrong.output;
  EXPECT_THAT(wrong.output, HasSubstr("widnow"));
  EXPECT_THAT(wrong.output, HasSubstr("window"));
}

}  // namespace
}  // namespace holdfast::testing
