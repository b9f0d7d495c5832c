// The real program: bad input ends at once with its exit code and touches nothing; a small run from
// start to finish, its commands, its end on request.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

namespace holdfast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Arguments = std::vector<std::string>;

int64_t NowMs() {
  timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1'000'000;
}

std::string Slurp(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class Program : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path =
        (std::filesystem::temp_directory_path() / "holdfast-program-XXXXXX").string();
    dir_ = mkdtemp(path.data());
    std::ofstream text(dir_ + "/book.txt");
    for (int i = 0; i < 3000; ++i)
      text << "line " << i * 7919 % 1000 << " of the book that the test reads\n";
  }
  void TearDown() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      (void)waitpid(pid_, nullptr, 0);
    }
    std::filesystem::remove_all(dir_);
  }

  void Start(const Arguments& arguments) {
    pid_ = fork();
    if (pid_ != 0) return;
    const int out = open((dir_ + "/out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    const int err = open((dir_ + "/err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(out, 1);
    dup2(err, 2);
    std::vector<char*> argv = {const_cast<char*>("holdfast")};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    execv(HOLDFAST, argv.data());
    _exit(126);
  }
  int Wait(int seconds = 120) {
    int status = 0;
    const int64_t by_ms = NowMs() + int64_t{1000} * seconds;
    while (waitpid(pid_, &status, WNOHANG) != pid_) {
      if (NowMs() > by_ms) return -2;
      usleep(5000);
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int Run(const Arguments& arguments, int seconds = 120) {
    Start(arguments);
    return Wait(seconds);
  }
  bool Until(const std::function<bool()>& done, int seconds = 60) {
    const int64_t by_ms = NowMs() + int64_t{1000} * seconds;
    while (!done()) {
      if (NowMs() > by_ms) return false;
      usleep(10'000);
    }
    return true;
  }
  // A tiny model; `more` may add or replace nothing that is here.
  Arguments Tiny(const Arguments& more) const {
    Arguments all = {"run",
                     "--dir",
                     dir_ + "/run",
                     "--data",
                     dir_ + "/book.txt",
                     "--layers",
                     "1",
                     "--heads",
                     "2",
                     "--embed",
                     "16",
                     "--context",
                     "16",
                     "--micro-batches",
                     "2",
                     "--micro-batch-size",
                     "1",
                     "--log-every",
                     "5"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string Errors() const { return Slurp(dir_ + "/err"); }
  std::string Printed() const { return Slurp(dir_ + "/out"); }
  size_t StepLines() const {
    const std::string text = Slurp(dir_ + "/run/steps.jsonl");
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  std::string dir_;
  pid_t pid_ = -1;
};

TEST_F(Program, UsageErrorsEndWithTwoAndTouchNothing) {
  const Arguments bad[] = {
      {"run", "--dir", dir_ + "/run"},
      Tiny({"--steps", "x"}),
      Tiny({"--no-such-flag", "1"}),
      Tiny({"--embed", "15"}),
      Tiny({"--min-workers", "9", "--max-workers", "2"}),
      Tiny({"--redis", "redis://:secret@127.0.0.1:1"}),
      Tiny({"--config", dir_ + "/none.toml"}),
      {"frobnicate"},
      {"status"},
      {},
      {"worker", "--slot", "0"},
  };
  for (const Arguments& arguments : bad) {
    EXPECT_EQ(Run(arguments, 20), 2) << (arguments.empty() ? "" : arguments.back()) << Errors();
    EXPECT_FALSE(Errors().empty());
    EXPECT_FALSE(std::filesystem::exists(dir_ + "/run")) << arguments.back();
  }
}

TEST_F(Program, HelpAndVersion) {
  EXPECT_EQ(Run({"--version"}), 0);
  EXPECT_THAT(Printed(), HasSubstr("holdfast 0."));
  EXPECT_EQ(Run({"run", "--help"}), 0);
  EXPECT_THAT(Printed(), HasSubstr("--checkpoint-every"));
}

TEST_F(Program, DirectoriesThatCannotBeUsed) {
  std::ofstream(dir_ + "/file") << "x";
  EXPECT_EQ(Run({"run", "--data", dir_ + "/book.txt", "--dir", dir_ + "/file/run"}, 20), 2);
  EXPECT_EQ(Run({"run", "--data", dir_ + "/book.txt", "--dir", dir_ + "/file"}, 20), 2);
  EXPECT_THAT(Errors(), HasSubstr("--dir"));
}

TEST_F(Program, MissingDataEndsWithThree) {
  Arguments arguments = Tiny({"--workers", "1"});
  arguments[4] = dir_ + "/no-such-book.txt";
  EXPECT_EQ(Run(arguments, 60), 3) << Errors();
  EXPECT_THAT(Errors(), HasSubstr("no-such-book.txt"));
}

TEST_F(Program, UnreachableRedisEndsWithFive) {
  EXPECT_EQ(Run(Tiny({"--redis", "redis://127.0.0.1:1", "--rendezvous-ms", "5s"}), 60), 5);
  EXPECT_THAT(Errors(), HasSubstr("127.0.0.1:1"));
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/run/config.toml"));
}

TEST_F(Program, CommandsOnADirectoryWithoutARun) {
  EXPECT_NE(Run({"status", "--dir", dir_}, 20), 0);
  EXPECT_THAT(Errors(), HasSubstr("holds no run"));
  EXPECT_NE(Run({"stop", "--dir", dir_}, 20), 0);
  EXPECT_THAT(Errors(), HasSubstr("no holdfast run is active"));
  EXPECT_EQ(Run({"checkpoint", "list", "--dir", dir_}, 20), 2);
  EXPECT_EQ(Run({"checkpoint", "verify", "--dir", dir_ + "/none"}, 20), 2);
}

TEST_F(Program, ARunFromStartToFinishAndAgain) {
  ASSERT_EQ(Run(Tiny({"--workers", "2", "--steps", "20", "--checkpoint-every", "10"})), 0)
      << Errors();
  EXPECT_EQ(StepLines(), 20u);
  const auto summary = nlohmann::json::parse(Slurp(dir_ + "/run/summary.json"));
  EXPECT_EQ(summary["final_step"], 20);
  EXPECT_EQ(summary["finished"], true);
  EXPECT_FALSE(summary["train_loss"].is_null());
  EXPECT_EQ(Run({"status", "--dir", dir_ + "/run"}), 0);
  EXPECT_THAT(Printed(), AllOf(HasSubstr("no holdfast run is active"), HasSubstr("20"),
                               HasSubstr("finished")));
  EXPECT_EQ(Run({"checkpoint", "list", "--dir", dir_ + "/run"}), 0);
  EXPECT_THAT(Printed(), HasSubstr("step 20"));
  EXPECT_EQ(Run({"checkpoint", "verify", "--dir", dir_ + "/run"}), 0) << Errors();
  ASSERT_EQ(Run(Tiny({"--workers", "1", "--steps", "20", "--checkpoint-every", "10"}), 20), 0);
  EXPECT_THAT(Printed(), HasSubstr("already complete at step 20"));
}

TEST_F(Program, StatusAndStopOfALiveRunAndItsResume) {
  // The live run shares its output file with the commands beside it: it shall print no line.
  Arguments arguments = Tiny({"--workers", "2", "--steps", "1000000"});
  arguments[std::find(arguments.begin(), arguments.end(), "--log-every") - arguments.begin() + 1] =
      "1000000";
  Start(arguments);
  ASSERT_TRUE(Until([&] { return StepLines() > 5; })) << Errors();
  const pid_t run = pid_;
  pid_ = -1;
  Program::Start({"status", "--dir", dir_ + "/run", "--json"});
  EXPECT_EQ(Wait(20), 0) << Errors();
  const auto status = nlohmann::json::parse(Printed(), nullptr, false);
  EXPECT_EQ(status["members"].size(), 2u) << Printed();
  EXPECT_EQ(status["active"], true);
  Program::Start({"status", "--dir", dir_ + "/run"});
  EXPECT_EQ(Wait(20), 0) << Errors();
  EXPECT_THAT(Printed(), AllOf(HasSubstr("generation 1"), HasSubstr("of 1,000,000")));
  Program::Start({"stop", "--dir", dir_ + "/run"});
  EXPECT_EQ(Wait(20), 0) << Errors();
  pid_ = run;
  EXPECT_EQ(Wait(60), 11);
  const size_t before = StepLines();
  Start(arguments);
  ASSERT_TRUE(Until([&] { return StepLines() > before + 5; })) << Errors();
  kill(pid_, SIGINT);
  EXPECT_EQ(Wait(60), 10) << Errors();
}

}  // namespace
}  // namespace holdfast
