// The order of samples, the held-out part, and the keys that the factories read.

#include "runtime/models/data/window_source.h"

#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/models/built_in_config.h"
#include "runtime/models/data/overfit_source.h"
#include "tests/models/temp_dir.h"

namespace holdfast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_models::SampleText;
using testing_models::TempDir;
using testing_models::Uint16Bytes;

class WindowSourceTest : public ::testing::Test {
 protected:
  WindowOptions Options(size_t size) {
    return {.data = {dir_.Write("t.txt", SampleText(size))},
            .context = 8,
            .micro_batches = 3,
            .micro_batch_size = 2};
  }
  std::unique_ptr<WindowSource> Source(const WindowOptions& options) {
    auto source = WindowSource::Open(options);
    EXPECT_TRUE(source.ok()) << source.status();
    return *std::move(source);
  }
  std::string Error(const WindowOptions& options) {
    auto source = WindowSource::Open(options);
    EXPECT_FALSE(source.ok());
    return std::string(source.status().message());
  }
  TempDir dir_;
};

std::vector<int32_t> Field(const Batch& batch, int field) {
  const Tensor& t = batch.fields[static_cast<size_t>(field)];
  return {t.as<int32_t>(), t.as<int32_t>() + t.elements()};
}

// Of limited data nothing but the beginning counts: the rest may be anything, in length and bytes.
TEST_F(WindowSourceTest, LimitedDataIsItsBeginning) {
  const std::string text = SampleText(4000);
  WindowOptions whole = Options(10);
  whole.data = {dir_.Write("short.txt", text.substr(0, 1000))};
  WindowOptions share = whole, number = whole;
  share.data = {dir_.Write("long.txt", text)};
  share.limit.percent = 25;
  number.data = {dir_.Write("other.txt", text.substr(0, 1000) + std::string(77, 'x'))};
  number.limit.tokens = 1000;
  const std::string fingerprint = Source(whole)->Fingerprint();
  EXPECT_EQ(Source(share)->Fingerprint(), fingerprint);
  EXPECT_EQ(Source(number)->Fingerprint(), fingerprint);
  EXPECT_THAT(Source(share)->Summary(), HasSubstr("limited to the first 1,000 of 4,000"));
  for (int64_t j = 0; j < 3; ++j) {
    EXPECT_EQ(Field(*Source(share)->Read(1, 5, j), 0), Field(*Source(whole)->Read(1, 5, j), 0));
  }
  // Files that lie wholly beyond the limit are not used.
  number.data.push_back(dir_.Write("beyond.txt", "never read"));
  EXPECT_EQ(Source(number)->Fingerprint(), fingerprint);
  share.limit.percent = 0.1;
  EXPECT_THAT(Error(share), AllOf(HasSubstr("too few"), HasSubstr("limit_data")));
  share.limit.percent = 0.001;
  EXPECT_THAT(Error(share), HasSubstr("too few"));
}

TEST_F(WindowSourceTest, OverfitReadsTheSameMicroBatchesAgainAndAgain) {
  auto plain = Source(Options(1000));
  auto source = Overfit(Source(Options(1000)), 3, 4);
  ASSERT_TRUE(source.ok()) << source.status();
  std::set<std::vector<int32_t>> seen;
  for (int64_t step = 0; step < 8; ++step) {
    for (int64_t j = 0; j < 3; ++j) {
      const int64_t number = (step * 3 + j) % 4;
      const auto tokens = Field(*(*source)->Read(1, step, j), 0);
      EXPECT_EQ(tokens, Field(*plain->Read(1, number / 3, number % 3), 0));
      seen.insert(tokens);
    }
  }
  EXPECT_EQ(seen.size(), 4u);
  EXPECT_FALSE((*source)->Read(1, 0, 3).ok());
  EXPECT_EQ((*source)->eval_batches(), plain->eval_batches());
}

