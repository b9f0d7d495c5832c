// A small model with one of everything that the interface offers, and data for it with random
// access and as streams. For tests of the runtime: made of plain loops, with a hook that sees each
// micro-batch.
//
// Model: p = w . (x - mean) + bias + offset; loss (p - y)^2 / 2. Tensors: w and bias trained,
// offset frozen, mean a buffer (moving average from the statistic x_sum), idle trained but never
// done. Metric: abs_error.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "kernels/device.h"
#include "runtime/base/digest.h"
#include "runtime/base/text.h"
#include "runtime/models/model.h"
#include "runtime/models/workspace_layout.h"

namespace holdfast::testing_models {

struct ToyOptions {
  int64_t width = 5;    // of x
  int64_t samples = 4;  // in a micro-batch
  int64_t eval_batches = 3;
  bool streaming = false;
  int64_t nonfinite_step = -1;  // micro-batch 0 of this step has a NaN in the gradient of w
  int64_t large_step = -1;      // micro-batch 0 of this step has a gradient of 2^40 in w
  // Called at the beginning of every ForwardBackward and Evaluate, on the compute thread.
  std::function<absl::Status(const MicroBatch&)> hook = {};
};

class ToyModel final : public Model {
 public:
  enum Tensors : int { kW, kBias, kOffset, kMean, kIdle };

  explicit ToyModel(ToyOptions options) : o_(std::move(options)) {}

  absl::StatusOr<ModelSpec> Describe() const override {
    ModelSpec spec;
    spec.tensors = {
        {.name = "w", .shape = {o_.width}, .init = "uniform:0.5"},
        {.name = "bias", .shape = {1}, .group = "plain", .init = "zeros"},
        {.name = "offset", .shape = {1}, .role = Role::kFrozen, .init = "ones"},
        {.name = "mean", .shape = {o_.width}, .role = Role::kBuffer, .init = "zeros"},
        {.name = "idle", .shape = {3}, .group = "plain", .init = "normal:1"},
    };
    spec.optimizers = {{.group = "default"}, {.group = "plain", .decay = false}};
    spec.statistics = {{.name = "x_sum", .shape = {o_.width}}};
    spec.metrics = {"abs_error"};
    spec.max_weight = o_.samples;
    return spec;
  }

  absl::Status ForwardBackward(Pass& pass, const MicroBatch& batch) override {
    if (o_.hook) {
      if (absl::Status status = o_.hook(batch); !status.ok()) return status;
    }
    if (pass.cancelled()) return absl::CancelledError("toy");
    float* d_w = pass.Gradient(kW).as<float>();
    float* d_bias = pass.Gradient(kBias).as<float>();
    Compute(pass, batch, d_w, d_bias);
    const bool nonfinite = batch.step == o_.nonfinite_step && batch.index == 0;
    const bool large = batch.step == o_.large_step && batch.index == 0;
    pass.stream().Launch([=] {
      if (nonfinite) d_w[0] = std::numeric_limits<float>::quiet_NaN();
      if (large) d_w[0] = std::ldexp(1.0f, 40);
    });
    pass.Done(kW);
    pass.Done(kBias);
    return absl::OkStatus();
  }

  absl::Status Evaluate(Pass& pass, const MicroBatch& batch) override {
    if (o_.hook) {
      if (absl::Status status = o_.hook(batch); !status.ok()) return status;
    }
    Compute(pass, batch, nullptr, nullptr);
    return absl::OkStatus();
  }

  absl::Status UpdateBuffers(std::span<const Tensor> sums, int64_t weight,
                             std::span<Tensor> buffers) override {
    const float* sum = sums[0].as<const float>();
    float* mean = buffers[0].as<float>();
    for (int64_t d = 0; d < o_.width; ++d) {
      mean[d] = 0.9f * mean[d] + 0.1f * (sum[d] / static_cast<float>(weight));
    }
    return absl::OkStatus();
  }

