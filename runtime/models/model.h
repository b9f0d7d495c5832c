// The interface between the runtime and what it trains. The built-in models are written on it and
// on nothing else; a user's own trainer implements Model and DataSource (and, if he wants another
// rule, Optimizer) and hands factories to Main() (runtime/cli/main.h).
//
// What the runtime promises to a model: the same (values, micro-batch, random) gives a call
// wherever the micro-batch is computed; gradients, loss and metrics of the micro-batches are added
// without regard to order. What a model promises: ForwardBackward is a pure function of those
// three. Then the run's bits do not depend on the number of workers.
//
// Threads: one Model instance for each compute thread, used by that thread only. DataSource is
// shared: thread-safe. Errors: absl::Status; kCancelled after Pass::cancelled() said so; any other
// error ends the run with its message.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast {

namespace kernels {
class Stream;
}

enum class Type : uint8_t { kF32, kBf16, kF16, kI32, kI64, kU8, kU16 };
enum class DeviceKind : uint8_t { kCpu, kCuda };

int64_t TypeBytes(Type type);

// The Type of a C++ type: TypeOf<float>() == Type::kF32.
template <typename T>
constexpr Type TypeOf() {
  if constexpr (std::is_same_v<T, float>) return Type::kF32;
  if constexpr (std::is_same_v<T, int32_t>) return Type::kI32;
  if constexpr (std::is_same_v<T, int64_t>) return Type::kI64;
  if constexpr (std::is_same_v<T, uint8_t>) return Type::kU8;
  if constexpr (std::is_same_v<T, uint16_t>) return Type::kU16;
}

// A view of memory that somebody else owns: dense, row-major.
struct Tensor {
  void* data = nullptr;
  Type type = Type::kF32;
  DeviceKind device = DeviceKind::kCpu;
  std::vector<int64_t> shape = {};

