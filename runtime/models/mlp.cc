#include "runtime/models/mlp.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ops.h"
#include "runtime/base/status.h"
#include "runtime/models/model_spec.h"
#include "runtime/models/product.h"
#include "runtime/models/token_batch.h"
#include "runtime/models/workspace_layout.h"

namespace holdfast {
namespace {

constexpr int64_t kMaxWindow = 8;
constexpr int kAccuracy = 0;  // index of the metric

struct Sizes {
  int64_t layers = 0, width = 0, context = 0, vocab = 0, batch = 0, window = 0;
  double dropout = 0;
  bool bf16 = false;  // inputs of products are rounded
  int64_t inputs(int64_t layer) const { return layer == 0 ? window * width : width; }
};

// Declared in the order in which the backward pass completes them (see gpt_internal.h).
int HeadBias() { return 0; }
int HeadWeight() { return 1; }
int LayerBias(const Sizes& s, int64_t layer) {
  return static_cast<int>(2 + 2 * (s.layers - 1 - layer));
}
int LayerWeight(const Sizes& s, int64_t layer) { return LayerBias(s, layer) + 1; }
int Table(const Sizes& s) { return static_cast<int>(2 + 2 * s.layers); }

std::string HeInit(int64_t inputs) {
  return NormalInit(std::sqrt(2.0 / static_cast<double>(inputs)));
}

ModelSpec MakeSpec(const Sizes& s) {
  ModelSpec spec;
  spec.optimizers = {{.group = "decay", .decay = true}, {.group = "no_decay", .decay = false}};
  const auto add = [&spec](const std::string& name, std::vector<int64_t> shape,
                           const std::string& init) {
    const std::string group = shape.size() > 1 ? "decay" : "no_decay";
    spec.tensors.push_back({.name = name, .shape = std::move(shape), .group = group, .init = init});
  };
  add("head.bias", {s.vocab}, "zeros");
  add("head.weight", {s.width, s.vocab}, NormalInit(1.0 / std::sqrt(static_cast<double>(s.width))));
  double products = static_cast<double>(s.width * s.vocab);
  for (int64_t l = s.layers - 1; l >= 0; --l) {
    add(Cat("hidden.", l, ".bias"), {s.width}, "zeros");
    add(Cat("hidden.", l, ".weight"), {s.inputs(l), s.width}, HeInit(s.inputs(l)));
    products += static_cast<double>(s.inputs(l) * s.width);
  }
  add("embedding.weight", {s.vocab + 1, s.width},
      NormalInit(0.1));  // the last row: nothing stands there
  spec.metrics = {"accuracy"};
  spec.max_weight = s.batch * s.context;
  spec.flops_per_micro_batch = 6.0 * static_cast<double>(s.batch * s.context) * products;
  return spec;
}

struct Layout {
  int64_t ids = 0, input = 0, hidden = 0, hidden_bytes = 0, logits = 0, losses = 0, hits = 0;
  int64_t d_hidden[2] = {0, 0};
  int64_t d_input = 0, no_positions = 0, d_positions = 0;
  int64_t operand = 0, halves = 0;  // bf16: elements of the largest operand
  int64_t total = 0;
};

Layout MakeLayout(const Sizes& s, int64_t rows) {
  Layout l;
  WorkspaceLayout all;
  const int64_t wide = rows * s.window * s.width, narrow = rows * s.width;
  l.ids = all.AddBytes(rows * s.window * static_cast<int64_t>(sizeof(int32_t)));
  l.input = all.AddFloats(wide);
  l.hidden = all.AddFloats(0);
  for (int64_t i = 0; i < s.layers; ++i) all.AddFloats(narrow);
  l.hidden_bytes = (all.total() - l.hidden) / s.layers;
  l.logits = all.AddFloats(rows * s.vocab);
  l.losses = all.AddFloats(rows);
  l.hits = all.AddFloats(rows);
  for (int64_t& offset : l.d_hidden) offset = all.AddFloats(narrow);
  l.d_input = all.AddFloats(wide);
  l.no_positions = all.AddFloats(s.window * s.width);
  l.d_positions = all.AddFloats(s.window * s.width);
  if (s.bf16) {
    l.operand = std::max({wide, rows * s.vocab, s.window * s.width * s.width, s.width * s.vocab});
    l.halves = all.AddBytes(Products::BytesFor(l.operand));
  }
  l.total = all.total();
  return l;
}

class Mlp final : public Model {
 public:
  explicit Mlp(const Sizes& sizes) : s_(sizes) {}

  absl::StatusOr<ModelSpec> Describe() const override { return MakeSpec(s_); }

