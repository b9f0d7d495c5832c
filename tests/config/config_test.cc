// The table of keys, reading and writing of config files (cases K24), relations between keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <clocale>
#include <fstream>
#include <map>
#include <set>

#include "absl/strings/str_split.h"
#include "runtime/base/text.h"
#include "runtime/config/config.h"
#include "runtime/config/keys.h"

namespace holdfast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<Config> Parse(const std::string& text) {
  return ConfigFromToml(Cat("data = \"a.txt\"\n", text), "my.toml");
}

std::string ErrorOf(const std::string& text) {
  const auto config = Parse(text);
  EXPECT_FALSE(config.ok()) << text;
  return config.ok() ? "" : std::string(config.status().message());
}

TEST(Keys, NamesAreUniqueAndDefaultsAreInRange) {
  std::set<std::string> names;
  for (const Key& key : Keys()) {
    EXPECT_TRUE(names.insert(std::string(key.name)).second) << key.name;
    EXPECT_EQ(FindKey(key.name), &key);
    EXPECT_FALSE(key.help.empty());
    EXPECT_FALSE(key.group.empty());
    // Writing the default and reading it back changes nothing: the bounds admit it and the texts
    // agree.
    Config config;
    if (key.type == KeyType::kList) continue;
    std::string text = ValueText(key, config);
    if (text.front() == '"') text = text.substr(1, text.size() - 2);
    EXPECT_TRUE(SetFromText(key, text, &config).ok()) << key.name << " = " << text;
    EXPECT_EQ(config.ToToml(), Config().ToToml()) << key.name;
  }
}

TEST(Keys, EveryFlagOfTheProgramIsThere) {
  for (const char* name : {"dir",
                           "run",
                           "model",
                           "data",
                           "workers",
                           "min-workers",
                           "max-workers",
                           "redis",
                           "steps",
                           "seed",
                           "layers",
                           "heads",
                           "embed",
                           "context",
                           "micro-batches",
                           "micro-batch-size",
                           "learning-rate",
                           "min-learning-rate",
                           "warmup-steps",
                           "weight-decay",
                           "beta1",
                           "beta2",
                           "epsilon",
                           "clip",
                           "dropout",
                           "vocab-size",
                           "checkpoint-every",
                           "keep",
                           "eval-every",
                           "eval-data",
                           "eval-batches",
                           "log-every",
                           "threads",
                           "reduction",
                           "fresh"}) {
    ASSERT_NE(FindKey(name), nullptr) << name;
    EXPECT_EQ(FlagOf(*FindKey(name)), Cat("--", name));
  }
}

TEST(Config, RoundTripKeepsEveryValueBitForBit) {
  Config config;
  config.data = {"a \"quoted\" \\ name.txt", "b*.bin"};
  config.learning_rate = 0.1 + 0.2;
  config.min_learning_rate = 1.0 / 3e7;
  config.epsilon = 1e-30;
  config.seed = 999'999'999'999'999;
  config.checkpoint_every_steps = 0;
  config.checkpoint_every_ms = 90'500;
  config.model = "mine";
  config.model_keys = {{"depth", "3"}, {"note", "a b"}};
  const auto back = ConfigFromToml(config.ToToml(), "config.toml");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->ToToml(), config.ToToml());
  EXPECT_EQ(back->learning_rate, config.learning_rate);
  EXPECT_EQ(back->checkpoint_every_ms, 90'500);
  EXPECT_EQ(back->model_keys, config.model_keys);
}