TEST_F(WindowSourceTest, TargetsFollowTokensAndComeFromTheText) {
  const std::string text = SampleText(1000);
  auto source = Source(Options(1000));
  for (int64_t step = 0; step < 20; ++step) {
    for (int64_t j = 0; j < 3; ++j) {
      auto batch = source->Read(1, step, j);
      ASSERT_TRUE(batch.ok());
      ASSERT_EQ(batch->fields[0].shape, (std::vector<int64_t>{2, 8}));
      const auto tokens = Field(*batch, 0), targets = Field(*batch, 1);
      for (size_t b = 0; b < 2; ++b) {
        const auto place = static_cast<int64_t>((step * 3 + j) * 2) + static_cast<int64_t>(b);
        const auto start = static_cast<size_t>(source->WindowStart(1, place));
        for (size_t t = 0; t < 8; ++t) {
          ASSERT_EQ(tokens[b * 8 + t], text[start + t]);
          ASSERT_EQ(targets[b * 8 + t], text[start + t + 1]);
        }
      }
    }
  }
}

TEST_F(WindowSourceTest, EveryTokenIsATargetOncePerEpoch) {
  for (const size_t size : {1000u, 1003u, 1007u, 90u}) {
    auto source = Source(Options(size));
    const auto train = static_cast<int64_t>(size) * 9 / 10;
    const int64_t n = source->samples_per_epoch();
    EXPECT_EQ(n, (train - 1) / 8);
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      std::map<int64_t, int> targets;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t start = source->WindowStart(7, epoch * n + i);
        for (int64_t t = 1; t <= 8; ++t) ++targets[start + t];
      }
      EXPECT_EQ(static_cast<int64_t>(targets.size()), n * 8);  // none twice
      EXPECT_GE(targets.begin()->first, 1);
      EXPECT_LT(targets.rbegin()->first, train);  // none held out
    }
  }
}

TEST_F(WindowSourceTest, OrderIsAPureFunctionOfSeedStepAndMicroBatch) {
  const WindowOptions options = Options(2000);
  auto a = Source(options), b = Source(options);
  std::vector<std::vector<int32_t>> forward, backward(30);
  for (int64_t i = 0; i < 30; ++i) forward.push_back(Field(*a->Read(5, i / 3 + 100, i % 3), 0));
  for (int64_t i = 29; i >= 0; --i)
    backward[static_cast<size_t>(i)] = Field(*b->Read(5, i / 3 + 100, i % 3), 0);
  EXPECT_EQ(forward, backward);
  EXPECT_NE(forward[0], Field(*a->Read(6, 100, 0), 0));
  // Other threads read the same.
  std::vector<std::vector<int32_t>> other(30);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = t; i < 30; i += 3)
        other[static_cast<size_t>(i)] = Field(*a->Read(5, i / 3 + 100, i % 3), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(forward, other);
}

TEST_F(WindowSourceTest, ABatchMayStraddleEpochs) {
  WindowOptions options = Options(100);  // 90 tokens to train on: 11 samples, an odd number
  auto source = Source(options);
  ASSERT_EQ(source->samples_per_epoch(), 11);
  ASSERT_TRUE(source->Read(1, 1, 2).ok());  // places 10 and 11
  ASSERT_TRUE(source->Read(1, 1'000'000'000'000, 2).ok());
}

TEST_F(WindowSourceTest, HeldOutWindowsInOrderAndTheLastBatchShort) {
  const std::string text = SampleText(1000);
  WindowOptions options = Options(1000);
  options.micro_batch_size = 5;
  auto source = Source(options);  // 100 tokens held out: 12 windows, batches of 5, 5, 2
  ASSERT_EQ(source->eval_batches(), 3);
  size_t at = 900;
  for (int64_t i = 0; i < 3; ++i) {
    auto batch = source->ReadEval(i);
    ASSERT_TRUE(batch.ok());
    ASSERT_EQ(batch->fields[0].shape[0], i < 2 ? 5 : 2);
    const auto tokens = Field(*batch, 0), targets = Field(*batch, 1);
    for (size_t k = 0; k < tokens.size(); ++k, ++at) {
      ASSERT_EQ(tokens[k], text[at]);
      ASSERT_EQ(targets[k], text[at + 1]);
    }
  }
  EXPECT_FALSE(source->ReadEval(3).ok());
  EXPECT_FALSE(source->ReadEval(-1).ok());
  options.eval_batches = 2;
  EXPECT_EQ(Source(options)->eval_batches(), 2);
  options.eval_batches = 10;
  EXPECT_EQ(Source(options)->eval_batches(), 3);
}

