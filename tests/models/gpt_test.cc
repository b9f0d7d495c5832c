#include "runtime/models/gpt.h"

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/bytes.h"
#include "runtime/models/gpt_internal.h"
#include "tests/models/model_test_util.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;
using namespace testing_models;  // NOLINT: the helpers of these tests

BuiltInConfig Small() {
  BuiltInConfig config;
  config.layers = 2;
  config.heads = 2;
  config.embed = 32;
  config.context = 16;
  config.vocab_size = 64;
  config.micro_batch_size = 2;
  return config;
}

TEST(Gpt, HasTheTensorsOfGpt2) {
  BuiltInConfig config;  // 4 layers, 4 heads, 128 wide, context 64, bytes
  const Bench bench(MakeGpt(config));
  int64_t total = 0;
  for (const TensorSpec& t : bench.spec.tensors) total += ElementsOf(t);
  EXPECT_EQ(total, 834'304);
  EXPECT_EQ(bench.spec.tensors.size(), 4u * 12 + 4);
  EXPECT_EQ(bench.spec.tensors[0].name, "ln_f.weight");
  EXPECT_EQ(bench.spec.tensors[2].name, "h.3.mlp.c_proj.bias");
  EXPECT_EQ(bench.spec.tensors.back().name, "wte.weight");
  EXPECT_EQ(bench.spec.tensors.back().shape, (std::vector<int64_t>{256, 128}));
  for (const TensorSpec& t : bench.spec.tensors) {
    EXPECT_EQ(t.group, t.shape.size() > 1 ? "decay" : "no_decay") << t.name;
    if (t.name.ends_with("c_attn.weight")) {
      EXPECT_EQ(t.shape, (std::vector<int64_t>{128, 384}));
      EXPECT_EQ(t.init, "normal:0.02");
    }
    if (t.name.ends_with("c_proj.weight")) {
      EXPECT_NEAR(std::stod(t.init.substr(7)), 0.02 / std::sqrt(8.0), 1e-15) << t.name;
    }
  }
  // The declared order and the index used by the passes are the same thing.
  const gpt::Index index{4};
  EXPECT_EQ(bench.spec.tensors[static_cast<size_t>(index.layer(2, gpt::kQkvWeight))].name,
            "h.2.attn.c_attn.weight");
  EXPECT_EQ(bench.spec.tensors[static_cast<size_t>(index.layer(0, gpt::kNorm1Bias))].name,
            "h.0.ln_1.bias");
  EXPECT_EQ(bench.spec.tensors[static_cast<size_t>(index.positions())].name, "wpe.weight");
}

TEST(Gpt, StartsNearTheLossOfAGuess) {
  Bench bench(MakeGpt(Small()));
  const TokenFields data(2, 16, 64, 3);
  const auto pass = bench.Run(data.At(0, 0));
  EXPECT_EQ(pass->weight, 32);
  EXPECT_NEAR(pass->loss() / 32, std::log(64.0), 0.05);
}

// Against PyTorch in double precision (make_gradients.py wrote the file).
TEST(Gpt, GradientsEqualPyTorch) {
  std::ifstream file(HOLDFAST_MODEL_TEST_DATA "/gpt_gradients.bin", std::ios::binary);
  ASSERT_TRUE(file) << HOLDFAST_MODEL_TEST_DATA;
  std::stringstream text;
  text << file.rdbuf();
  const std::string bytes = text.str();
  ByteReader in(bytes);
  ASSERT_EQ(in.GetRaw(8), "HFGRAD01");
  BuiltInConfig config;
  config.layers = in.Get<int32_t>();
  config.heads = in.Get<int32_t>();
  config.embed = in.Get<int32_t>();
  config.context = in.Get<int32_t>();
  config.vocab_size = in.Get<int32_t>();
  config.micro_batch_size = in.Get<int32_t>();
  TokenFields data(config.micro_batch_size, config.context, config.vocab_size, 0);
  for (int32_t& token : data.memory) token = in.Get<int32_t>();
  const double loss = in.Get<double>();
  Bench bench(MakeGpt(config));
  ASSERT_EQ(in.Get<int32_t>(), static_cast<int32_t>(bench.spec.tensors.size()));
  Values expected;
  for (size_t i = 0; i < bench.spec.tensors.size(); ++i) {
    ASSERT_EQ(in.GetString(100), bench.spec.tensors[i].name);
    ASSERT_EQ(in.Get<int32_t>(), static_cast<int32_t>(bench.values[i].size()));
    for (float& value : bench.values[i]) value = in.Get<float>();
    expected.emplace_back(bench.values[i].size());
    for (float& g : expected.back()) g = in.Get<float>();
  }
  ASSERT_TRUE(in.AtEnd());

  const auto pass = bench.Run(data.At(0, 0));
  EXPECT_NEAR(pass->loss(), loss, 1e-5 * loss);
  for (size_t i = 0; i < expected.size(); ++i) {
    Floats got = pass->gradients[i], want = expected[i];
    if (bench.spec.tensors[i].name.ends_with("c_attn.bias")) {
      // The middle third belongs to the keys: softmax does not see a constant, the exact gradient
      // is 0.
      const auto c = static_cast<size_t>(config.embed);
      for (size_t k = c; k < 2 * c; ++k) EXPECT_NEAR(got[k], 0, 1e-5);
      std::fill(got.begin() + static_cast<int64_t>(c), got.begin() + static_cast<int64_t>(2 * c),
                0.0f);
      std::fill(want.begin() + static_cast<int64_t>(c), want.begin() + static_cast<int64_t>(2 * c),
                0.0f);
    }
    const double error = RelativeError(got, want);
    EXPECT_LE(error, 1e-4) << bench.spec.tensors[i].name;
    RecordProperty(bench.spec.tensors[i].name, std::to_string(error));
  }
}

TEST(Gpt, GradientsMatchDifferences) {
  Bench bench(MakeGpt(Small()));
  bench.Stir(0.1f);
  const TokenFields data(2, 16, 64, 4);
  ExpectGradientsMatchDifferences(bench, data.At(0, 0), 0.02, 0.02);
}

TEST(Gpt, GradientsMatchDifferencesUnderDropout) {
  BuiltInConfig config = Small();
  config.dropout = 0.2;
  Bench bench(MakeGpt(config));
  bench.Stir(0.1f);
  const TokenFields data(2, 16, 64, 5);
  ExpectGradientsMatchDifferences(bench, data.At(3, 1), 0.02, 0.02);
  // Masks follow (step, micro-batch); evaluation has none.
  const double loss = bench.Run(data.At(3, 1))->loss();
  EXPECT_EQ(loss, bench.Run(data.At(3, 1))->loss());
  EXPECT_NE(loss, bench.Run(data.At(3, 2))->loss());
  EXPECT_NE(loss, bench.Run(data.At(4, 1))->loss());
  EXPECT_EQ(bench.Evaluate(data.At(3, 1))->loss(), bench.Evaluate(data.At(4, 2))->loss());
}

TEST(Gpt, DoneOnceInTheOrderOfDeclaration) {
  for (const double dropout : {0.0, 0.1}) {
    BuiltInConfig config = Small();
    config.layers = 3;
    config.dropout = dropout;
    Bench bench(MakeGpt(config));
    const TokenFields data(2, 16, 64, 6);
    ExpectDoneInOrder(bench, *bench.Run(data.At(0, 0)));
  }
}

TEST(Gpt, SameBitsAgainInOtherThreadsAndOnAnAsynchronousStream) {
  BuiltInConfig config = Small();
  config.dropout = 0.1;
  Bench bench(MakeGpt(config));
  const TokenFields data(2, 16, 64, 7), other(2, 16, 64, 8);
  const Values first = bench.Run(data.At(0, 0))->gradients;
  bench.Run(other.At(0, 1));  // something else in between leaves no trace
  EXPECT_TRUE(SameBits(first, bench.Run(data.At(0, 0))->gradients));
  EXPECT_FALSE(SameBits(first, bench.Run(other.At(0, 0))->gradients));

  std::vector<Values> from_threads(2);
  std::vector<std::thread> threads;
  for (Values& out : from_threads) {
    threads.emplace_back([&config, &data, &out] {
      Bench own(MakeGpt(config));
      for (int i = 0; i < 3; ++i) out = own.Run(data.At(0, 0))->gradients;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Values& got : from_threads) EXPECT_TRUE(SameBits(first, got));

  auto stream = kernels::CpuDevice().NewAsyncStream();
  TestPass pass(bench.spec, &bench.values, *stream, data.At(0, 0));
  ASSERT_TRUE(bench.model->ForwardBackward(pass, data.At(0, 0)).ok());
  ASSERT_TRUE(stream->Synchronize(Deadline::After(60'000)).ok());
  EXPECT_TRUE(SameBits(first, pass.gradients));
}

TEST(Gpt, ScaleIsAnExactFactor) {
  Bench bench(MakeGpt(Small()));
  const TokenFields data(2, 16, 64, 9);
  const auto plain = bench.Run(data.At(0, 0)), scaled = bench.Run(data.At(0, 0), 1024.0f);
  EXPECT_EQ(plain->loss(), scaled->loss());
  for (size_t i = 0; i < plain->gradients.size(); ++i) {
    for (size_t k = 0; k < plain->gradients[i].size(); ++k) {
      ASSERT_EQ(plain->gradients[i][k] * 1024.0f, scaled->gradients[i][k])
          << bench.spec.tensors[i].name;
    }
  }
}

TEST(Gpt, EvaluationGivesTheTrainingLossBitForBit) {
  Bench bench(MakeGpt(Small()));
  const TokenFields data(2, 16, 64, 10);
  EXPECT_TRUE(SameBits(bench.Run(data.At(0, 0))->losses, bench.Evaluate(data.At(-1, 0))->losses));
}

// One token after the other, as `sample` asks, the model says what it says in training.
TEST(Gpt, NextTokenAgreesWithTheLoss) {
  Bench bench(MakeGpt(Small()));
  bench.Stir(0.2f);
  const TokenFields data(1, 16, 64, 13);
  const Floats expected = bench.Evaluate(data.At(-1, 0))->losses;
  const Floats losses = bench.LossesByNextToken(data);
  ASSERT_EQ(losses.size(), 16u);
  for (size_t t = 0; t < losses.size(); ++t) EXPECT_NEAR(losses[t], expected[t], 1e-4) << t;
  // A sequence that is longer than the context: its end counts.
  std::vector<int32_t> longer = {1, 2, 3, 4, 5, 6, 7};
  longer.insert(longer.end(), data.memory.begin(), data.memory.begin() + 16);
  TestPass a(bench.spec, &bench.values, *bench.stream, data.At(-1, 0));
  TestPass b(bench.spec, &bench.values, *bench.stream, data.At(-1, 0));
  const auto of_longer = bench.model->NextToken(a, longer);
  const auto of_end = bench.model->NextToken(b, std::span(longer).last(16));
  ASSERT_TRUE(of_longer.ok() && of_end.ok());
  for (int64_t v = 0; v < 64; ++v)
    EXPECT_EQ(of_longer->as<float>()[v], of_end->as<float>()[v]) << v;
  EXPECT_FALSE(bench.model->NextToken(a, {}).ok());
  longer.back() = 64;
  EXPECT_FALSE(bench.model->NextToken(a, longer).ok());
}

// 16 bits move the third digit, not the second, whatever the hardware multiplies; TF32 on a CPU is
// fp32.
TEST(Gpt, RoundedProductsAreNear) {
  for (const char* precision : {"bf16", "fp16", "tf32"}) {
    SCOPED_TRACE(precision);
    BuiltInConfig config = Small();
    config.precision = precision;
    Bench bench(MakeGpt(Small())), rounded(MakeGpt(config));
    const TokenFields data(2, 16, 64, 12);
    const auto exact = bench.Run(data.At(0, 0)), near = rounded.Run(data.At(0, 0));
    EXPECT_NEAR(near->loss() / 32, exact->loss() / 32, 0.01);
    EXPECT_EQ(SameBits(near->gradients, exact->gradients), config.precision == "tf32");
    EXPECT_TRUE(SameBits(near->gradients, rounded.Run(data.At(0, 0))->gradients));
    for (size_t i = 0; i < exact->gradients.size(); ++i) {
      if (bench.spec.tensors[i].name.ends_with("c_attn.bias")) continue;  // keys: exactly zero
      double difference = 0, norm = 0;
      for (size_t k = 0; k < exact->gradients[i].size(); ++k) {
        difference += std::pow(near->gradients[i][k] - exact->gradients[i][k], 2);
        norm += std::pow(exact->gradients[i][k], 2);
      }
      EXPECT_LT(std::sqrt(difference), 0.05 * std::sqrt(norm)) << bench.spec.tensors[i].name;
    }
  }
}

// The gradient of a batch is the sum of those of its sequences, also where logits are computed in
// several blocks, and for shorter sequences and batches than configured.
TEST(Gpt, SequencesAddUp) {
  BuiltInConfig config = Small();
  config.layers = 1;
  config.embed = 8;
  config.context = 100;
  config.vocab_size = 100'000;  // blocks of 167 rows
  config.micro_batch_size = 4;
  ASSERT_LT(gpt::MakeLayout(
                {.layers = 1, .heads = 2, .width = 8, .context = 100, .vocab = 100'000, .batch = 4},
                Rounding(Precision::kF32, *kernels::CpuDevice().NewStream()), 4, 90, true)
                .logit_rows,
            200);
  Bench bench(MakeGpt(config));
  const TokenFields data(4, 90, 100'000, 11);
  const auto whole = bench.Run(data.At(0, 0));
  Values sum;
  double loss = 0;
  for (int64_t b = 0; b < 4; ++b) {
    std::vector<Tensor> row = data.fields;
    for (Tensor& t : row) {
      t.data = t.as<int32_t>() + b * 90;
      t.shape = {1, 90};
    }
    const auto part = bench.Run({.step = 0, .index = 0, .fields = row});
    loss += part->loss();
    if (sum.empty()) {
      sum = part->gradients;
      continue;
    }
    for (size_t i = 0; i < sum.size(); ++i) {
      for (size_t k = 0; k < sum[i].size(); ++k) sum[i][k] += part->gradients[i][k];
    }
  }
  EXPECT_NEAR(whole->loss(), loss, 1e-5 * loss);
  for (size_t i = 0; i < sum.size(); ++i) {
    if (bench.spec.tensors[i].name.ends_with("c_attn.bias")) continue;  // a third is exactly 0
    EXPECT_LE(RelativeError(whole->gradients[i], sum[i]), 1e-4) << bench.spec.tensors[i].name;
  }
  // Positions that no sequence reached have gradient 0, not garbage.
  const Floats& positions = whole->gradients[whole->gradients.size() - 2];
  for (size_t k = 90 * 8; k < positions.size(); ++k) ASSERT_EQ(positions[k], 0.0f);
}

TEST(Gpt, IgnoredTargetsCountForNothing) {
  Bench bench(MakeGpt(Small()));
  TokenFields data(2, 16, 64, 12);
  for (int i = 16; i < 32; ++i) data.targets()[i] = -1;
  const auto pass = bench.Run(data.At(0, 0));
  EXPECT_EQ(pass->weight, 16);
  std::vector<Tensor> first = data.fields;
  for (Tensor& t : first) t.shape = {1, 16};
  const auto half = bench.Run({.step = 0, .index = 0, .fields = first});
  EXPECT_NEAR(pass->loss(), half->loss(), 1e-6 * half->loss());
  EXPECT_LE(RelativeError(pass->gradients.back(), half->gradients.back()), 1e-5);
}

TEST(Gpt, RefusesSizesAndBatchesThatDoNotFit) {
  BuiltInConfig config = Small();
  config.heads = 3;
  EXPECT_THAT(std::string(MakeGpt(config).status().message()),
              HasSubstr("embed 32 is not divisible by heads 3"));
  config.heads = 1;
  config.embed = 512;
  EXPECT_THAT(std::string(MakeGpt(config).status().message()), HasSubstr("at most 256 wide"));

  Bench bench(MakeGpt(Small()));
  const auto error = [&bench](const MicroBatch& batch) {
    TestPass pass(bench.spec, &bench.values, *bench.stream, batch);
    const absl::Status status = bench.model->ForwardBackward(pass, batch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error(TokenFields(3, 16, 64, 1).At(5, 2)),
              HasSubstr("micro-batch 2 of step 5: [3, 16] tokens; at most [2, 16]"));
  EXPECT_THAT(error(TokenFields(2, 17, 64, 1).At(0, 0)), HasSubstr("at most [2, 16]"));
  TokenFields data(2, 16, 64, 1);
  data.memory[3] = 64;
  EXPECT_THAT(error(data.At(0, 0)), HasSubstr("token 64 is outside the vocabulary of 64"));
  data.memory[3] = -1;
  EXPECT_THAT(error(data.At(0, 0)), HasSubstr("token -1"));
  data.memory[3] = 0;
  data.targets()[0] = 99;
  EXPECT_THAT(error(data.At(0, 0)), HasSubstr("token 99"));
  EXPECT_THAT(error({}), HasSubstr("two fields"));
  data.fields[1].type = Type::kF32;
  EXPECT_THAT(error(data.At(0, 0)), HasSubstr("must be int32"));
}

TEST(Gpt, StopsWhenCancelled) {
  Bench bench(MakeGpt(Small()));
  const TokenFields data(2, 16, 64, 13);
  TestPass pass(bench.spec, &bench.values, *bench.stream, data.At(0, 0));
  pass.cancel = true;
  EXPECT_EQ(bench.model->ForwardBackward(pass, data.At(0, 0)).code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(pass.done.empty());
  TestPass eval(bench.spec, &bench.values, *bench.stream, data.At(-1, 0));
  eval.cancel = true;
  EXPECT_EQ(bench.model->Evaluate(eval, data.At(-1, 0)).code(), absl::StatusCode::kCancelled);
}

TEST(Gpt, LearnsTwoBatchesByHeart) {
  Bench bench(MakeGpt(Small()));
  const TokenFields a(2, 16, 64, 14), b(2, 16, 64, 15);
  const Progress progress = TrainFor(bench, {a.At(0, 0), b.At(1, 0)}, 120, 5e-3);
  EXPECT_GT(progress.first, 4.0);
  EXPECT_LT(progress.last, 0.5);
}

}  // namespace
}  // namespace holdfast