TEST(Config, NumbersInEveryNotation) {
  EXPECT_EQ(Parse("learning_rate = 2e-3")->learning_rate, 2e-3);
  EXPECT_EQ(Parse("learning-rate = 1E-3")->learning_rate, 1e-3);
  EXPECT_EQ(Parse("learning_rate = 1")->learning_rate, 1.0);
  EXPECT_EQ(Parse("steps = 1e3")->steps, 1000);
  EXPECT_EQ(Parse("steps = 1_000")->steps, 1000);
  EXPECT_EQ(Parse("checkpoint_every = 1e3")->checkpoint_every_steps, 1000);
  EXPECT_EQ(Parse("checkpoint_every = \"30m\"")->checkpoint_every_ms, 1'800'000);
  EXPECT_EQ(Parse("checkpoint_every = \"30 ms\"\n").ok(), false);  // below 100 ms
  EXPECT_EQ(Parse("checkpoint_every = \"10 s\"")->checkpoint_every_ms, 10'000);
  EXPECT_EQ(Parse("detect_ms = \"2s\"")->detect_ms, 2000);
  EXPECT_EQ(Parse("detect_ms = 500")->detect_ms, 500);
}

TEST(Config, WrongValuesNameFileLineKeyValueAndExpectation) {
  struct Case {
    const char* text;
    const char* value;
    const char* expected;
  };
  const Case cases[] = {
      {"learning_rate = \"1e-3\"", "1e-3", "a finite number"},
      {"steps = 10.5", "10.5", "an integer"},
      {"micro_batch_size = 0", "0", "an integer from 1"},
      {"micro_batches = -4", "-4", "an integer from 1 to 4096"},
      {"micro_batches = 4097", "4097", "an integer from 1 to 4096"},
      {"learning_rate = nan", "nan", "a finite number"},
      {"learning_rate = inf", "inf", "a finite number"},
      {"keep = 0", "0", "an integer from 1"},
      {"steps = true", "true", "an integer"},
      {"steps = [1]", "array", "an integer"},
      {"reduction = \"exakt\"", "exakt", "one of exact, fast"},
      {"checkpoint_every = \"5 parsecs\"", "5 parsecs", "a duration"},
      {"fresh = 1", "1", "true or false"},
      {"data2 = 1", "data2", "unknown key"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ErrorOf(c.text),
                AllOf(HasSubstr("my.toml:2"), HasSubstr(c.value), HasSubstr(c.expected)))
        << c.text;
  }
}

TEST(Config, TooLargeForAnIntegerIsRefusedWithTheLine) {
  EXPECT_THAT(ErrorOf("keep = 99999999999999999999"),
              AllOf(HasSubstr("my.toml:2"), HasSubstr("keep")));
}

TEST(Config, UnknownKeyNamesTheNearest) {
  EXPECT_THAT(ErrorOf("chekpoint_every = 5"),
              AllOf(HasSubstr("chekpoint_every"), HasSubstr("'checkpoint_every'")));
  EXPECT_THAT(ErrorOf("lr = 1e-3"), HasSubstr("'learning_rate'"));
  EXPECT_THAT(ErrorOf("worker = 3"), HasSubstr("'workers'"));
}

TEST(Config, SameKeyTwiceIsRefused) {
  EXPECT_THAT(ErrorOf("steps = 1\nsteps = 2"), HasSubstr("my.toml:3"));
  EXPECT_THAT(ErrorOf("micro-batches = 1\nmicro_batches = 2"), HasSubstr("micro"));
}

TEST(Config, EmptyFileCrLfAndByteOrderMark) {
  EXPECT_TRUE(Parse("").ok());
  const auto config = ConfigFromToml(
      "\xef\xbb\xbf"
      "data = [\"a\"]\r\nsteps = 7\r\n",
      "my.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->steps, 7);
}

TEST(Config, LocaleWithDecimalCommaChangesNothing) {
  const char* name = std::setlocale(LC_ALL, "de_DE.UTF-8");
  if (name == nullptr) name = std::setlocale(LC_ALL, "de_DE.utf8");
  const std::string text = Parse("learning_rate = 0.25\nmin_learning_rate = 0.125")->ToToml();
  EXPECT_THAT(text, HasSubstr("learning_rate = 0.25\n"));
  EXPECT_EQ(Parse("learning_rate = 0.25")->learning_rate, 0.25);
  std::setlocale(LC_ALL, "C");
}

TEST(Config, RelationsBetweenKeys) {
  EXPECT_THAT(ErrorOf("embed = 130"), AllOf(HasSubstr("--embed 130"), HasSubstr("--heads 4")));
  EXPECT_THAT(ErrorOf("min_workers = 5\nmax_workers = 4"),
              HasSubstr("--min-workers 5 is above --max-workers 4"));
  EXPECT_THAT(ErrorOf("min_workers = 5\nworkers = 4"), HasSubstr("wait for ever"));
  EXPECT_THAT(ErrorOf("detect_ms = 600000"), HasSubstr("--rendezvous-ms"));
  EXPECT_THAT(ErrorOf("min_learning_rate = 1"), HasSubstr("--min-learning-rate"));
  EXPECT_THAT(ErrorOf("run = \"a/b\""), HasSubstr("--run"));
  EXPECT_THAT(ErrorOf("[model]\ndepth = 3"), HasSubstr("depth"));
  EXPECT_FALSE(ConfigFromToml("steps = 3", "my.toml").ok());  // no data
}

TEST(Config, APartOfTheDataHasOneSpelling) {
  EXPECT_EQ(Parse("limit_data = \"1%\"")->limit_data, "1%");
  EXPECT_EQ(Parse("limit_data = \"1.0%\"")->limit_data, "1%");
  EXPECT_EQ(Parse("limit_data = \"100%\"")->limit_data, "");
  EXPECT_EQ(Parse("limit_data = 200000")->limit_data, "200000");
  EXPECT_EQ(Parse("limit_data = \"2e5\"")->limit_data, "200000");
  EXPECT_EQ(ConfigFromToml(Parse("limit_data = \"0.5%\"")->ToToml(), "again")->limit_data, "0.5%");
  for (const char* bad : {"\"0%\"", "\"101%\"", "-1", "\"much\"", "\"nan%\"", "true", "\"%\""}) {
    EXPECT_THAT(ErrorOf(Cat("limit_data = ", bad)), HasSubstr("a share above 0%")) << bad;
  }
}

// The README's table of classes is that of the code: every key of class bits and schedule is named
// there, and no other.
TEST(Config, TheReadmeTellsTheClassesOfTheKeys) {
  std::ifstream readme(HOLDFAST_SOURCE_DIR "/README.md");
  ASSERT_TRUE(readme);
  std::map<std::string, std::string> rows;
  for (std::string line; std::getline(readme, line);) {
    for (const char* name : {"bits", "schedule"}) {
      const std::string head = Cat("| ", name, " | `");
      if (!line.starts_with(head)) continue;
      EXPECT_EQ(rows.count(name), 0u) << "twice: " << name;
      rows[name] = line.substr(head.size(), line.find('`', head.size()) - head.size());
    }
  }
  for (const KeyClass key_class : {KeyClass::kBits, KeyClass::kSchedule}) {
    std::set<std::string> known;
    for (const Key& key : Keys()) {
      // What the program finds out by itself stands behind the keys, in words.
      if (key.key_class == key_class && key.group != "Internal")
        known.insert(FlagOf(key).substr(2));
    }
    const std::vector<std::string> told =
        absl::StrSplit(rows[ClassText(key_class)], ' ', absl::SkipEmpty());
    EXPECT_EQ(std::set<std::string>(told.begin(), told.end()), known) << ClassText(key_class);
  }
}

TEST(Config, ModelTableIsForAUsersModel) {
  const auto config =
      ConfigFromToml("[model]\nname = \"mine\"\ndepth = 3\nrate = 0.5\nwide = true\n", "my.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model, "mine");
  EXPECT_EQ(config->model_keys.at("depth"), "3");
  EXPECT_EQ(config->model_keys.at("rate"), "0.5");
  EXPECT_THAT(config->BitsText(), HasSubstr("model.depth"));
}

TEST(Config, BitsTextHoldsWhatMovesTheResultAndNothingElse) {
  Config a, b;
  b.workers = 7;
  b.redis = "redis://h:1";
  b.keep = 9;
  b.threads = 4;
  b.steps = 5;
  EXPECT_EQ(a.BitsText(), b.BitsText());
  EXPECT_EQ(a.ScheduleText(), b.ScheduleText());
  b.decay_steps = 5;
  EXPECT_NE(a.ScheduleText(), b.ScheduleText());
  EXPECT_THAT(a.BitsText(), Not(HasSubstr("overfit")));  // as in runs made before it existed
  b.overfit = 3;
  b.limit_data = "1%";
  EXPECT_THAT(b.BitsText(), AllOf(HasSubstr("overfit = 3"), HasSubstr("limit_data = \"1%\"")));
  for (const char* key :
       {"seed", "micro_batches", "micro_batch_size", "dropout", "reduction", "layers", "clip"}) {
    EXPECT_THAT(a.BitsText(), HasSubstr(Cat(key, " = "))) << key;
  }
}

}  // namespace
}  // namespace holdfast
