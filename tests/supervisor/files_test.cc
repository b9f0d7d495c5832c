// What lies in --dir, two runs in one directory, finished and continued runs, changed settings
// (K03; fault 80).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runtime/config/config.h"
#include "runtime/metrics/page_server.h"
#include "runtime/supervisor/embedded_redis.h"
#include "runtime/supervisor/line_file.h"
#include "tests/supervisor/driver.h"

namespace holdfast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Files, EveryLogHoldsWhatItPromises) {
  Driver d;
  ASSERT_EQ(d.Run("", ""), 0) << d.Output();
  const auto steps = d.Lines("steps.jsonl");
  ASSERT_EQ(steps.size(), 60u);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i]["step"], i + 1);
    for (const char* key : {"loss", "state_digest", "world_size", "generation", "samples"})
      EXPECT_TRUE(steps[i].contains(key)) << key;
  }
  const auto summary = d.Summary();
  for (const char* key :
       {"final_step", "state_digest", "train_loss", "eval_loss", "generations", "workers_lost",
        "steps_lost", "wall_s", "tokens_per_s", "recoveries", "time", "parallel_efficiency"}) {
    EXPECT_TRUE(summary.contains(key)) << key;
  }
  EXPECT_EQ(summary["time"]["compute"], 6.0);
  EXPECT_DOUBLE_EQ(summary["parallel_efficiency"].get<double>(),
                   6.0 / summary["wall_s"].get<double>());
  const auto text = ReadSmallFile(d.RunPath("config.toml"));
  ASSERT_TRUE(text.ok());
  const auto config = ConfigFromToml(*text, "config.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->steps, 60);
  EXPECT_EQ(config->run, "run");
  EXPECT_THAT(d.Printed(),
              AllOf(HasSubstr("step 20/60"), HasSubstr("step 60/60"), HasSubstr("tokens/s"),
                    HasSubstr("FLOP/s"), HasSubstr("gradient norm"), HasSubstr("lr "),
                    HasSubstr("generation")));
  EXPECT_EQ(d.Events("begin").size(), 1u);
}

TEST(Files, MetricsHaveEachLoggedStepOnceAfterAKillOfEverything) {
  Driver d;
  const std::string toml = "steps = 100000\nlog_every = 2\nrestarts = 3";
  d.Start(toml, "");
  ASSERT_TRUE(Driver::Until([&] { return d.Lines("steps.jsonl").size() > 20; }));
  d.Signal(SIGKILL);
  ASSERT_EQ(d.Wait(), -1);
  ASSERT_EQ(d.Run(toml, "*:*:final11@500"), 11) << d.Output();
  std::ifstream file(d.RunPath("metrics.csv"));
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_THAT(line, testing::StartsWith("step,wall_s,loss,eval_loss,gradient_norm"));
  const auto columns = std::count(line.begin(), line.end(), ',');
  int64_t expected = 2;
  for (; std::getline(file, line); expected += 2) {
    EXPECT_EQ(std::stoll(line), expected);
    EXPECT_EQ(std::count(line.begin(), line.end(), ','), columns) << line;
  }
  EXPECT_GE(expected, 480);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(d.RunPath("tensorboard")))
    files += entry.path().filename().string().starts_with("events.out.tfevents.");
  EXPECT_EQ(files, 2);
}

TEST(Files, ATakenMetricsPortIsSaidBeforeAnythingIsTouched) {
  const auto taken = metrics::PageServer::Listen("127.0.0.1", 0);
  ASSERT_TRUE(taken.ok());
  Driver d;
  ASSERT_EQ(d.Run("metrics_port = " + std::to_string((*taken)->port()), "", 5), 7);
  EXPECT_THAT(d.Output(), AllOf(HasSubstr("--metrics-port"), HasSubstr("another process")));
  EXPECT_FALSE(std::filesystem::exists(d.dir() + "/run"));
  ASSERT_EQ(d.Run("metrics_port = 9\nmetrics_host = \"192.0.2.1\"", "", 5), 2);
  EXPECT_THAT(d.Output(), HasSubstr("192.0.2.1"));
  EXPECT_FALSE(std::filesystem::exists(d.dir() + "/run"));
}

