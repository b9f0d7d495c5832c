// Bad input ends at once, with a message that says what, where and what to do, with a documented
// exit code, and harms nothing that is there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/clock.h"
#include "runtime/base/text.h"
#include "tests/process/train_run.h"

namespace holdfast::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string WriteFile(const std::string& name, const std::string& content) {
  const std::string path = FreshFolder(name);
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

struct BadCase {
  std::string name;
  Flags flags;
  ExitCode code;
  std::string message;  // part of what is printed
};

void PrintTo(const BadCase& value, std::ostream* out) { *out << value.name; }

class BadInput : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadInput, IsRefusedAtOnce) {
  Flags flags = GetParam().flags;
  if (const auto it = flags.find("config"); it != flags.end())
    it->second = WriteFile("config.toml", it->second);
  if (const auto it = flags.find("data"); it != flags.end() && it->second.starts_with("bytes:")) {
    it->second = WriteFile("data" + it->second.substr(6, 4), it->second.substr(10));
  }
  const int64_t start = BootMs();
  TrainRun run({.flags = flags});
  EXPECT_EQ(run.Wait(30'000), static_cast<int>(GetParam().code)) << run.Output();
  EXPECT_LT(BootMs() - start, 20'000) << "not at once";
  EXPECT_THAT(run.Output(), HasSubstr(GetParam().message));
  std::error_code error;
  const auto lines = fs::file_size(run.dir() + "/steps.jsonl", error);
  EXPECT_TRUE(error || lines == 0) << "training began";
  run.ExpectNoResidue();
}

INSTANTIATE_TEST_SUITE_P(
    All, BadInput,
    ::testing::Values(
        BadCase{"UnknownFlag", {{"micro-batchs", "4"}}, ExitCode::kUsage, "micro-batch"},
        BadCase{"NotANumber", {{"steps", "many"}}, ExitCode::kUsage, "steps"},
        BadCase{"Negative", {{"steps", "-5"}}, ExitCode::kUsage, "steps"},
        BadCase{"OutOfRange", {{"micro-batches", "5000"}}, ExitCode::kUsage, "micro-batches"},
        BadCase{"HeadsDoNotDivide", {{"heads", "3"}}, ExitCode::kUsage, "heads"},
        BadCase{"MinAboveMax",
                {{"min-workers", "5"}, {"max-workers", "4"}},
                ExitCode::kUsage,
                "min-workers"},
        BadCase{"UnknownModel", {{"model", "gtp"}}, ExitCode::kUsage, "gtp"},
        BadCase{"UnknownReduction", {{"reduction", "sloppy"}}, ExitCode::kUsage, "reduction"},
        BadCase{"BadInterval",
                {{"checkpoint-every", "30 parsecs"}},
                ExitCode::kUsage,
                "checkpoint-every"},
        BadCase{"ConfigUnknownKey", {{"config", "layerz = 2\n"}}, ExitCode::kUsage, "layers"},
        BadCase{"ConfigWrongType",
                {{"config", "log_every = \"often\"\n"}},
                ExitCode::kUsage,
                "log_every"},
        BadCase{"ConfigNoToml", {{"config", "log_every = = 3\n"}}, ExitCode::kUsage, "1"},
        BadCase{"NoData", {{"data", "/no/such/file.txt"}}, ExitCode::kData, "/no/such/file.txt"},
        BadCase{"EmptyData", {{"data", "bytes:.txt"}}, ExitCode::kData, "data"},
        BadCase{"ShortData", {{"data", "bytes:.txtshort"}}, ExitCode::kData, "too few"},
        BadCase{"TokenOutOfRange",
                {{"data", Cat("bytes:.bin", std::string(40'000, '\xff'))}, {"vocab-size", "100"}},
                ExitCode::kData,
                "vocab"},
        BadCase{"PasswordInTheUrl",
                {{"redis", "redis://:secret@127.0.0.1:6379"}, {"run", "x"}},
                ExitCode::kUsage,
                "password"}),
    [](const auto& info) { return info.param.name; });

// A first start that was refused binds nobody: the corrected command works in the same folder.
TEST(BadInput, AWrongFirstStartDoesNotStick) {
  const std::string dir = FreshFolder("corrected");
  for (const Flags& flags :
       {Flags{{"model", "gtp"}}, Flags{{"data", "/no/such/file.txt"}, {"layers", "5"}}}) {
    TrainRun run({.dir = dir, .flags = flags});
    EXPECT_GT(run.Wait(30'000), 0) << run.Output();
  }
  TrainRun run({.dir = dir, .flags = {{"workers", "2"}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(dir);
}

TEST(BadInput, NoSubCommand) {
  EXPECT_EQ(Command({}).code, static_cast<int>(ExitCode::kUsage));
  EXPECT_EQ(Command({"trian"}).code, static_cast<int>(ExitCode::kUsage));
  EXPECT_EQ(Command({"--help"}).code, 0);
  EXPECT_EQ(Command({"run", "--help"}).code, 0);
}

TEST(BadInput, CommandsOnNothing) {
  const std::string dir = FreshFolder("nothing");
  for (const std::vector<std::string>& command : {std::vector<std::string>{"status"},
                                                  {"stop"},
                                                  {"checkpoint", "list"},
                                                  {"checkpoint", "verify"}}) {
    std::vector<std::string> args = command;
    args.insert(args.end(), {"--dir", dir});
    const CommandResult result = Command(args);
    EXPECT_GT(result.code, 0) << command.back() << ": " << result.output;
    EXPECT_THAT(result.output, HasSubstr(dir));
    EXPECT_FALSE(fs::exists(dir)) << command.back();
  }
}

TEST(BadInput, RedisIsNotThere) {
  TestRedis redis;
  redis.KillHard();
  TrainRun run({.flags = {{"redis", redis.url()}, {"run", "x"}, {"rendezvous-ms", "5000"}},
                .env = redis.env()});
  EXPECT_EQ(run.Wait(60'000), static_cast<int>(ExitCode::kStore)) << run.Output();
  EXPECT_THAT(run.Output(), HasSubstr(Cat(redis.port())));
  run.ExpectNoResidue();
}

TEST(BadInput, RedisWithAWrongPassword) {
  TestRedis redis;
  TrainRun run({.flags = {{"redis", redis.url()}, {"run", "x"}},
                .env = {{"HOLDFAST_REDIS_PASSWORD", "wrong-secret-word"}}});
  EXPECT_EQ(run.Wait(60'000), static_cast<int>(ExitCode::kStore)) << run.Output();
  EXPECT_THAT(run.Output(), HasSubstr("password"));
  EXPECT_THAT(run.Output(), Not(HasSubstr("wrong-secret-word")));
  run.ExpectNoResidue();
}

// A Redis that is a replica refuses writes.
TEST(BadInput, RedisIsAReadOnlyReplica) {
  TestRedis primary, replica;
  replica.Cli({"config", "set", "masterauth", primary.password()});
  ASSERT_EQ(replica.Cli({"replicaof", "127.0.0.1", Cat(primary.port())}), "OK\n");
  TrainRun run({.flags = {{"redis", replica.url()}, {"run", "x"}, {"rendezvous-ms", "5000"}},
                .env = replica.env()});
  EXPECT_EQ(run.Wait(60'000), static_cast<int>(ExitCode::kStore)) << run.Output();
  EXPECT_THAT(run.Output(), HasSubstr("replica"));
  run.ExpectNoResidue();
}

// Two runs in one --dir: the second is refused, the first does not notice.
TEST(BadInput, TwoRunsInOneFolder) {
  TrainRun first({.flags = {{"workers", "2"}}, .failpoints = "step.begin=sleep(20)"});
  ASSERT_TRUE(first.WaitForStep(3));
  TrainRun second({.dir = first.dir()});
  EXPECT_EQ(second.Wait(30'000), static_cast<int>(ExitCode::kBusy)) << second.Output();
  EXPECT_EQ(first.Wait(), 0) << first.Output();
  ExpectSameBits(first.dir());
  first.ExpectNoResidue();
}

// Other bits-moving settings or data in an existing run: named, refused, nothing lost.
TEST(BadInput, AnExistingRunWithOtherSettings) {
  const std::string dir = FreshFolder("existing");
  {
    TrainRun run({.dir = dir, .failpoints = "step.begin=sleep(20)"});
    run.Do({.kind = chaos::FaultKind::kTermSupervisor, .at_step = 12});
    EXPECT_EQ(run.Wait(), static_cast<int>(ExitCode::kInterrupted)) << run.Output();
  }
  for (const auto& [key, value] :
       Flags{{"seed", "8"}, {"layers", "3"}, {"micro-batches", "3"}, {"data", TextFile(30'000)}}) {
    TrainRun run({.dir = dir, .flags = {{key, value}}});
    EXPECT_EQ(run.Wait(60'000), static_cast<int>(ExitCode::kRefused)) << key << "\n"
                                                                      << run.Output();
    EXPECT_THAT(run.Output(),
                ::testing::AnyOf(HasSubstr(key),
                                 HasSubstr(key == "micro-batches" ? "micro_batches" : key)));
    run.ExpectNoResidue();
  }
  TrainRun run({.dir = dir, .flags = {{"workers", "2"}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(dir);
}

}  // namespace
}  // namespace holdfast::testing