TEST_F(WindowSourceTest, SeparateHeldOutData) {
  WindowOptions options = Options(1000);
  const std::string held = SampleText(50, 2);
  options.eval_data = {dir_.Write("e.txt", held)};
  auto source = Source(options);
  EXPECT_EQ(source->samples_per_epoch(), 999 / 8);
  EXPECT_EQ(source->eval_batches(), 3);
  EXPECT_EQ(Field(*source->ReadEval(0), 0)[0], held[0]);
  EXPECT_THAT(source->Summary(),
              HasSubstr("1,000 training tokens in 1 file, 50 held-out tokens in 1 file"));
}

TEST_F(WindowSourceTest, TooShortSaysTheSizeNeeded) {
  EXPECT_THAT(Error(Options(80)), HasSubstr("context 8 needs 81 tokens"));
  EXPECT_TRUE(WindowSource::Open(Options(81)).ok());
  WindowOptions options = Options(8);
  options.eval_data = {dir_.Write("e.txt", SampleText(9))};
  EXPECT_THAT(Error(options),
              HasSubstr("data: 8 tokens are too few: one sequence with context 8 needs 9"));
  options = Options(9);
  options.eval_data = {dir_.Write("e.txt", SampleText(8))};
  EXPECT_THAT(Error(options), HasSubstr("eval_data: 8 tokens are too few"));
  options.eval_data = {dir_.Write("e.bin", Uint16Bytes({1, 2, 3}))};
  options.vocab_size = 256;
  EXPECT_THAT(Error(options), HasSubstr("of one kind"));
}

TEST_F(WindowSourceTest, RefusesPlacesThatAreNotThere) {
  auto source = Source(Options(1000));
  EXPECT_FALSE(source->Read(1, -1, 0).ok());
  EXPECT_FALSE(source->Read(1, 0, 3).ok());
  EXPECT_FALSE(source->Read(1, 0, -1).ok());
}

TEST_F(WindowSourceTest, FingerprintFollowsContentAndSplit) {
  WindowOptions options = Options(1000);
  const std::string base = Source(options)->Fingerprint();
  EXPECT_EQ(base, Source(options)->Fingerprint());
  std::string changed = SampleText(1000);
  changed[999] = '!';
  options.data = {dir_.Write("u.txt", changed)};
  EXPECT_NE(base, Source(options)->Fingerprint());
  options = Options(1000);
  options.eval_data = {dir_.Write("e.txt", SampleText(100))};
  const std::string with_eval = Source(options)->Fingerprint();
  EXPECT_NE(base, with_eval);
  options.eval_data = {dir_.Write("e2.txt", SampleText(100, 3))};
  EXPECT_NE(with_eval, Source(options)->Fingerprint());
}

TEST(BuiltInConfig, ReadsItsKeysAndLeavesOthers) {
  const auto config = ParseBuiltInConfig(
      "model = \"mlp\"\ndata = [\"a.txt\", \"b.txt\"]\nlayers = 2\nmicro-batches = "
      "7\nmicro_batch_size = 5\n"
      "dropout = 0.25\nseed = \"18446744073709551615\"\nsteps = 10\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model, "mlp");
  EXPECT_EQ(config->data, (std::vector<std::string>{"a.txt", "b.txt"}));
  EXPECT_EQ(config->layers, 2);
  EXPECT_EQ(config->micro_batches, 7);
  EXPECT_EQ(config->micro_batch_size, 5);
  EXPECT_EQ(config->dropout, 0.25);
  EXPECT_EQ(config->seed, ~uint64_t{0});
  EXPECT_EQ(config->vocab(), 256);
}

TEST(BuiltInConfig, RefusesWrongValuesByName) {
  const std::map<std::string, std::string> cases = {
      {"layers = 0", "layers = 0: must be between 1"},
      {"layers = \"4\"", "layers: an integer is expected"},
      {"heads = 1.5", "heads: an integer is expected"},
      {"dropout = 1.0", "dropout = 1: must be at least 0 and below 1"},
      {"dropout = \"no\"", "dropout: a number is expected"},
      {"data = 3", "data: a list of file names is expected"},
      {"data = [1]", "data: its items must be strings"},
      {"model = 1", "model: a string is expected"},
      {"seed = \"x\"", "seed: an integer is expected"},
      {"layers = 1\nlayers =", "line 2"},
  };
  for (const auto& [toml, message] : cases) {
    const auto config = ParseBuiltInConfig(toml);
    ASSERT_FALSE(config.ok()) << toml;
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(message)) << toml;
  }
}

}  // namespace
}  // namespace holdfast
