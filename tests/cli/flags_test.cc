// The command line: precedence, help, and every way to get it wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/exit_code.h"
#include "runtime/base/text.h"
#include "runtime/cli/flags.h"
#include "runtime/config/keys.h"

namespace holdfast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Arguments = std::vector<std::string>;

std::string ErrorOf(const Arguments& arguments) {
  const auto line = ParseCommandLine(arguments);
  EXPECT_FALSE(line.ok());
  return line.ok() ? "" : std::string(line.status().message());
}

class Flags : public ::testing::Test {
 protected:
  std::string File(const std::string& text) {
    path_ = (std::filesystem::temp_directory_path() / Cat("holdfast-flags-", getpid(), ".toml"))
                .string();
    std::ofstream(path_) << text;
    return path_;
  }
  void TearDown() override {
    if (!path_.empty()) std::filesystem::remove(path_);
  }
  std::string path_;
};

TEST_F(Flags, FlagOverFileOverDefault) {
  const std::string file = File("steps = 500\nseed = 9\ndata = \"from-file.txt\"\n");
  const auto line =
      ParseCommandLine({"run", "--config", file, "--steps", "7", "--learning-rate=2e-3"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->kind, CommandLine::Kind::kRun);
  EXPECT_EQ(line->config.steps, 7);
  EXPECT_EQ(line->config.seed, 9u);
  EXPECT_EQ(line->config.learning_rate, 2e-3);
  EXPECT_EQ(line->config.layers, Config().layers);
  EXPECT_EQ(line->config.data, Arguments{"from-file.txt"});
}

TEST_F(Flags, ListsAndSwitches) {
  const auto line =
      ParseCommandLine({"run", "--data", "a.txt", "b.txt", "--fresh", "--checkpoint-every", "30m"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.data, (Arguments{"a.txt", "b.txt"}));
  EXPECT_TRUE(line->config.fresh);
  EXPECT_EQ(line->config.checkpoint_every_ms, 1'800'000);
}

TEST_F(Flags, WrongValuesNameFlagValueAndExpectation) {
  struct Case {
    Arguments arguments;
    std::string flag, what;
  };
  const Case cases[] = {
      {{"--steps", "ten"}, "--steps", "'ten' is not an integer"},
      {{"--steps", "10.5"}, "--steps", "10.5"},
      {{"--micro-batches", "-4"}, "--micro-batches", "-4"},
      {{"--micro-batches", "5000"}, "--micro-batches", "from 1 to 4096"},
      {{"--learning-rate", "nan"}, "--learning-rate", "finite"},
      {{"--learning-rate", "0x1p3"}, "--learning-rate", "finite"},
      {{"--keep", "99999999999999999999"}, "--keep", "99999999999999999999"},
      {{"--reduction", "quick"}, "--reduction", "exact, fast"},
      {{"--checkpoint-every", "soon"}, "--checkpoint-every", "soon"},
      {{"--min-workers", "5", "--max-workers", "4"}, "--min-workers 5", "--max-workers 4"},
      {{"--steps", "1", "--steps", "2"}, "--steps", "more than once"},
      {{"--steps"}, "--steps", ""},
      {{"--dir", "a", "stray"}, "'stray'", "not expected; see holdfast run --help"},
      {{"--chekpoint-every", "5"}, "--chekpoint-every", "did you mean --checkpoint-every"},
      {{"--worker", "5"}, "--worker", "did you mean --workers"},
      {{"--redis", "redis://:pw@h:1"}, "--redis", "HOLDFAST_REDIS_PASSWORD"},
      {{"--redis", "redis://h:99999"}, "--redis", "port"},
      {{"--config", "/no/such.toml"}, "--config", "/no/such.toml"},
  };
  for (const Case& c : cases) {
    Arguments arguments = {"run", "--data", "a.txt"};
    arguments.insert(arguments.end(), c.arguments.begin(), c.arguments.end());
    EXPECT_THAT(ErrorOf(arguments), AllOf(HasSubstr(c.flag), HasSubstr(c.what))) << c.arguments[0];
  }
  EXPECT_THAT(ErrorOf({"run"}), HasSubstr("--data is missing"));
}

TEST_F(Flags, ErrorsInTheFileNameFileAndLine) {
  const std::string file = File("data = \"a\"\n\nchekpoint_every = 5\n");
  EXPECT_THAT(ErrorOf({"run", "--config", file}),
              AllOf(HasSubstr(Cat(file, ":3")), HasSubstr("'checkpoint_every'")));
}

TEST_F(Flags, OtherCommands) {
  EXPECT_EQ(ParseCommandLine({"status", "--dir", "d", "--json"})->kind, CommandLine::Kind::kStatus);
  EXPECT_EQ(ParseCommandLine({"stop", "--redis", "h:1", "--run", "r"})->kind,
            CommandLine::Kind::kStop);
  EXPECT_EQ(ParseCommandLine({"checkpoint", "list", "--dir", "d"})->kind,
            CommandLine::Kind::kCheckpointList);
  EXPECT_EQ(ParseCommandLine({"checkpoint", "verify", "--dir", "d"})->kind,
            CommandLine::Kind::kCheckpointVerify);
  EXPECT_EQ(ParseCommandLine({"worker", "--slot", "3", "--run", "r"})->slot, 3);
  EXPECT_TRUE(ParseCommandLine({"status", "--dir", "d", "--watch"})->watch);
  EXPECT_THAT(ErrorOf({"status", "--dir", "d", "--watch", "--json"}), HasSubstr("--watch"));
  EXPECT_THAT(ErrorOf({"status"}), HasSubstr("--dir"));
  EXPECT_THAT(ErrorOf({"status", "--dir", "d", "--redis", "h"}), HasSubstr("--dir"));
  EXPECT_THAT(ErrorOf({"stop", "--redis", "h:1"}), HasSubstr("--run"));
  EXPECT_THAT(ErrorOf({"checkpoint"}), HasSubstr("subcommand"));
  EXPECT_THAT(ErrorOf({"train"}), AllOf(HasSubstr("'train'"), HasSubstr("see holdfast --help")));
  EXPECT_THAT(ErrorOf({}), AllOf(HasSubstr("no command"), HasSubstr("run"), HasSubstr("status")));
}

TEST_F(Flags, WrongValuesOfOtherCommands) {
  const auto sample = [](const std::string& flag, const std::string& value) {
    return ErrorOf({"sample", "--dir", "d", flag, value});
  };
  EXPECT_THAT(sample("--step", "-1"), HasSubstr("--step: '-1' is not an integer from 0"));
  EXPECT_THAT(sample("--top-k", "1.5"), HasSubstr("--top-k: '1.5' is not an integer from 0"));
  for (const char* value : {"nan", "-1", "101", "hot"})
    EXPECT_THAT(sample("--temperature", value), HasSubstr("is not a number from 0 to 100"));
  EXPECT_EQ(ParseCommandLine({"sample", "--dir", "d", "--temperature", "0.5", "--top-k", "40"})
                ->temperature,
            0.5);
}

TEST_F(Flags, HelpTeaches) {
  const auto help = ParseCommandLine({"run", "--help"});
  ASSERT_TRUE(help.ok());
  for (const Key& key : Keys()) {
    if (key.group == "Internal") continue;
    EXPECT_THAT(help->printed, HasSubstr(FlagOf(key)));
  }
  EXPECT_THAT(help->printed,
              AllOf(HasSubstr("Several machines"), HasSubstr("Example:"), HasSubstr("[0.001]"),
                    HasSubstr("(bits)"), HasSubstr("--config")));
  EXPECT_THAT(ParseCommandLine({"--help"})->printed,
              AllOf(HasSubstr("checkpoint"), HasSubstr("same bits")));
  EXPECT_EQ(ParseCommandLine({"help"})->printed, ParseCommandLine({"--help"})->printed);
  EXPECT_THAT(ParseCommandLine({"--help"})->printed,
              HasSubstr(Cat("  22  ", ExitCodeText(ExitCode::kCheckpoint))));
  EXPECT_EQ(ParseCommandLine({"--version"})->printed, Cat("holdfast ", kVersion, "\n"));
}

}  // namespace
}  // namespace holdfast
