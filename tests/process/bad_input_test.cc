// Bad input ends at once, with a message that says what, where and what to do, with a documented
// exit code, and harms nothing that is there.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

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

std::string Underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class BadInput : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadInput, IsRefusedAtOnce) {
  Flags flags = GetParam().flags;
  if (const auto it = flags.find("config"); it != flags.end())
    it->second = WriteFile("config.toml", it->second);
  if (const auto it = flags.find("data"); it != flags.end() && it->second.starts_with("bytes:")) {
    it->second = WriteFile("data" + it->second.substr(6, 4), it->second.substr(10));
  }
  if (const auto it = flags.find("data"); it != flags.end() && it->second == "folder:") {
    it->second = FreshFolder("folder");
    fs::create_directories(it->second);
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
        BadCase{"UnknownFlag", {{"micro-batchs", "4"}}, ExitCode::kUsage, "--micro-batches?"},
        BadCase{"MisspeltDryRun", {{"dry-rum", ""}}, ExitCode::kUsage, "did you mean --dry-run?"},
        BadCase{"ZeroSteps", {{"steps", "0"}}, ExitCode::kUsage, "an integer from 1"},
        BadCase{"ZeroMicroBatches", {{"micro-batches", "0"}}, ExitCode::kUsage, "from 1 to 4096"},
        BadCase{"TooManyMicroBatches",
                {{"micro-batches", "4097"}},
                ExitCode::kUsage,
                "'4097' is not an integer from 1 to 4096"},
        BadCase{"ZeroMicroBatchSize", {{"micro-batch-size", "0"}}, ExitCode::kUsage, "from 1"},
        BadCase{"ZeroContext", {{"context", "0"}}, ExitCode::kUsage, "from 1"},
        BadCase{"ZeroLayers", {{"layers", "0"}}, ExitCode::kUsage, "from 1"},
        BadCase{"NegativeEmbed", {{"embed", "-32"}}, ExitCode::kUsage, "from 1"},
        BadCase{"NegativeWorkers", {{"workers", "-1"}}, ExitCode::kUsage, "--workers"},
        BadCase{"NegativeOverfit", {{"overfit", "-1"}}, ExitCode::kUsage, "--overfit"},
        BadCase{"HalfAStep", {{"steps", "2.5"}}, ExitCode::kUsage, "'2.5' is not an integer"},
        BadCase{"InfiniteRate", {{"learning-rate", "inf"}}, ExitCode::kUsage, "a finite number"},
        BadCase{"NoPartOfTheData", {{"limit-data", "0%"}}, ExitCode::kUsage, "share above 0%"},
        BadCase{"TooSmallAPart", {{"limit-data", "20"}}, ExitCode::kData, "too few"},
        BadCase{"NoTime", {{"max-time", "soon"}}, ExitCode::kUsage, "--max-time"},
        BadCase{"TooLittleTime", {{"max-time", "10"}}, ExitCode::kUsage, "below a second"},
        BadCase{"FreshAndAccept",
                {{"fresh", ""}, {"accept-change", ""}},
                ExitCode::kUsage,
                "--accept-change"},
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
        BadCase{"ConfigTextForANumber",
                {{"config", "beta1 = \"0.9\"\n"}},
                ExitCode::kUsage,
                "expected a finite number"},
        BadCase{
            "ConfigZero", {{"config", "log_every = 0\n"}}, ExitCode::kUsage, "an integer from 1"},
        BadCase{"ConfigNoToml", {{"config", "log_every = = 3\n"}}, ExitCode::kUsage, "1"},
        BadCase{"NoData", {{"data", "/no/such/file.txt"}}, ExitCode::kData, "/no/such/file.txt"},
        BadCase{"EmptyData", {{"data", "bytes:.txt"}}, ExitCode::kData, "data"},
        BadCase{"ShortData", {{"data", "bytes:.txtshort"}}, ExitCode::kData, "too few"},
        BadCase{"FolderWithoutText", {{"data", "folder:"}}, ExitCode::kData, "no text files"},
        BadCase{"HalfAToken",
                {{"data", "bytes:.binabc"}, {"vocab-size", "100"}},
                ExitCode::kData,
                "no whole number of uint16"},
        BadCase{"BinWithoutVocabulary",
                {{"data", Cat("bytes:.bin", std::string(40'000, '\1'))}},
                ExitCode::kData,
                "give vocab_size"},
        BadCase{"TokenOutOfRange",
                {{"data", Cat("bytes:.bin", std::string(40'000, '\xff'))}, {"vocab-size", "100"}},
                ExitCode::kData,
                "token 65535 at token 0 (byte offset 0) is not below vocab_size 100"},
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

// Numbers in scientific notation are numbers, from flags and from the file.
TEST(BadInput, ScientificNotationIsNoBadInput) {
  const std::string config = WriteFile("config.toml", "min_learning_rate = 2e-6\nclip = 1e0\n");
  TrainRun run({.flags = {{"learning-rate", "2e-5"}, {"steps", "1e1"}, {"config", config}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  std::ifstream resolved(run.dir() + "/config.toml");
  const std::string text((std::istreambuf_iterator<char>(resolved)), {});
  EXPECT_THAT(text,
              ::testing::AllOf(HasSubstr("learning_rate = 2e-05\n"), HasSubstr("steps = 10\n"),
                               HasSubstr("min_learning_rate = 2e-06\n")));
}

// As an ordinary user: root may read everything.
TEST(BadInput, AFolderThatMayNotBeRead) {
  const std::string dir = FreshFolder("user"), data = dir + "/secret";
  fs::create_directories(data);
  std::ofstream(data + "/text.txt") << std::string(20'000, 'x');
  const std::string program = dir + "/holdfast";
  fs::copy_file(ProgramPath(), program);  // where it lies, this user may not get at it
  std::vector<std::string> args;
  if (getuid() == 0) {
    args = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
    ASSERT_EQ(chown(dir.c_str(), 65534, 65534), 0);
    ASSERT_EQ(chown(data.c_str(), 65534, 65534), 0);
  }
  fs::permissions(data, fs::perms::none);
  args.insert(args.end(),
              {program, "run", "--dir", dir + "/run", "--data", data, "--workers", "1"});
  auto started = chaos::ChildProcess::Start({.args = args, .output_path = FreshFolder("output")});
  ASSERT_TRUE(started.ok()) << started.status();
  const auto end = (*started)->Wait(Deadline::After(60'000));
  const std::string output = (*started)->Output();
  fs::permissions(data, fs::perms::owner_all);
  ASSERT_TRUE(end.ok()) << end.status() << output;
  EXPECT_TRUE(end->exited) << output;
  EXPECT_EQ(end->code, static_cast<int>(ExitCode::kData)) << output;
  EXPECT_THAT(output, ::testing::AllOf(HasSubstr(data), HasSubstr("Permission denied")));
}

TEST(BadInput, APortThatIsTaken) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  int port = 0;
  // --port goes up to 64,000; the kernel may choose a higher one.
  for (int i = 0; i < 20'000 && port == 0; ++i) {
    address.sin_port = htons(static_cast<uint16_t>(20'000 + i));
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0) port = 20'000 + i;
  }
  ASSERT_EQ(listen(fd, 1), 0);
  TrainRun run({.flags = {{"port", Cat(port)}}});
  EXPECT_EQ(run.Wait(30'000), static_cast<int>(ExitCode::kUsage)) << run.Output();
  EXPECT_THAT(run.Output(), ::testing::AllOf(HasSubstr(Cat("--port ", port)),
                                             HasSubstr("Address already in use")));
  close(fd);
  run.ExpectNoResidue();
}

TEST(BadInput, AWorkerThatCrashesAtEveryStart) {
  TrainRun run({.flags = {{"workers", "1"}}, .failpoints = "regroup.before_join=abort"});
  EXPECT_EQ(run.Wait(60'000), static_cast<int>(ExitCode::kGaveUp)) << run.Output();
  EXPECT_THAT(run.Output(), ::testing::AllOf(HasSubstr("before it joined"), HasSubstr("SIGABRT"),
                                             HasSubstr("First failure")));
  run.ExpectNoResidue();
}

// The name of a run that is under way elsewhere, with other bits, another data file, another
// schedule: each is named, and the run goes on unharmed.
TEST(BadInput, ASecondMachineWithOtherSettings) {
  TestRedis redis;
  const Flags shared = {{"redis", redis.url()}, {"run", "taken"}};
  TrainRun first({.flags = shared, .env = redis.env(), .failpoints = "step.begin=sleep(300)"});
  ASSERT_TRUE(first.WaitForStep(1));
  const std::vector<std::pair<Flags, std::string>> others = {
      {{{"seed", "8"}}, "seed is 8 here, 7 in the run"},
      {{{"data", TextFile(30'000)}}, "data is text-"},
      {{{"learning-rate", "0.01"}}, "learning_rate is 0.01 here, 0.001 in the run"},
      {{{"steps", "90"}}, "steps is 90 here, 60 in the run"}};
  for (const auto& [more, message] : others) {
    Flags flags = shared;
    for (const auto& [key, value] : more) flags[key] = value;
    TrainRun second({.flags = flags, .env = redis.env()});
    EXPECT_EQ(second.Wait(60'000), static_cast<int>(ExitCode::kRefused)) << second.Output();
    EXPECT_THAT(second.Output(), HasSubstr(message));
    second.ExpectNoResidue();
  }
  EXPECT_EQ(first.Wait(), 0) << first.Output();
  ExpectSameBits(first.dir());
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
  for (const auto& [key, value] : Flags{{"seed", "8"},
                                        {"layers", "3"},
                                        {"micro-batches", "3"},
                                        {"overfit", "2"},
                                        {"limit-data", "90%"},
                                        {"data", TextFile(30'000)}}) {
    TrainRun run({.dir = dir, .flags = {{key, value}}});
    EXPECT_EQ(run.Wait(60'000), static_cast<int>(ExitCode::kRefused)) << key << "\n"
                                                                      << run.Output();
    EXPECT_THAT(run.Output(), ::testing::AnyOf(HasSubstr(key), HasSubstr(Underscored(key))));
    run.ExpectNoResidue();
  }
  TrainRun run({.dir = dir, .flags = {{"workers", "2"}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(dir);
}

}  // namespace
}  // namespace holdfast::testing