  int64_t elements() const {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return n;
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// kTrained: fp32 master, optimizer slots, gradient. kFrozen: part of the state, never changed.
// kBuffer: changed by UpdateBuffers only (batch-norm statistics, averaged weights). State tensors
// are fp32.
enum class Role : uint8_t { kTrained, kFrozen, kBuffer };

struct TensorSpec {  // order of declaration = order of reduction and of the digest
  std::string name = {};
  std::vector<int64_t> shape = {};
  Role role = Role::kTrained;
  std::string group = "default";  // names an OptimizerSpec
  std::string init =
      "normal:0.02";  // zeros | ones | normal:SD | uniform:A; Philox(seed, name, index)
};

struct OptimizerSpec {  // learning rate, betas and epsilon come from the config; a group may scale
                        // or replace them
  std::string group = "default";
  std::string rule = "adamw";  // adamw | sgd | a user's own, by name
  double lr_scale = 1;
  bool decay =
      true;  // false: no weight decay in this group (biases, gains, embeddings of positions)
};

struct ModelSpec {  // pure function of the config; equal on all workers; part of the fingerprint
  std::vector<TensorSpec> tensors = {};
  std::vector<OptimizerSpec> optimizers = {OptimizerSpec{}};
  std::vector<TensorSpec> statistics =
      {};  // fp32, summed order-free over the micro-batches, handed to UpdateBuffers
  std::vector<std::string> metrics = {};  // summed order-free, logged as sum / weight
  int64_t max_weight = 1;  // bound of one micro-batch's weight (tokens); sets the fixed-point range
  double flops_per_micro_batch =
      0;  // floating-point operations of one ForwardBackward, for the log line; 0 = unknown
};

// Random bits from a counter (Philox) keyed by (seed, step, micro-batch): a recomputed micro-batch
// draws the same.
class Random {
 public:
  virtual ~Random() = default;
  // A 64-bit Philox key for `site`, an arbitrary number that names one place in the model.
  virtual uint64_t Key(uint32_t site) const = 0;
};

struct MicroBatch {
  int64_t step = 0, index = 0;  // for evaluation: step = -1, index = number of the held-out batch
  bool training = true;
  // What DataSource::Read gave, in host memory; shapes may vary with (step, index) only.
  std::span<const Tensor> fields = {};
};

// The runtime's side of one micro-batch. Stream-ordered; nothing here blocks, except that Done may
// convert and add the gradient on the calling thread. Used by one thread.
class Pass {
 public:
  virtual ~Pass() = default;
  virtual kernels::Stream& stream() = 0;
  virtual const Tensor& Value(int tensor) const = 0;  // the parameters; never written by the model
  virtual Tensor Gradient(
      int tensor) = 0;  // scratch, UNINITIALISED: overwrite; valid until Done(tensor)
  const float* values(int tensor) const { return Value(tensor).as<const float>(); }
  float* gradient(int tensor) { return Gradient(tensor).as<float>(); }
  virtual void Done(int tensor) = 0;  // gradient complete: added, perhaps sent. Never called = zero
  virtual float scale()
      const = 0;  // power of two; multiply the loss's derivative by it at the head
  // Values handed in below lie where the model computes and are read in stream order.
  //
  // Sum of the per-item losses (not divided by anything) and the number of items counted. Call
  // exactly once. terms: fp32, added in index order; 0 <= weight <= max_weight.
  virtual void Loss(const Tensor& terms, int64_t weight) = 0;
  void Loss(const float* terms, int64_t count, int64_t weight) {
    Loss(Tensor{.data = const_cast<float*>(terms), .shape = {count}}, weight);
  }
  virtual void Metric(int metric, const Tensor& terms) = 0;
  void Metric(int metric, const float* terms, int64_t count) {
    Metric(metric, Tensor{.data = const_cast<float*>(terms), .shape = {count}});
  }
  virtual void Statistic(int statistic, const Tensor& value) = 0;
  // Scratch of at least `bytes`, 64-byte aligned, valid until the end of this micro-batch; reused
  // by the next one. The sequence of calls should be the same each time: then nothing is allocated
  // in a step.
  virtual Tensor Workspace(int64_t bytes) = 0;
  template <typename T>
  T* Scratch(int64_t elements) {
    return Workspace(elements * static_cast<int64_t>(sizeof(T))).template as<T>();
  }
  // A host tensor (a field of the micro-batch) where the model computes: itself on the CPU, on a
  // GPU a copy in the workspace, complete in stream order.
  virtual Tensor Upload(const Tensor& host) { return host; }
  virtual Random& random() = 0;
  virtual bool cancelled() const = 0;  // a regroup waits: return absl::CancelledError() soon
};

class Model {
 public:
  virtual ~Model() = default;
  virtual absl::StatusOr<ModelSpec> Describe() const = 0;
  virtual absl::Status Prepare(DeviceKind device) {
    return device == DeviceKind::kCpu ? absl::OkStatus()
                                      : absl::UnimplementedError("this model runs on the CPU only");
  }
  // The gradient of (sum of item losses) * scale() for every trained tensor, and the loss.
  virtual absl::Status ForwardBackward(Pass& pass, const MicroBatch& batch) = 0;
  // Loss and Metric only. Called for the held-out batches: a data source without any needs none.
  virtual absl::Status Evaluate(Pass& /*pass*/, const MicroBatch& /*batch*/) {
    return absl::UnimplementedError(
        "this model has no Evaluate(), but its data has held-out batches");
  }
  // For `holdfast sample`, if this is a model of token sequences: the scores (logits, fp32 [vocab])
  // of every token that may follow `tokens`, of which the last ones count where the model's context
  // is shorter. In the workspace: valid until the next micro-batch. At least one token is given.
  virtual absl::StatusOr<Tensor> NextToken(Pass& /*pass*/, std::span<const int32_t> /*tokens*/) {
    return absl::UnimplementedError("this model has no NextToken()");
  }
  // Once a step, equal on all workers: new values of the kBuffer tensors (in order of declaration)
  // from the summed statistics and the summed weight.
  virtual absl::Status UpdateBuffers(std::span<const Tensor> /*sums*/, int64_t /*weight*/,
                                     std::span<Tensor> /*buffers*/) {
    return absl::OkStatus();
  }
};

// A rule of one's own. Elementwise: slices of any size may be passed.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual int slots() const = 0;  // fp32 values kept per parameter, 0..2
  virtual absl::Status Update(const OptimizerSpec& spec, int64_t step, double learning_rate,
                              double weight_decay, std::span<float> value,
                              std::span<const float> gradient,
                              std::span<const std::span<float>> slots) = 0;
};

// One batch of data that Read or Next produced: tensors and the memory behind them.
struct Batch {
  std::vector<Tensor> fields = {};
  std::shared_ptr<void> owner = {};

