// Batches of random tokens, one pass through a model, and a check of gradients by differences of
// the loss.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device.h"
#include "runtime/models/model.h"
#include "tests/models/test_pass.h"

namespace holdfast::testing_models {

struct TokenFields {
  TokenFields(int64_t batch, int64_t context, int64_t vocab, uint64_t seed) {
    for (int64_t i = 0; i < 2 * batch * context; ++i) {
      memory.push_back(static_cast<int32_t>(Mix64(seed * 1000003 + static_cast<uint64_t>(i)) %
                                            static_cast<uint64_t>(vocab)));
    }
    fields = {Tensor{.data = memory.data(), .type = Type::kI32, .shape = {batch, context}},
              Tensor{.data = memory.data() + batch * context,
                     .type = Type::kI32,
                     .shape = {batch, context}}};
  }
  MicroBatch At(int64_t step, int64_t index) const {
    return {.step = step, .index = index, .fields = fields};
  }
  int32_t* targets() { return fields[1].as<int32_t>(); }

  std::vector<int32_t> memory;
  std::vector<Tensor> fields;
};

// A model, its spec and a stream on which it runs.
struct Bench {
  explicit Bench(absl::StatusOr<std::unique_ptr<Model>> made, uint64_t seed = 1) {
    kernels::SetComputeThread();
    stream = kernels::CpuDevice().NewStream();
    if (!made.ok()) {
      ADD_FAILURE() << made.status();
      std::abort();
    }
    model = *std::move(made);
    spec = *model->Describe();
    EXPECT_TRUE(ValidateModelSpec(spec).ok()) << ValidateModelSpec(spec);
    values = InitialValues(spec, seed, *stream);
  }

  std::unique_ptr<TestPass> Run(const MicroBatch& batch, float scale = 1.0f) {
    auto pass = std::make_unique<TestPass>(spec, &values, *stream, batch, scale);
    const absl::Status status = model->ForwardBackward(*pass, batch);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(pass->loss_calls, 1);
    return pass;
  }
  std::unique_ptr<TestPass> Evaluate(const MicroBatch& batch) {
    auto pass = std::make_unique<TestPass>(spec, &values, *stream, batch);
    const absl::Status status = model->Evaluate(*pass, batch);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(pass->loss_calls, 1);
    EXPECT_TRUE(pass->done.empty());
    return pass;
  }

  // What `sample` would see: the loss of the targets of one sequence, by the scores of NextToken
  // for every beginning of it.
  Floats LossesByNextToken(const TokenFields& data) {
    Floats losses;
    const MicroBatch batch = data.At(-1, 0);
    const int64_t context = batch.fields[0].shape[1];
    const auto* tokens = batch.fields[0].as<const int32_t>();
    for (int64_t t = 0; t < context; ++t) {
      TestPass pass(spec, &values, *stream, batch);
      const auto logits = model->NextToken(pass, std::span(tokens, static_cast<size_t>(t + 1)));
      EXPECT_TRUE(logits.ok()) << logits.status();
      if (!logits.ok()) return losses;
      losses.push_back(0);
      kernels::CrossEntropyLoss(*stream, {.rows = 1, .vocab = logits->elements()},
                                batch.fields[1].as<const int32_t>() + t, logits->as<float>(),
                                &losses.back());
    }
    return losses;
  }

  // Larger random values than at initialisation, so that every gradient has a size that differences
  // can see.
  void Stir(float deviation) {
    for (size_t i = 0; i < values.size(); ++i) {
      for (size_t k = 0; k < values[i].size(); ++k) {
        const uint64_t bits = Mix64(Mix64(i + 1) + k) >> 40;
        values[i][k] += deviation * (static_cast<float>(bits) / static_cast<float>(1 << 23) - 1.0f);
      }
    }
  }

  std::unique_ptr<kernels::Stream> stream;
  std::unique_ptr<Model> model;
  ModelSpec spec;
  Values values;
};

// The loss moves along each tensor's gradient as the gradient says: central differences of the fp32
// loss.
inline void ExpectGradientsMatchDifferences(Bench& bench, const MicroBatch& batch, double step,
                                            double tolerance) {
  const auto pass = bench.Run(batch);
  for (size_t i = 0; i < bench.spec.tensors.size(); ++i) {
    const Floats& gradient = pass->gradients[i];
    ASSERT_FALSE(gradient.empty()) << bench.spec.tensors[i].name;
    double norm = 0;
    for (const float g : gradient) norm += double{g} * g;
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 1e-3) << bench.spec.tensors[i].name;
    const Floats kept = bench.values[i];
    double losses[2];
    for (const int side : {0, 1}) {
      for (size_t k = 0; k < kept.size(); ++k) {
        bench.values[i][k] =
            kept[k] + static_cast<float>((side == 0 ? -step : step) * gradient[k] / norm);
      }
      losses[side] = bench.Run(batch)->loss();
    }
    bench.values[i] = kept;
    EXPECT_NEAR((losses[1] - losses[0]) / (2 * step) / norm, 1.0, tolerance)
        << bench.spec.tensors[i].name;
  }
}

// Every trained tensor once, in the order of declaration: what the overlap of the reduction with
// the backward pass needs.
inline void ExpectDoneInOrder(const Bench& bench, const TestPass& pass) {
  std::vector<int> expected;
  for (size_t i = 0; i < bench.spec.tensors.size(); ++i) {
    if (bench.spec.tensors[i].role == Role::kTrained) expected.push_back(static_cast<int>(i));
  }
  EXPECT_EQ(pass.done, expected);
  for (const Floats& gradient : pass.gradients) {
    for (const float g : gradient) ASSERT_TRUE(std::isfinite(g));
  }
}

// Some steps of AdamW on the same few batches; the mean loss of a token before the first and after
// the last.
struct Progress {
  double first = 0, last = 0;
};
inline Progress TrainFor(Bench& bench, const std::vector<MicroBatch>& batches, int steps,
                         double learning_rate) {
  Values m, v;
  for (const Floats& value : bench.values) {
    m.emplace_back(value.size(), 0.0f);
    v.emplace_back(value.size(), 0.0f);
  }
  Progress progress;
  for (int s = 1; s <= steps; ++s) {
    const auto pass = bench.Run(batches[static_cast<size_t>(s) % batches.size()]);
    progress.last = pass->loss() / static_cast<double>(pass->weight);
    if (s == 1) progress.first = progress.last;
    for (size_t i = 0; i < bench.values.size(); ++i) {
      kernels::AdamW(*bench.stream,
                     {.learning_rate = learning_rate,
                      .step = s,
                      .gradient_scale = 1.0f / static_cast<float>(pass->weight)},
                     static_cast<int64_t>(m[i].size()), pass->gradients[i].data(),
                     bench.values[i].data(), m[i].data(), v[i].data());
    }
  }
  return progress;
}

}  // namespace holdfast::testing_models
