// The mlp, the small models that other tests use, specs and initialisation, and the factories.

#include "runtime/models/mlp.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/model_test_util.h"
#include "tests/models/temp_dir.h"
#include "tests/models/toy_models.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;
using namespace testing_models;  // NOLINT: the helpers of these tests

BuiltInConfig Small() {
  BuiltInConfig config;
  config.model = "mlp";
  config.layers = 3;
  config.embed = 24;
  config.context = 12;
  config.vocab_size = 40;
  config.micro_batch_size = 3;
  return config;
}

TEST(Mlp, GradientsMatchDifferences) {
  for (const double dropout : {0.0, 0.2}) {
    BuiltInConfig config = Small();
    config.dropout = dropout;
    Bench bench(MakeMlp(config));
    const TokenFields data(3, 12, 40, 1);
    // A small step: the loss has kinks.
    ExpectGradientsMatchDifferences(bench, data.At(0, 0), 0.005, 0.03);
  }
}

TEST(Mlp, DoneOnceInOrderWithTheSameBits) {
  Bench bench(MakeMlp(Small()));
  const TokenFields data(3, 12, 40, 2);
  const auto pass = bench.Run(data.At(0, 0));
  ExpectDoneInOrder(bench, *pass);
  EXPECT_EQ(pass->weight, 36);
  EXPECT_TRUE(SameBits(pass->gradients, bench.Run(data.At(0, 0))->gradients));
  const auto eval = bench.Evaluate(data.At(-1, 0));
  EXPECT_TRUE(SameBits(pass->losses, eval->losses));
  ASSERT_EQ(eval->metrics[0].size(), 36u);
  EXPECT_TRUE(SameBits(pass->metrics, eval->metrics));

  auto stream = kernels::CpuDevice().NewAsyncStream();
  TestPass later(bench.spec, &bench.values, *stream, data.At(0, 0));
  ASSERT_TRUE(bench.model->ForwardBackward(later, data.At(0, 0)).ok());
  ASSERT_TRUE(stream->Synchronize(Deadline::After(60'000)).ok());
  EXPECT_TRUE(SameBits(pass->gradients, later.gradients));
}

TEST(Mlp, LearnsAndItsMetricSaysSo) {
  Bench bench(MakeMlp(Small()));
  const TokenFields data(3, 12, 40, 3);
  const Progress progress = TrainFor(bench, {data.At(0, 0)}, 150, 5e-3);
  EXPECT_LT(progress.last, 0.2);
  const auto eval = bench.Evaluate(data.At(-1, 0));
  EXPECT_GE(kernels::SumTerms(36, eval->metrics[0].data()), 34);
}

TEST(Mlp, NextTokenAgreesWithTheLoss) {
  Bench bench(MakeMlp(Small()));
  bench.Stir(0.2f);
  const TokenFields data(1, 12, 40, 5);
  const Floats expected = bench.Evaluate(data.At(-1, 0))->losses;
  const Floats losses = bench.LossesByNextToken(data);
  ASSERT_EQ(losses.size(), 12u);
  for (size_t t = 0; t < losses.size(); ++t) EXPECT_NEAR(losses[t], expected[t], 1e-4) << t;
}

TEST(Mlp, SeesOnlyWhatCameBefore) {
  Bench bench(MakeMlp(Small()));
  TokenFields data(1, 12, 40, 4);
  const Floats before = bench.Evaluate(data.At(-1, 0))->losses;
  data.memory[6] = (data.memory[6] + 1) % 40;
  const Floats after = bench.Evaluate(data.At(-1, 0))->losses;
  for (size_t t = 0; t < 12; ++t) EXPECT_EQ(before[t] == after[t], t < 6) << t;
}

TEST(Toy, GradientMatchesDifferencesAndBuffersMove) {
  Bench bench(ToyTrainer({}).model(""));
  ToyData source({});
  auto data = source.Read(1, 0, 0);
  const MicroBatch batch{.step = 0, .index = 0, .fields = data->fields};
  const auto pass = bench.Run(batch);
  EXPECT_EQ(pass->done, (std::vector<int>{ToyModel::kW, ToyModel::kBias}));
  const double before = pass->loss();
  for (size_t k = 0; k < 5; ++k) bench.values[0][k] -= 1e-3f * pass->gradients[0][k];
  EXPECT_LT(bench.Run(batch)->loss(), before);
  Tensor sum{.data = pass->statistics[0].data(), .shape = {5}};
  Tensor mean{.data = bench.values[ToyModel::kMean].data(), .shape = {5}};
  ASSERT_TRUE(bench.model->UpdateBuffers({&sum, 1}, pass->weight, {&mean, 1}).ok());
  for (size_t k = 0; k < 5; ++k)
    EXPECT_FLOAT_EQ(mean.as<float>()[k], pass->statistics[0][k] * 0.1f / 4.0f);
}

TEST(Toy, StreamsGoOnFromTheirCursors) {
  ToyData source({.streaming = true});
  std::string cursor, next;
  std::vector<float> seen;
  for (int i = 0; i < 3; ++i) {
    auto batch = source.Next(2, cursor, &next);
    ASSERT_TRUE(batch.ok());
    seen.push_back(batch->fields[1].as<float>()[0]);
    EXPECT_EQ(source.Next(2, cursor, &next)->fields[1].as<float>()[0], seen.back());  // repeatable
    cursor = next;
  }
  EXPECT_EQ(cursor, "12");
  EXPECT_NE(seen[0], seen[1]);
  EXPECT_FALSE(source.Next(0, "x", &next).ok());
}

TEST(InitializeTensor, AnySliceGivesTheSameValues) {
  auto stream = kernels::CpuDevice().NewStream();
  for (const char* init : {"normal:0.02", "uniform:0.5", "zeros", "ones"}) {
    const TensorSpec spec{.name = "t", .shape = {1000}, .init = init};
    Floats whole(1000), parts(1000);
    ASSERT_TRUE(InitializeTensor(*stream, spec, 7, 0, 1000, whole.data()).ok());
    for (int64_t first = 0; first < 1000;) {
      const int64_t count = std::min<int64_t>(1000 - first, 1 + first % 97);
      ASSERT_TRUE(InitializeTensor(*stream, spec, 7, first, count, parts.data() + first).ok());
      first += count;
    }
    EXPECT_TRUE(SameBits(whole, parts)) << init;
  }
}

TEST(InitializeTensor, HasTheDistributionAndDependsOnSeedAndName) {
  auto stream = kernels::CpuDevice().NewStream();
  const auto make = [&stream](const char* name, const char* init, uint64_t seed) {
    Floats out(200'000);
    EXPECT_TRUE(InitializeTensor(*stream, {.name = name, .shape = {200'000}, .init = init}, seed, 0,
                                 200'000, out.data())
                    .ok());
    return out;
  };
  const auto moments = [](const Floats& x) {
    double sum = 0, squares = 0;
    for (const float v : x) {
      sum += v;
      squares += double{v} * v;
    }
    return std::make_pair(sum / static_cast<double>(x.size()),
                          std::sqrt(squares / static_cast<double>(x.size())));
  };
  const Floats normal = make("a", "normal:0.02", 1);
  EXPECT_NEAR(moments(normal).first, 0, 0.0003);
  EXPECT_NEAR(moments(normal).second, 0.02, 0.0003);
  const Floats uniform = make("a", "uniform:0.5", 1);
  EXPECT_NEAR(moments(uniform).first, 0, 0.005);
  EXPECT_NEAR(moments(uniform).second, 0.5 / std::sqrt(3.0), 0.005);
  for (const float v : uniform) ASSERT_TRUE(v >= -0.5f && v < 0.5f);
  EXPECT_FALSE(SameBits(normal, make("b", "normal:0.02", 1)));
  EXPECT_FALSE(SameBits(normal, make("a", "normal:0.02", 2)));
}

TEST(ValidateModelSpec, RefusesWhatCannotBeTrained) {
  const ModelSpec good = *ToyModel({}).Describe();
  ASSERT_TRUE(ValidateModelSpec(good).ok());
  const auto error = [&good](const std::function<void(ModelSpec*)>& change) {
    ModelSpec spec = good;
    change(&spec);
    const absl::Status status = ValidateModelSpec(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error([](ModelSpec* s) { s->tensors[1].name = "w"; }),
              HasSubstr("w is declared twice"));
  EXPECT_THAT(error([](ModelSpec* s) { s->tensors[1].name = ""; }), HasSubstr("without a name"));
  EXPECT_THAT(error([](ModelSpec* s) { s->tensors[0].shape = {2, 0}; }), HasSubstr("w: the sizes"));
  EXPECT_THAT(error([](ModelSpec* s) {
                s->tensors[0].shape = {1 << 30, 1 << 30};
              }),
              HasSubstr("w: the sizes"));
  EXPECT_THAT(error([](ModelSpec* s) { s->tensors[0].group = "x"; }),
              HasSubstr("no optimizer group is named x"));
  for (const char* init : {"", "normal", "normal:", "normal:x", "normal:1x", "normal:-1",
                           "normal:inf", "uniform:nan", "zero"}) {
    EXPECT_THAT(error([init](ModelSpec* s) { s->tensors[0].init = init; }),
                HasSubstr("is not one of zeros"))
        << init;
  }
  EXPECT_THAT(error([](ModelSpec* s) { s->optimizers.push_back(s->optimizers[0]); }),
              HasSubstr("declared twice"));
  EXPECT_THAT(error([](ModelSpec* s) { s->metrics = {"a", "a"}; }), HasSubstr("metric 'a'"));
  EXPECT_THAT(error([](ModelSpec* s) { s->max_weight = 0; }), HasSubstr("max_weight"));
  EXPECT_THAT(error([](ModelSpec* s) {
                for (TensorSpec& t : s->tensors) t.role = Role::kFrozen;
              }),
              HasSubstr("no trained tensor"));
}

TEST(BuiltInTrainer, MakesModelsAndDataFromTheConfig) {
  const TempDir dir;
  const std::string toml =
      "layers = 1\nembed = 16\nheads = 2\ncontext = 8\nmicro_batch_size = 2\ndata = [\"" +
      dir.Write("t.txt", SampleText(500)) + "\"]\n";
  const Trainer trainer = BuiltInTrainer();
  for (const char* name : {"gpt", "mlp"}) {
    const std::string text = toml + "model = \"" + name + "\"\n";
    auto data = trainer.data(text);
    ASSERT_TRUE(data.ok()) << data.status();
    Bench bench(trainer.model(text));
    auto batch = (*data)->Read(1, 0, 0);
    ASSERT_TRUE(batch.ok());
    const auto pass = bench.Run({.step = 0, .index = 0, .fields = batch->fields});
    EXPECT_NEAR(pass->loss() / 16, std::log(256.0), 1.0) << name;
    auto held = (*data)->ReadEval((*data)->eval_batches() - 1);
    bench.Evaluate({.step = -1, .index = 0, .training = false, .fields = held->fields});
  }
  EXPECT_THAT(std::string(trainer.model("model = \"rnn\"").status().message()),
              HasSubstr("'rnn' is not known"));
  EXPECT_EQ(trainer.data("data = []").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(trainer.model("layers =").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace holdfast
