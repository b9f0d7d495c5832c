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
  Precision precision = Precision::kF32;
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
  int64_t input = 0, hidden = 0, hidden_bytes = 0, logits = 0, losses = 0, hits = 0;
  int64_t d_hidden[2] = {0, 0};
  int64_t d_input = 0, no_positions = 0, d_positions = 0;
  // Rounded copies of what the forward pass makes, for both passes.
  int64_t kept_input = 0, kept_hidden = 0, kept_bytes = 0;
  Products::Sizes product_sizes;
  int64_t products = 0;  // scratch of them
  int64_t total = 0;
};

Layout MakeLayout(const Sizes& s, const Rounding& rounding, int64_t rows) {
  Layout l;
  WorkspaceLayout all;
  const int64_t wide = rows * s.window * s.width, narrow = rows * s.width;
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
  if (rounding.rounds) {
    l.kept_input = all.AddBytes(rounding.OperandBytes(wide));
    l.kept_hidden = all.AddFloats(0);
    for (int64_t i = 0; i < s.layers; ++i) all.AddBytes(rounding.OperandBytes(narrow));
    l.kept_bytes = (all.total() - l.kept_hidden) / s.layers;
  }
  l.product_sizes = {.weight = std::max(s.window * s.width * s.width, s.width * s.vocab),
                     .gradient = std::max(rows * s.vocab, narrow)};
  l.products = all.AddBytes(Products::ScratchBytes(rounding, l.product_sizes));
  l.total = all.total();
  return l;
}

class Mlp final : public Model {
 public:
  explicit Mlp(const Sizes& sizes) : s_(sizes) {}

  absl::StatusOr<ModelSpec> Describe() const override { return MakeSpec(s_); }

  absl::Status Prepare(DeviceKind) override { return absl::OkStatus(); }