  absl::Status ForwardBackward(Pass& pass, const MicroBatch& micro_batch) override {
    HF_ASSIGN_OR_RETURN(const TokenBatch data, Check(micro_batch));
    if (pass.cancelled()) return absl::CancelledError("micro-batch");
    const Layout layout = MakeLayout(s_, data.rows);
    const Run run{pass,
                  pass.stream(),
                  data,
                  layout,
                  pass.Workspace(layout.total).data,
                  micro_batch.training && s_.dropout > 0};
    Forward(run);
    kernels::SoftmaxCrossEntropy(run.stream, {.rows = data.rows, .vocab = s_.vocab}, data.targets,
                                 pass.scale(), run.at(layout.logits), run.at(layout.losses));
    pass.Loss(Tensor{.data = run.at(layout.losses), .shape = {data.rows}}, data.counted);
    Backward(run);
    return absl::OkStatus();
  }

  absl::Status Evaluate(Pass& pass, const MicroBatch& micro_batch) override {
    HF_ASSIGN_OR_RETURN(const TokenBatch data, Check(micro_batch));
    if (pass.cancelled()) return absl::CancelledError("micro-batch");
    const Layout layout = MakeLayout(s_, data.rows);
    const Run run{pass, pass.stream(), data, layout, pass.Workspace(layout.total).data, false};
    Forward(run);
    kernels::CrossEntropyLoss(run.stream, {.rows = data.rows, .vocab = s_.vocab}, data.targets,
                              run.at(layout.logits), run.at(layout.losses));
    pass.Loss(Tensor{.data = run.at(layout.losses), .shape = {data.rows}}, data.counted);
    return absl::OkStatus();
  }