  // Appends a field with memory of its own, zeroed, and returns where it lies.
  template <typename T>
  T* Add(std::vector<int64_t> shape) {
    Tensor field{.type = TypeOf<T>(), .shape = std::move(shape)};
    auto memory = std::make_shared<std::pair<std::shared_ptr<void>, std::vector<T>>>(
        std::move(owner), std::vector<T>(static_cast<size_t>(field.elements())));
    field.data = memory->second.data();
    owner = std::move(memory);
    fields.push_back(std::move(field));
    return fields.back().as<T>();
  }
};

// Called by several threads, and again after a regroup: thread-safe and repeatable.
class DataSource {
 public:
  virtual ~DataSource() = default;
  virtual std::string Fingerprint()
      const = 0;  // digest of the contents: changed data is refused on resume
  // For people: "1,003,854 training tokens in 1 file, ..."
  virtual std::string Summary() const { return Fingerprint(); }
  // Random access: the samples of micro-batch j of step s, a pure function of its arguments. Not
  // called for a streaming source.
  virtual absl::StatusOr<Batch> Read(uint64_t /*seed*/, int64_t /*step*/, int64_t /*micro_batch*/) {
    return absl::UnimplementedError("this data source has neither Read() nor Next()");
  }
  virtual int64_t samples_per_micro_batch() const = 0;
  // For tokens/s; samples where there are no tokens.
  virtual int64_t tokens_per_micro_batch() const { return samples_per_micro_batch(); }
  // Held-out batches, 0 <= index < eval_batches(); their content never depends on the world size or
  // the step.
  virtual int64_t eval_batches() const { return 0; }
  virtual absl::StatusOr<Batch> ReadEval(int64_t /*index*/) {
    return absl::UnimplementedError("no held-out data");
  }
  // Streaming sources: micro-batch j always reads logical stream j (M streams at any world size).
  // The cursor (<= 255 B, opaque, "" at first) is state: all M are gathered and committed with the
  // step, so a retry or a new owner reads the same samples.
  virtual bool streaming() const { return false; }
  virtual absl::StatusOr<Batch> Next(int64_t /*stream*/, std::string_view /*cursor*/,
                                     std::string* /*next*/) {
    return absl::UnimplementedError("random access");
  }
};

// Factories, not objects: the supervisor is the same program and must not build a model. `toml`:
// the resolved config (runtime/models/settings.h reads it). `name`: the value of the key `model`
// where the user gives none; a program with a model of its own sets it.
struct Trainer {
  std::string name = "gpt";
  std::function<absl::StatusOr<std::unique_ptr<Model>>(std::string_view toml)> model = {};
  std::function<absl::StatusOr<std::unique_ptr<DataSource>>(std::string_view toml)> data = {};
  std::function<std::unique_ptr<Optimizer>(std::string_view rule)> optimizer =
      {};  // may be empty: built-in rules only
};

// The built-in models (gpt, mlp, chosen by the config key `model`) and the built-in data sources.
Trainer BuiltInTrainer();

}  // namespace holdfast