TEST(Files, TheSecretIsPrivateAndInNoOtherFile) {
  Driver d;
  d.Start("steps = 100000", "");
  ASSERT_TRUE(Driver::Until([&] { return d.Lines("steps.jsonl").size() > 2; }));
  struct stat info;
  ASSERT_EQ(stat(d.RunPath("redis.secret").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto secret = ReadSmallFile(d.RunPath("redis.secret"));
  ASSERT_TRUE(secret.ok());
  ASSERT_GE(secret->size(), 32u);
  for (const char* name : {"run.json", "config.toml", "events.jsonl"}) {
    EXPECT_THAT(*ReadSmallFile(d.RunPath(name)), Not(HasSubstr(*secret))) << name;
  }
  for (const pid_t child : Driver::ChildrenOf(d.pid())) {
    for (const char* name : {"/cmdline", "/environ"}) {
      const auto text = ReadSmallFile("/proc/" + std::to_string(child) + name);
      if (!text.ok()) continue;  // it has just ended
      EXPECT_THAT(*text, Not(HasSubstr(*secret)));
    }
  }
  EXPECT_THAT(d.Output(), Not(HasSubstr(*secret)));
  d.Signal(SIGTERM);
  EXPECT_EQ(d.Wait(), 10);
}

TEST(Files, TwoRunsInOneDirectory) {
  Driver d;
  d.Start("steps = 100000", "");
  ASSERT_TRUE(Driver::Until([&] { return d.Lines("steps.jsonl").size() > 2; }));
  const pid_t first = d.pid();
  Driver other;
  other.Start("dir = \"" + d.dir() + "/run\"\n", "");
  // A second `dir` line is a duplicate key: write the file anew instead.
  EXPECT_EQ(other.Wait(), 2);
  std::ofstream(other.dir() + "/wanted.toml") << "dir = \"" << d.dir() << "/run\"\ndata = \"x\"\n";
  const pid_t pid = fork();
  if (pid == 0) {
    (void)!freopen((other.dir() + "/err").c_str(), "w", stderr);
    execl(DRIVER, "supervisor_driver", (other.dir() + "/wanted.toml").c_str(), FAKE_WORKER,
          nullptr);
    _exit(126);
  }
  int status = 0;
  ASSERT_TRUE(Driver::Until([&] { return waitpid(pid, &status, WNOHANG) == pid; }, 10));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_THAT(other.Output(), AllOf(HasSubstr("in use by process " + std::to_string(first)),
                                    HasSubstr("holdfast stop")));
  d.Signal(SIGTERM);
  EXPECT_EQ(d.Wait(), 10);
}

TEST(Files, AFinishedRunSaysSoAndTouchesNothing) {
  Driver d;
  ASSERT_EQ(d.Run("", ""), 0);
  const auto before = ReadSmallFile(d.RunPath("events.jsonl"));
  ASSERT_EQ(d.Run("", "", 5), 0);
  EXPECT_THAT(d.Printed(), AllOf(HasSubstr("already complete at step 60"),
                                 HasSubstr(d.Summary()["state_digest"].get<std::string>())));
  EXPECT_EQ(*before, *ReadSmallFile(d.RunPath("events.jsonl")));
}

TEST(Files, StepsMayBeRaisedAndNotLowered) {
  Driver d;
  ASSERT_EQ(d.Run("steps = 40", ""), 0);
  ASSERT_EQ(d.Run("steps = 30", "", 5), 4);
  EXPECT_THAT(d.Output(), AllOf(HasSubstr("--steps 30"), HasSubstr("40"), HasSubstr("reached")));
  ASSERT_EQ(d.Run("steps = 70", ""), 0);
  EXPECT_THAT(d.Output(), HasSubstr("reached step 40, to 70 steps instead of 40"));
  EXPECT_EQ(d.Lines("steps.jsonl").size(), 70u);
}

TEST(Files, OtherSettingsAreRefusedNamingKeyOldAndNew) {
  Driver d;
  ASSERT_EQ(d.Run("", ""), 0);
  ASSERT_EQ(d.Run("seed = 5", "", 5), 4);
  EXPECT_THAT(d.Output(), AllOf(HasSubstr("seed was 1 and is now 5"), HasSubstr("--fresh")));
  ASSERT_EQ(d.Run("learning_rate = 0.5", "", 5), 4);
  EXPECT_THAT(d.Output(), AllOf(HasSubstr("learning_rate was 0.001 and is now 0.5"),
                                HasSubstr("--accept-change")));
  ASSERT_EQ(d.Run("learning_rate = 0.5\nwarmup_steps = 7", "", 5), 4);
  EXPECT_THAT(d.Output(), AllOf(HasSubstr("learning_rate was"),
                                HasSubstr("warmup_steps was 100 and is now 7")));
  ASSERT_EQ(d.Run("workers = 1\nkeep = 7\nthreads = 2", "", 5), 0);  // free keys
}

TEST(Files, FreshSetsTheOldRunAside) {
  Driver d;
  ASSERT_EQ(d.Run("", ""), 0);
  ASSERT_EQ(d.Run("seed = 5\nfresh = true", ""), 0) << d.Output();
  EXPECT_TRUE(std::filesystem::exists(d.RunPath("old-1/steps.jsonl")));
  EXPECT_TRUE(std::filesystem::exists(d.RunPath("old-1/config.toml")));
  ASSERT_EQ(d.Run("seed = 5", "", 5), 0);  // fresh is not remembered
  EXPECT_FALSE(std::filesystem::exists(d.RunPath("old-2")));
}

TEST(Files, CheckpointsWithoutAConfigurationAreRefused) {
  Driver d;
  std::filesystem::create_directories(d.RunPath("slots/0/store"));
  ASSERT_EQ(d.Run("", "", 5), 4);
  EXPECT_THAT(d.Output(), HasSubstr("config.toml"));
}

TEST(Files, ATornLastLineIsCut) {
  Driver d;
  ASSERT_EQ(d.Run("steps = 30", ""), 0);
  std::ofstream(d.RunPath("steps.jsonl"), std::ios::app) << "{\"step\":31,\"loss\":0.";
  std::ofstream(d.RunPath("events.jsonl"), std::ios::app) << "{\"time\":";
  ASSERT_EQ(d.Run("steps = 50", ""), 0) << d.Output();
  const auto lines = d.Lines("steps.jsonl");
  ASSERT_EQ(lines.size(), 50u);
  EXPECT_EQ(lines[30]["step"], 31);
}

TEST(Files, NoRedisServerIsSaidAndNothingIsWritten) {
  Driver d;
  d.Start("", "", [] { setenv("PATH", "/nonexistent", 1); });
  ASSERT_EQ(d.Wait(10), 5);
  EXPECT_THAT(d.Output(), AllOf(HasSubstr("redis-server"), HasSubstr("apt-get install")));
  EXPECT_FALSE(std::filesystem::exists(d.RunPath("config.toml")));
}

TEST(Files, RedisThatIsNotThere) {
  Driver d;
  ASSERT_EQ(d.Run("redis = \"redis://127.0.0.1:1\"\nrendezvous_ms = 2500", "", 30), 5);
  EXPECT_THAT(d.Output(), HasSubstr("127.0.0.1:1"));
  EXPECT_FALSE(std::filesystem::exists(d.RunPath("config.toml")));
}

TEST(Files, AnOutsideRedisWithRightAndWrongPassword) {
  auto redis = EmbeddedRedis::Start(Deadline::After(10'000));
  ASSERT_TRUE(redis.ok()) << redis.status();
  const RedisAddress address = (*redis)->address();
  const std::string toml = "redis = \"redis://" + address.text() + "\"\nrun = \"shared\"\n";
  Driver wrong;
  wrong.Start(toml, "", [] { setenv("HOLDFAST_REDIS_PASSWORD", "wrong", 1); });
  EXPECT_EQ(wrong.Wait(20), 5);
  EXPECT_THAT(wrong.Output(), HasSubstr(address.text()));
  EXPECT_FALSE(std::filesystem::exists(wrong.RunPath("config.toml")));
  Driver right;
  right.Start(toml, "1:1:kill@20",
              [&] { setenv("HOLDFAST_REDIS_PASSWORD", address.password.c_str(), 1); });
  EXPECT_EQ(right.Wait(), 0) << right.Output();
  EXPECT_THAT(right.Output(), HasSubstr("other machines join with --run shared"));
  EXPECT_THAT(*ReadSmallFile(right.RunPath("config.toml")), Not(HasSubstr(address.password)));
}

TEST(Files, WithoutANameASharedRedisGetsAGeneratedOneThatStays) {
  auto redis = EmbeddedRedis::Start(Deadline::After(10'000));
  ASSERT_TRUE(redis.ok()) << redis.status();
  const RedisAddress address = (*redis)->address();
  const std::string toml = "redis = \"redis://" + address.text() + "\"\n";
  Driver d;
  const auto password = [&] { setenv("HOLDFAST_REDIS_PASSWORD", address.password.c_str(), 1); };
  d.Start(toml + "steps = 20", "", password);
  ASSERT_EQ(d.Wait(), 0) << d.Output();
  const std::string run = d.Summary()["run"];
  EXPECT_THAT(run, ::testing::MatchesRegex("run-[0-9a-f]+"));
  d.Start(toml + "steps = 40", "", password);
  ASSERT_EQ(d.Wait(), 0) << d.Output();
  EXPECT_EQ(d.Summary()["run"], run);
}

TEST(Files, APasswordInTheUrlIsRefused) {
  Driver d;
  ASSERT_EQ(d.Run("redis = \"redis://:secret@127.0.0.1:1\"", "", 5), 2);
  EXPECT_THAT(d.Output(), AllOf(HasSubstr("HOLDFAST_REDIS_PASSWORD"), Not(HasSubstr(":secret@"))));
  EXPECT_FALSE(std::filesystem::exists(d.dir() + "/run"));
}

}  // namespace
}  // namespace holdfast