  absl::Status ForwardBackward(Pass& pass, const MicroBatch& micro_batch) override {
    HF_ASSIGN_OR_RETURN(const TokenBatch data, Check(pass, micro_batch));
    if (pass.cancelled()) return absl::CancelledError("micro-batch");
    const Rounding rounding(s_.precision, pass.stream());
    const Layout layout = MakeLayout(s_, rounding, data.rows);
    const Run run{pass,
                  data,
                  Windows(pass, data.tokens, data),
                  rounding,
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
    HF_ASSIGN_OR_RETURN(const TokenBatch data, Check(pass, micro_batch));
    if (pass.cancelled()) return absl::CancelledError("micro-batch");
    const Rounding rounding(s_.precision, pass.stream());
    const Layout layout = MakeLayout(s_, rounding, data.rows);
    const Run run{pass,     data,   Windows(pass, data.tokens, data),
                  rounding, layout, pass.Workspace(layout.total).data,
                  false};
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
    TokenBatch data{
        .rows = rows, .batch = 1, .context = rows, .tokens = tokens.data() + tokens.size() - rows};
    data.targets = UploadTokens(pass, none.data(), rows);
    const Rounding rounding(s_.precision, pass.stream());
    const Layout layout = MakeLayout(s_, rounding, s_.window);
    const Run run{pass,     data,   Windows(pass, data.tokens, data),
                  rounding, layout, pass.Workspace(layout.total).data,
                  false};
    Forward(run);
    HF_RETURN_IF_ERROR(run.stream.Synchronize(Deadline::After(600'000)));  // it reads `none`
    return Tensor{.data = run.at(layout.logits) + (rows - 1) * s_.vocab, .shape = {s_.vocab}};
  }

 private:
  struct Run {
    Pass& pass;
    const TokenBatch& data;  // its tokens in host memory
    const int32_t* ids;
    const Rounding& rounding;
    const Layout& layout;
    void* base;
    bool dropout;
    kernels::Stream& stream = pass.stream();
    Products product{rounding, stream, At<void>(base, layout.products), layout.product_sizes};

    float* at(int64_t offset) const { return At<float>(base, offset); }
    float* hidden(int64_t layer) const { return at(layout.hidden + layer * layout.hidden_bytes); }
    // The input of the first layer (-1), or what a layer gives, as products take it.
    void* kept(int64_t layer) const {
      if (!rounding.rounds) return layer < 0 ? at(layout.input) : hidden(layer);
      return At<void>(
          base, layer < 0 ? layout.kept_input : layout.kept_hidden + layer * layout.kept_bytes);
    }
    const float* value(int tensor) const { return pass.Value(tensor).as<const float>(); }
    Operand weight(int tensor) const {
      return product.TakeWeight(value(tensor), pass.Value(tensor).elements());
    }
    float* gradient(int tensor) const { return pass.Gradient(tensor).as<float>(); }
    int64_t rows() const { return data.rows; }
  };

  // The batch, checked in host memory; its targets where the model computes (tokens are only read
  // by Windows).
  absl::StatusOr<TokenBatch> Check(Pass& pass, const MicroBatch& micro_batch) const {
    HF_ASSIGN_OR_RETURN(
        TokenBatch data,
        ViewTokenBatch(micro_batch, {.batch = s_.batch, .context = s_.context, .vocab = s_.vocab}));
    data.targets = UploadTokens(pass, data.targets, data.rows);
    return data;
  }

  // ids[row][k] = the token k - (window - 1) places from this row's, or the row "nothing" before
  // the beginning. Made in host memory that stays until the next micro-batch.
  const int32_t* Windows(Pass& pass, const int32_t* tokens, const TokenBatch& data) {
    ids_.resize(static_cast<size_t>(data.rows * s_.window));
    const auto nothing = static_cast<int32_t>(s_.vocab);
    for (int64_t row = 0; row < data.rows; ++row) {
      for (int64_t k = 0; k < s_.window; ++k) {
        const int64_t back = s_.window - 1 - k;
        ids_[row * s_.window + k] = back <= row % data.context ? tokens[row - back] : nothing;
      }
    }
    return UploadTokens(pass, ids_.data(), data.rows * s_.window);
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
    // Places need no embedding: each has weights of its own in the first layer.
    kernels::Fill(run.stream, s_.window * s_.width, 0.0f, run.at(layout.no_positions));
    kernels::EmbeddingForward(run.stream, embedding_shape(run), run.ids, run.value(Table(s_)),
                              run.at(layout.no_positions), run.at(layout.input));
    Operand x = run.product.Copy(run.at(layout.input), run.rows() * s_.inputs(0), run.kept(-1));
    for (int64_t l = 0; l < s_.layers; ++l) {
      float* out = run.hidden(l);
      run.product({.m = run.rows(), .n = s_.width, .k = s_.inputs(l)}, x,
                  run.weight(LayerWeight(s_, l)), out);
      kernels::BiasReluForward(run.stream, {.rows = run.rows(), .cols = s_.width},
                               run.value(LayerBias(s_, l)), out, out);
      if (run.dropout)
        kernels::Dropout(run.stream, DropoutAt(run, l), run.rows() * s_.width, out, out);
      x = run.product.Copy(out, run.rows() * s_.width, run.kept(l));
    }
    float* logits = run.at(layout.logits);
    run.product({.m = run.rows(), .n = s_.vocab, .k = s_.width}, x, run.weight(HeadWeight()),
                logits, run.value(HeadBias()));
    kernels::ArgMaxHits(run.stream, {.rows = run.rows(), .vocab = s_.vocab}, run.data.targets,
                        logits, run.at(layout.hits));
    run.pass.Metric(kAccuracy, Tensor{.data = run.at(layout.hits), .shape = {run.rows()}});
  }

  // The weight's gradient is complete before the gradient of its input is computed. `layer`: whose
  // output was the input (-1: the embedding).
  void WeightBackward(const Run& run, int tensor, int64_t inputs, int64_t outputs, int64_t layer,
                      const float* d_out, float* d_x) const {
    const Operand gradient = run.product.TakeGradient(d_out, run.rows() * outputs);
    run.product({.m = inputs, .n = outputs, .k = run.rows(), .transpose_a = true},
                {run.kept(layer)}, gradient, run.gradient(tensor));
    run.pass.Done(tensor);
    run.product({.m = run.rows(), .n = inputs, .k = outputs, .transpose_b = true}, gradient,
                run.weight(tensor), d_x);
  }

  void Backward(const Run& run) const {
    const Layout& layout = run.layout;
    const float* d_logits = run.at(layout.logits);
    kernels::BiasGradient(run.stream, {.rows = run.rows(), .cols = s_.vocab}, d_logits,
                          run.gradient(HeadBias()));
    run.pass.Done(HeadBias());
    float* d_out = run.at(layout.d_hidden[0]);
    WeightBackward(run, HeadWeight(), s_.width, s_.vocab, s_.layers - 1, d_logits, d_out);
    for (int64_t l = s_.layers - 1; l >= 0; --l) {
      if (run.dropout)
        kernels::Dropout(run.stream, DropoutAt(run, l), run.rows() * s_.width, d_out, d_out);
      // A dropped unit is 0 and has gradient 0 here as from ReLU itself: the dropped output serves
      // as its mask.
      kernels::BiasReluBackward(run.stream, {.rows = run.rows(), .cols = s_.width}, run.hidden(l),
                                d_out, d_out, run.gradient(LayerBias(s_, l)));
      run.pass.Done(LayerBias(s_, l));
      float* d_x = l == 0 ? run.at(layout.d_input)
                          : run.at(layout.d_hidden[d_out == run.at(layout.d_hidden[0]) ? 1 : 0]);
      WeightBackward(run, LayerWeight(s_, l), s_.inputs(l), s_.width, l - 1, d_out, d_x);
      d_out = d_x;
    }
    float* d_table = run.gradient(Table(s_));
    kernels::Fill(run.stream, (s_.vocab + 1) * s_.width, 0.0f, d_table);
    kernels::EmbeddingBackward(run.stream, embedding_shape(run), run.ids, d_out, d_table,
                               run.at(layout.d_positions));
    run.pass.Done(Table(s_));
  }

  const Sizes s_;
  std::vector<int32_t> ids_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeMlp(const BuiltInConfig& config) {
  HF_ASSIGN_OR_RETURN(const Precision precision, PrecisionOf(config.precision));
  return std::make_unique<Mlp>(Sizes{.layers = config.layers,
                                     .width = config.embed,
                                     .context = config.context,
                                     .vocab = config.vocab(),
                                     .batch = config.micro_batch_size,
                                     .window = std::min(kMaxWindow, config.context),
                                     .dropout = config.dropout,
                                     .precision = precision});
}

}  // namespace holdfast