 private:
  void Compute(Pass& pass, const MicroBatch& batch, float* d_w, float* d_bias) const {
    const int64_t rows = batch.fields[0].shape[0], width = o_.width;
    WorkspaceLayout layout;
    const int64_t losses_at = layout.AddFloats(rows), errors_at = layout.AddFloats(rows);
    const int64_t sums_at = layout.AddFloats(width);
    void* base = pass.Workspace(layout.total()).data;
    float *losses = At<float>(base, losses_at), *errors = At<float>(base, errors_at),
          *sums = At<float>(base, sums_at);
    const float *x = batch.fields[0].as<const float>(), *y = batch.fields[1].as<const float>();
    const float *w = pass.Value(kW).as<const float>(), *mean = pass.Value(kMean).as<const float>();
    const float *bias = pass.Value(kBias).as<const float>(),
                *offset = pass.Value(kOffset).as<const float>();
    const float scale = pass.scale();
    pass.stream().Launch([=] {
      for (int64_t d = 0; d < width; ++d) {
        sums[d] = 0;
        if (d_w != nullptr) d_w[d] = 0;
      }
      if (d_bias != nullptr) d_bias[0] = 0;
      for (int64_t i = 0; i < rows; ++i) {
        float p = bias[0] + offset[0];
        for (int64_t d = 0; d < width; ++d) p += w[d] * (x[i * width + d] - mean[d]);
        const float error = p - y[i];
        losses[i] = 0.5f * error * error;
        errors[i] = std::abs(error);
        for (int64_t d = 0; d < width; ++d) {
          sums[d] += x[i * width + d];
          if (d_w != nullptr) d_w[d] += error * scale * (x[i * width + d] - mean[d]);
        }
        if (d_bias != nullptr) d_bias[0] += error * scale;
      }
    });
    pass.Loss(Tensor{.data = losses, .shape = {rows}}, rows);
    pass.Metric(0, Tensor{.data = errors, .shape = {rows}});
    if (d_w != nullptr) pass.Statistic(0, Tensor{.data = sums, .shape = {width}});
  }

  const ToyOptions o_;
};

// x and y from a counter. As streams, sample n of stream j; the cursor is n as a decimal number.
class ToyData final : public DataSource {
 public:
  explicit ToyData(ToyOptions options) : o_(std::move(options)) {}

  std::string Fingerprint() const override {
    return Cat("toy-", o_.width, o_.streaming ? "-stream" : "");
  }
  std::string Summary() const override { return "made-up samples"; }
  int64_t samples_per_micro_batch() const override { return o_.samples; }
  int64_t tokens_per_micro_batch() const override { return o_.samples; }
  absl::StatusOr<Batch> Read(uint64_t seed, int64_t step, int64_t micro_batch) override {
    if (o_.streaming) return absl::FailedPreconditionError("this source is read as streams");
    return Make(Mix64(seed) ^ Mix64(static_cast<uint64_t>(step * 4099 + micro_batch)), 0);
  }
  int64_t eval_batches() const override { return o_.eval_batches; }
  absl::StatusOr<Batch> ReadEval(int64_t index) override {
    return Make(~Mix64(static_cast<uint64_t>(index)), 0);
  }

  bool streaming() const override { return o_.streaming; }
  absl::StatusOr<Batch> Next(int64_t stream, std::string_view cursor, std::string* next) override {
    int64_t at = 0;
    if (!cursor.empty() && !absl::SimpleAtoi(View(cursor), &at)) {
      return absl::InvalidArgumentError(Cat("cursor '", cursor, "' is not a number"));
    }
    *next = Cat(at + o_.samples);
    return Make(Mix64(static_cast<uint64_t>(stream) + 77), static_cast<uint64_t>(at));
  }

 private:
  absl::StatusOr<Batch> Make(uint64_t key, uint64_t first) const {
    const int64_t rows = o_.samples, width = o_.width;
    auto memory = std::make_shared<std::vector<float>>(static_cast<size_t>(rows * (width + 1)));
    float* x = memory->data();
    float* y = x + rows * width;
    for (int64_t i = 0; i < rows; ++i) {
      const uint64_t sample = Mix64(key ^ Mix64(first + static_cast<uint64_t>(i)));
      y[i] = 2.0f;
      for (int64_t d = 0; d < width; ++d) {
        // In (-1, 1) around 0.25, exact in fp32.
        const uint64_t bits = Mix64(sample + static_cast<uint64_t>(d)) >> 44;
        x[i * width + d] = 0.25f + static_cast<float>(bits) / static_cast<float>(1 << 19) - 1.0f;
        y[i] += static_cast<float>(d - 2) * x[i * width + d];
      }
    }
    Batch batch;
    batch.fields = {Tensor{.data = x, .shape = {rows, width}}, Tensor{.data = y, .shape = {rows}}};
    batch.owner = std::move(memory);
    return batch;
  }

  const ToyOptions o_;
};

inline Trainer ToyTrainer(const ToyOptions& options) {
  return {.model = [options](std::string_view) -> absl::StatusOr<std::unique_ptr<Model>> {
            return std::make_unique<ToyModel>(options);
          },
          .data = [options](std::string_view) -> absl::StatusOr<std::unique_ptr<DataSource>> {
            return std::make_unique<ToyData>(options);
          },
          .optimizer = nullptr};
}

}  // namespace holdfast::testing_models