  absl::StatusOr<Tensor> NextToken(Pass& pass, std::span<const int32_t> tokens) override {
    HF_RETURN_IF_ERROR(CheckTokens(tokens, s_.vocab));
    const int64_t rows = std::min(s_.window, static_cast<int64_t>(tokens.size()));
    const std::vector<int32_t> none(static_cast<size_t>(rows), -1);
    const TokenBatch data{.rows = rows,
                          .batch = 1,
                          .context = rows,
                          .tokens = tokens.data() + tokens.size() - rows,
                          .targets = none.data()};
    const Layout layout = MakeLayout(s_, s_.window);
    const Run run{pass, pass.stream(), data, layout, pass.Workspace(layout.total).data, false};
    Forward(run);
    HF_RETURN_IF_ERROR(run.stream.Synchronize(Deadline::After(600'000)));  // it reads `none`
    return Tensor{.data = run.at(layout.logits) + (rows - 1) * s_.vocab, .shape = {s_.vocab}};
  }

 private:
  struct Run {
    Pass& pass;
    kernels::Stream& stream;
    const TokenBatch& data;
    const Layout& layout;
    void* base;
    bool dropout;

    float* at(int64_t offset) const { return At<float>(base, offset); }
    void product(const kernels::MatMulShape& shape, const float* a, const float* b,
                 float* c) const {
      void* scratch = layout.operand > 0 ? At<void>(base, layout.halves) : nullptr;
      Products(scratch, layout.operand)(stream, shape, a, b, c);
    }
    float* hidden(int64_t layer) const { return at(layout.hidden + layer * layout.hidden_bytes); }
    const float* value(int tensor) const { return pass.Value(tensor).as<const float>(); }
    float* gradient(int tensor) const { return pass.Gradient(tensor).as<float>(); }
    int64_t rows() const { return data.rows; }
  };

  absl::StatusOr<TokenBatch> Check(const MicroBatch& micro_batch) const {
    return ViewTokenBatch(micro_batch,
                          {.batch = s_.batch, .context = s_.context, .vocab = s_.vocab});
  }

  // ids[row][k] = the token k - (window - 1) places from this row's, or the row "nothing" before
  // the beginning.
  void Windows(const Run& run) const {
    int32_t* ids = At<int32_t>(run.base, run.layout.ids);
    const int32_t* tokens = run.data.tokens;
    const int64_t rows = run.rows(), context = run.data.context, window = s_.window;
    const auto nothing = static_cast<int32_t>(s_.vocab);
    run.stream.Launch([=] {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t k = 0; k < window; ++k) {
          const int64_t back = window - 1 - k;
          ids[row * window + k] = back <= row % context ? tokens[row - back] : nothing;
        }
      }
    });
  }

  kernels::EmbeddingShape embedding_shape(const Run& run) const {
    return {.batch = run.rows(), .context = s_.window, .width = s_.width, .vocab = s_.vocab + 1};
  }
  kernels::DropoutOptions DropoutAt(const Run& run, int64_t layer) const {
    return {.key = run.pass.random().Key(static_cast<uint32_t>(layer)),
            .keep = static_cast<float>(1.0 - s_.dropout)};
  }

  void Forward(const Run& run) const {
    const Layout& layout = run.layout;
    Windows(run);
    // Places need no embedding: each has weights of its own in the first layer.
    kernels::Fill(run.stream, s_.window * s_.width, 0.0f, run.at(layout.no_positions));
    kernels::EmbeddingForward(run.stream, embedding_shape(run), At<int32_t>(run.base, layout.ids),
                              run.value(Table(s_)), run.at(layout.no_positions),
                              run.at(layout.input));
    const float* x = run.at(layout.input);
    for (int64_t l = 0; l < s_.layers; ++l) {
      float* out = run.hidden(l);
      run.product({.m = run.rows(), .n = s_.width, .k = s_.inputs(l)}, x,
                  run.value(LayerWeight(s_, l)), out);
      kernels::BiasReluForward(run.stream, {.rows = run.rows(), .cols = s_.width},
                               run.value(LayerBias(s_, l)), out, out);
      if (run.dropout)
        kernels::Dropout(run.stream, DropoutAt(run, l), run.rows() * s_.width, out, out);
      x = out;
    }
    float* logits = run.at(layout.logits);
    run.product({.m = run.rows(), .n = s_.vocab, .k = s_.width}, x, run.value(HeadWeight()),
                logits);
    kernels::AddBias(run.stream, {.rows = run.rows(), .cols = s_.vocab}, run.value(HeadBias()),
                     logits);
    kernels::ArgMaxHits(run.stream, {.rows = run.rows(), .vocab = s_.vocab}, run.data.targets,
                        logits, run.at(layout.hits));
    run.pass.Metric(kAccuracy, Tensor{.data = run.at(layout.hits), .shape = {run.rows()}});
  }

  // The weight's gradient is complete before the gradient of its input is computed.
  void WeightBackward(const Run& run, int tensor, int64_t inputs, int64_t outputs, const float* x,
                      const float* d_out, float* d_x) const {
    run.product({.m = inputs, .n = outputs, .k = run.rows(), .transpose_a = true}, x, d_out,
                run.gradient(tensor));
    run.pass.Done(tensor);
    run.product({.m = run.rows(), .n = inputs, .k = outputs, .transpose_b = true}, d_out,
                run.value(tensor), d_x);
  }

  void Backward(const Run& run) const {
    const Layout& layout = run.layout;
    const float* d_logits = run.at(layout.logits);
    kernels::BiasGradient(run.stream, {.rows = run.rows(), .cols = s_.vocab}, d_logits,
                          run.gradient(HeadBias()));
    run.pass.Done(HeadBias());
    float* d_out = run.at(layout.d_hidden[0]);
    WeightBackward(run, HeadWeight(), s_.width, s_.vocab, run.hidden(s_.layers - 1), d_logits,
                   d_out);
    for (int64_t l = s_.layers - 1; l >= 0; --l) {
      if (run.dropout)
        kernels::Dropout(run.stream, DropoutAt(run, l), run.rows() * s_.width, d_out, d_out);
      // A dropped unit is 0 and has gradient 0 here as from ReLU itself: the dropped output serves
      // as its mask.
      kernels::BiasReluBackward(run.stream, {.rows = run.rows(), .cols = s_.width}, run.hidden(l),
                                d_out, d_out, run.gradient(LayerBias(s_, l)));
      run.pass.Done(LayerBias(s_, l));
      const float* x = l == 0 ? run.at(layout.input) : run.hidden(l - 1);
      float* d_x = l == 0 ? run.at(layout.d_input)
                          : run.at(layout.d_hidden[d_out == run.at(layout.d_hidden[0]) ? 1 : 0]);
      WeightBackward(run, LayerWeight(s_, l), s_.inputs(l), s_.width, x, d_out, d_x);
      d_out = d_x;
    }
    float* d_table = run.gradient(Table(s_));
    kernels::Fill(run.stream, (s_.vocab + 1) * s_.width, 0.0f, d_table);
    kernels::EmbeddingBackward(run.stream, embedding_shape(run), At<int32_t>(run.base, layout.ids),
                               d_out, d_table, run.at(layout.d_positions));
    run.pass.Done(Table(s_));
  }

  const Sizes s_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeMlp(const BuiltInConfig& config) {
  if (config.precision == "bf16" && !kernels::Bf16Available())
    return absl::InvalidArgumentError(
        "precision bf16: this CPU has no bf16 products; give --precision fp32 or auto");
  return std::make_unique<Mlp>(Sizes{.layers = config.layers,
                                     .width = config.embed,
                                     .context = config.context,
                                     .vocab = config.vocab(),
                                     .batch = config.micro_batch_size,
                                     .window = std::min(kMaxWindow, config.context),
                                     .dropout = config.dropout,
                                     .bf16 = config.precision == "bf16"});
}

}  // namespace holdfast
