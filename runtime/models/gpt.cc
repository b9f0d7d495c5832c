#include "runtime/models/gpt.h"

#include <cmath>
#include <string>

#include "kernels/ops.h"
#include "runtime/base/status.h"
#include "runtime/models/gpt_internal.h"
#include "runtime/models/model_spec.h"
#include "runtime/models/product.h"
#include "runtime/models/token_batch.h"

namespace holdfast {
namespace gpt {
namespace {

constexpr double kInitDeviation = 0.02;

// Dropout sites: the embedding, then two in each block.
constexpr uint32_t kEmbeddingSite = 0;
uint32_t AttentionSite(int64_t layer) { return static_cast<uint32_t>(1 + 2 * layer); }
uint32_t MlpSite(int64_t layer) { return static_cast<uint32_t>(2 + 2 * layer); }

void AddLayerSpecs(const Sizes& s, int64_t layer, std::vector<TensorSpec>* tensors) {
  const std::string prefix = Cat("h.", layer, ".");
  const std::string normal = NormalInit(kInitDeviation);
  const std::string residual =
      NormalInit(kInitDeviation / std::sqrt(2.0 * static_cast<double>(s.layers)));
  const int64_t c = s.width;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape,
                       const std::string& init) {
    const std::string group = shape.size() > 1 ? "decay" : "no_decay";
    tensors->push_back(
        {.name = prefix + name, .shape = std::move(shape), .group = group, .init = init});
  };
  // In the order of LayerTensor.
  add("mlp.c_proj.bias", {c}, "zeros");
  add("mlp.c_proj.weight", {4 * c, c}, residual);
  add("mlp.c_fc.bias", {4 * c}, "zeros");
  add("mlp.c_fc.weight", {c, 4 * c}, normal);
  add("ln_2.weight", {c}, "ones");
  add("ln_2.bias", {c}, "zeros");
  add("attn.c_proj.bias", {c}, "zeros");
  add("attn.c_proj.weight", {c, c}, residual);
  add("attn.c_attn.bias", {3 * c}, "zeros");
  add("attn.c_attn.weight", {c, 3 * c}, normal);
  add("ln_1.weight", {c}, "ones");
  add("ln_1.bias", {c}, "zeros");
}

ModelSpec MakeSpec(const Sizes& s) {
  ModelSpec spec;
  spec.optimizers = {{.group = "decay", .decay = true}, {.group = "no_decay", .decay = false}};
  spec.tensors.push_back(
      {.name = "ln_f.weight", .shape = {s.width}, .group = "no_decay", .init = "ones"});
  spec.tensors.push_back(
      {.name = "ln_f.bias", .shape = {s.width}, .group = "no_decay", .init = "zeros"});
  for (int64_t l = s.layers - 1; l >= 0; --l) AddLayerSpecs(s, l, &spec.tensors);
  const std::string normal = NormalInit(kInitDeviation);
  spec.tensors.push_back(
      {.name = "wpe.weight", .shape = {s.context, s.width}, .group = "decay", .init = normal});
  spec.tensors.push_back(
      {.name = "wte.weight", .shape = {s.vocab, s.width}, .group = "decay", .init = normal});
  spec.max_weight = s.batch * s.context;
  // Two operations for each product and sum; the backward pass is twice the forward pass. A causal
  // score matrix is half full.
  const auto tokens = static_cast<double>(s.batch * s.context),
             width = static_cast<double>(s.width);
  const double products =
      width * (12.0 * width * static_cast<double>(s.layers) + static_cast<double>(s.vocab));
  const double attention = static_cast<double>(s.layers * s.context) * width;
  spec.flops_per_micro_batch = 6.0 * tokens * (products + attention);
  return spec;
}

// One micro-batch: what every part of the two passes needs.
struct Run {
  const Sizes& sizes;
  const Layout& layout;
  const Index& index;
  Pass& pass;
  kernels::Stream& stream;
  const TokenBatch& data;
  const Rounding& rounding;
  void* base;
  bool dropout;
  Products product{rounding, stream, At<void>(base, layout.products), layout.product_sizes};

  const float* value(int tensor) const { return pass.Value(tensor).as<const float>(); }
  const float* value(int64_t layer, LayerTensor t) const { return value(index.layer(layer, t)); }
  float* gradient(int tensor) const { return pass.Gradient(tensor).as<float>(); }
  float* at(int64_t offset) const { return At<float>(base, offset); }
  Operand weight(int tensor) const {
    return product.TakeWeight(value(tensor), pass.Value(tensor).elements());
  }
  Activations layer(int64_t l) const { return ActivationsOf(layout, base, l); }
  // The residual stream as it enters a block, or as it leaves the last one.
  float* stream_before(int64_t l) const { return l == 0 ? at(layout.input) : layer(l - 1).out; }

  Operand final_norm() const { return {At<void>(base, layout.final_norm)}; }
  int64_t rows() const { return data.rows; }
  int64_t width() const { return sizes.width; }
  int64_t narrow() const { return data.rows * sizes.width; }
  kernels::LayerNormShape norm_shape() const { return {.rows = rows(), .cols = width()}; }
  kernels::AttentionShape attention_shape() const {
    return {.batch = data.batch,
            .context = data.context,
            .heads = sizes.heads,
            .head_dim = width() / sizes.heads,
            .half_products = rounding.rounds && rounding.half == kernels::Half::kBf16};
  }
  kernels::EmbeddingShape embedding_shape() const {
    return {.batch = data.batch, .context = data.context, .width = width(), .vocab = sizes.vocab};
  }
  kernels::DropoutOptions dropout_at(uint32_t site) const {
    return {.key = pass.random().Key(site), .keep = static_cast<float>(1.0 - sizes.dropout)};
  }
};

// out[rows, n] = x[rows, k] weight[k, n] (+ bias)
void Project(const Run& r, int64_t k, int64_t n, Operand x, int weight, float* out,
             const float* bias = nullptr) {
  r.product({.m = r.rows(), .n = n, .k = k}, x, r.weight(weight), out, bias);
}

// d_x[rows, k] = gradient[rows, n] weight^T, and the weight's gradient [k, n] = x^T gradient, which
// is then complete.
void ProjectBackward(const Run& r, int64_t k, int64_t n, const void* x, int tensor,
                     Operand gradient, float* d_x) {
  r.product({.m = k, .n = n, .k = r.rows(), .transpose_a = true}, {x}, gradient,
            r.gradient(tensor));
  r.pass.Done(tensor);
  r.product({.m = r.rows(), .n = k, .k = n, .transpose_b = true}, gradient, r.weight(tensor), d_x);
}

// A layer norm whose result is an operand.
Operand Norm(const Run& r, const float* x, int gain, int bias, void* out, float* mean,
             float* rstd) {
  kernels::LayerNormForward(r.stream, r.norm_shape(), x, r.value(gain), r.value(bias),
                            r.product.Stage(out), mean, rstd);
  return r.product.Keep(r.narrow(), out);
}

// gelu(pre + bias) of [rows, 4 width] as an operand; pre becomes the slope.
Operand Gelu(const Run& r, const float* bias, float* pre, void* out) {
  const kernels::MatrixShape shape{.rows = r.rows(), .cols = 4 * r.width()};
  if (r.rounding.packed) {
    kernels::BiasGeluForwardHalf(r.stream, r.rounding.half, shape, bias, pre,
                                 static_cast<uint16_t*>(out));
    return {out};
  }
  kernels::BiasGeluForward(r.stream, shape, bias, pre, r.product.Stage(out));
  return r.product.Keep(4 * r.narrow(), out);
}

// out = residual + dropout(x + bias); x is scratch afterwards.
void AddBranch(const Run& r, uint32_t site, float* x, const float* bias, const float* residual,
               float* out) {
  const kernels::MatrixShape shape{.rows = r.rows(), .cols = r.width()};
  if (!r.dropout) {
    kernels::BiasResidualAdd(r.stream, shape, x, bias, residual, out);
    return;
  }
  kernels::AddBias(r.stream, shape, bias, x);
  kernels::Dropout(r.stream, r.dropout_at(site), r.narrow(), x, x);
  kernels::ResidualAdd(r.stream, r.narrow(), x, residual, out);
}

void LayerForward(const Run& r, int64_t l) {
  const Activations a = r.layer(l);
  const auto tensor = [&](LayerTensor t) { return r.index.layer(l, t); };
  const float* x = r.stream_before(l);
  const int64_t c = r.width();
  const Operand norm1 =
      Norm(r, x, tensor(kNorm1Gain), tensor(kNorm1Bias), a.norm1, a.mean1, a.rstd1);
  Project(r, c, 3 * c, norm1, tensor(kQkvWeight), a.qkv, r.value(l, kQkvBias));
  kernels::AttentionForward(r.stream, r.attention_shape(), a.qkv, a.attention, a.log_sum_exp,
                            At<void>(r.base, r.layout.scratch));
  const Operand attention = r.product.Copy(a.attention, r.narrow(), a.attention_input);
  Project(r, c, c, attention, tensor(kOutWeight), a.middle);
  AddBranch(r, AttentionSite(l), a.middle, r.value(l, kOutBias), x, a.middle);

  const Operand norm2 =
      Norm(r, a.middle, tensor(kNorm2Gain), tensor(kNorm2Bias), a.norm2, a.mean2, a.rstd2);
  Project(r, c, 4 * c, norm2, tensor(kFcWeight), a.derivative);
  const Operand gelu = Gelu(r, r.value(l, kFcBias), a.derivative, a.gelu);
  Project(r, 4 * c, c, gelu, tensor(kProjWeight), a.out);
  AddBranch(r, MlpSite(l), a.out, r.value(l, kProjBias), a.middle, a.out);
}

// The gradient of what a branch added to the stream, from the gradient of the stream.
const float* BranchGradient(const Run& r, uint32_t site) {
  float* d_stream = r.at(r.layout.d_stream);
  if (!r.dropout) return d_stream;
  float* d_branch = r.at(r.layout.d_branch);
  kernels::Dropout(r.stream, r.dropout_at(site), r.narrow(), d_stream, d_branch);
  return d_branch;
}

// d_out[rows, cols] as an operand, and the gradient of the bias that was added there, complete.
Operand BiasBackward(const Run& r, int bias, int64_t cols, const float* d_out) {
  const kernels::MatrixShape shape{.rows = r.rows(), .cols = cols};
  Operand gradient{r.product.gradient_slot()};
  if (r.rounding.packed) {
    kernels::BiasGradientHalf(r.stream, r.rounding.half, shape, d_out,
                              static_cast<uint16_t*>(r.product.gradient_slot()), r.gradient(bias));
  } else {
    kernels::BiasGradient(r.stream, shape, d_out, r.gradient(bias));
    gradient = r.product.TakeGradient(d_out, r.rows() * cols);
  }
  r.pass.Done(bias);
  return gradient;
}

// The same through gelu: the gradient of pre from that of the result, d_out, which may be
// overwritten.
Operand GeluBackward(const Run& r, int bias, const float* slope, float* d_out) {
  const kernels::MatrixShape shape{.rows = r.rows(), .cols = 4 * r.width()};
  Operand gradient{r.product.gradient_slot()};
  if (r.rounding.packed) {
    kernels::BiasGeluBackwardHalf(r.stream, r.rounding.half, shape, slope, d_out,
                                  static_cast<uint16_t*>(r.product.gradient_slot()),
                                  r.gradient(bias));
  } else {
    kernels::BiasGeluBackward(r.stream, shape, slope, d_out, d_out, r.gradient(bias));
    gradient = r.product.TakeGradient(d_out, 4 * r.narrow());
  }
  r.pass.Done(bias);
  return gradient;
}

// Gradient of a block's norm: its input's part is added into the stream's gradient.
void NormBackward(const Run& r, int gain, int bias, const float* x, const float* mean,
                  const float* rstd, const float* d_out) {
  kernels::LayerNormBackward(r.stream, r.norm_shape(), x, r.value(gain), mean, rstd, d_out,
                             {.dx = r.at(r.layout.d_stream),
                              .d_gain = r.gradient(gain),
                              .d_bias = r.gradient(bias),
                              .add_into_dx = true});
  r.pass.Done(gain);
  r.pass.Done(bias);
}

void LayerBackward(const Run& r, int64_t l) {
  const Activations a = r.layer(l);
  const int64_t c = r.width();
  float* d_branch = r.at(r.layout.d_branch);
  float* d_wide = r.at(r.layout.d_wide);
  const auto tensor = [&](LayerTensor t) { return r.index.layer(l, t); };

  const float* d_mlp = BranchGradient(r, MlpSite(l));
  ProjectBackward(r, 4 * c, c, a.gelu, tensor(kProjWeight),
                  BiasBackward(r, tensor(kProjBias), c, d_mlp), d_wide);
  ProjectBackward(r, c, 4 * c, a.norm2, tensor(kFcWeight),
                  GeluBackward(r, tensor(kFcBias), a.derivative, d_wide), d_branch);
  NormBackward(r, tensor(kNorm2Gain), tensor(kNorm2Bias), a.middle, a.mean2, a.rstd2, d_branch);

  const float* d_attention = BranchGradient(r, AttentionSite(l));
  // The gelu array is no longer needed: it holds the gradient of the attention's output.
  auto* d_heads = static_cast<float*>(a.gelu);
  ProjectBackward(r, c, c, a.attention_input, tensor(kOutWeight),
                  BiasBackward(r, tensor(kOutBias), c, d_attention), d_heads);
  kernels::AttentionBackward(r.stream, r.attention_shape(), a.qkv, a.attention, a.log_sum_exp,
                             d_heads, d_wide, At<void>(r.base, r.layout.scratch));
  ProjectBackward(r, c, 3 * c, a.norm1, tensor(kQkvWeight),
                  BiasBackward(r, tensor(kQkvBias), 3 * c, d_wide), d_branch);
  NormBackward(r, tensor(kNorm1Gain), tensor(kNorm1Bias), r.stream_before(l), a.mean1, a.rstd1,
               d_branch);
}

absl::Status Forward(const Run& r) {
  kernels::EmbeddingForward(r.stream, r.embedding_shape(), r.data.tokens, r.value(r.index.tokens()),
                            r.value(r.index.positions()), r.at(r.layout.input));
  if (r.dropout) {
    kernels::Dropout(r.stream, r.dropout_at(kEmbeddingSite), r.narrow(), r.at(r.layout.input),
                     r.at(r.layout.input));
  }
  for (int64_t l = 0; l < r.sizes.layers; ++l) {
    if (r.pass.cancelled()) return absl::CancelledError("forward pass");
    LayerForward(r, l);
  }
  (void)Norm(r, r.stream_before(r.sizes.layers), r.index.final_gain(), r.index.final_bias(),
             At<void>(r.base, r.layout.final_norm), r.at(r.layout.final_mean),
             r.at(r.layout.final_rstd));
  return absl::OkStatus();
}

// Logits, losses and, with `train`, the head's gradients; a block of rows at a time, so that logits
// of a large vocabulary never stand in memory at once. The blocks are fixed by the shape alone, so
// the order of sums is too.
void Head(const Run& r, bool train) {
  const int64_t c = r.width(), v = r.sizes.vocab, leading = r.layout.logit_leading;
  const Operand table = r.weight(r.index.tokens());  // rounded once for all blocks
  float* logits = r.at(r.layout.logits);
  float* d_table = train ? r.gradient(r.index.tokens()) : nullptr;
  for (int64_t first = 0; first < r.rows(); first += r.layout.logit_rows) {
    const int64_t rows = std::min(r.layout.logit_rows, r.rows() - first);
    const Operand x = r.final_norm().After(r.rounding, first * c);
    float* losses = r.at(r.layout.losses) + first;
    const kernels::LogitsShape shape{.rows = rows, .vocab = v, .leading = leading};
    r.product({.m = rows, .n = v, .k = c, .transpose_b = true, .ldc = leading}, x, table, logits);
    if (!train) {
      kernels::CrossEntropyLoss(r.stream, shape, r.data.targets + first, logits, losses);
      continue;
    }
    kernels::SoftmaxCrossEntropy(r.stream, shape, r.data.targets + first, r.pass.scale(), logits,
                                 losses);
    const Operand d_logits = r.product.TakeGradient(logits, rows * leading);
    r.product({.m = v,
               .n = c,
               .k = rows,
               .transpose_a = true,
               .lda = leading,
               .beta = first == 0 ? 0.0f : 1.0f},
              d_logits, x, d_table);
    r.product({.m = rows, .n = c, .k = v, .lda = leading}, d_logits, table,
              r.at(r.layout.d_stream) + first * c);
  }
  r.pass.Loss(Tensor{.data = r.at(r.layout.losses), .shape = {r.rows()}}, r.data.counted);
}

absl::Status Backward(const Run& r) {
  float* d_stream = r.at(r.layout.d_stream);
  const int gain = r.index.final_gain(), bias = r.index.final_bias();
  kernels::LayerNormBackward(
      r.stream, r.norm_shape(), r.stream_before(r.sizes.layers), r.value(gain),
      r.at(r.layout.final_mean), r.at(r.layout.final_rstd), d_stream,
      {.dx = d_stream, .d_gain = r.gradient(gain), .d_bias = r.gradient(bias)});
  r.pass.Done(gain);
  r.pass.Done(bias);
  for (int64_t l = r.sizes.layers - 1; l >= 0; --l) {
    if (r.pass.cancelled()) return absl::CancelledError("backward pass");
    LayerBackward(r, l);
  }
  if (r.dropout)
    kernels::Dropout(r.stream, r.dropout_at(kEmbeddingSite), r.narrow(), d_stream, d_stream);
  float* d_positions = r.gradient(r.index.positions());
  const int64_t used = r.data.context * r.width();
  kernels::Fill(r.stream, r.sizes.context * r.width() - used, 0.0f, d_positions + used);
  kernels::EmbeddingBackward(r.stream, r.embedding_shape(), r.data.tokens, d_stream,
                             r.gradient(r.index.tokens()), d_positions);
  r.pass.Done(r.index.positions());
  r.pass.Done(r.index.tokens());
  return absl::OkStatus();
}

class Gpt final : public Model {
 public:
  explicit Gpt(const Sizes& sizes) : sizes_(sizes), index_{static_cast<int>(sizes.layers)} {}

  absl::StatusOr<ModelSpec> Describe() const override { return MakeSpec(sizes_); }

  absl::Status Prepare(DeviceKind device) override {
    if (device == DeviceKind::kCuda) sizes_.logit_floats = kGpuLogitFloats;
    return absl::OkStatus();
  }

  absl::Status ForwardBackward(Pass& pass, const MicroBatch& micro_batch) override {
    HF_ASSIGN_OR_RETURN(const TokenBatch data, Check(pass, micro_batch));
    const Rounding rounding(sizes_.precision, pass.stream());
    const Layout layout = MakeLayout(sizes_, rounding, data.batch, data.context, true);
    const Run r = Start(pass, data, rounding, layout, micro_batch.training && sizes_.dropout > 0);
    HF_RETURN_IF_ERROR(Forward(r));
    Head(r, true);
    return Backward(r);
  }

  absl::Status Evaluate(Pass& pass, const MicroBatch& micro_batch) override {
    HF_ASSIGN_OR_RETURN(const TokenBatch data, Check(pass, micro_batch));
    const Rounding rounding(sizes_.precision, pass.stream());
    const Layout layout = MakeLayout(sizes_, rounding, data.batch, data.context, false);
    const Run r = Start(pass, data, rounding, layout, false);
    HF_RETURN_IF_ERROR(Forward(r));
    Head(r, false);
    return absl::OkStatus();
  }

  absl::StatusOr<Tensor> NextToken(Pass& pass, std::span<const int32_t> tokens) override {
    HF_RETURN_IF_ERROR(CheckTokens(tokens, sizes_.vocab));
    const int64_t rows = std::min(sizes_.context, static_cast<int64_t>(tokens.size()));
    TokenBatch data{
        .rows = rows, .batch = 1, .context = rows, .tokens = tokens.data() + tokens.size() - rows};
    data.tokens = UploadTokens(pass, data.tokens, rows);
    const Rounding rounding(sizes_.precision, pass.stream());
    // Memory for the longest sequence from the first token on: then it does not grow with each.
    void* base = pass.Workspace(MakeLayout(sizes_, rounding, 1, sizes_.context, false).total).data;
    const Layout layout = MakeLayout(sizes_, rounding, 1, rows, false);
    const Run r{sizes_, layout, index_, pass, pass.stream(), data, rounding, base, false};
    HF_RETURN_IF_ERROR(Forward(r));
    float* logits = r.at(layout.logits);
    r.product({.m = 1, .n = sizes_.vocab, .k = r.width(), .transpose_b = true},
              r.final_norm().After(rounding, (rows - 1) * r.width()), r.weight(index_.tokens()),
              logits);
    return Tensor{.data = logits, .shape = {sizes_.vocab}};
  }

 private:
  // The batch, checked in host memory, where the model computes.
  absl::StatusOr<TokenBatch> Check(Pass& pass, const MicroBatch& micro_batch) const {
    HF_ASSIGN_OR_RETURN(TokenBatch data, ViewTokenBatch(micro_batch, {.batch = sizes_.batch,
                                                                      .context = sizes_.context,
                                                                      .vocab = sizes_.vocab}));
    data.tokens = UploadTokens(pass, data.tokens, data.rows);
    data.targets = UploadTokens(pass, data.targets, data.rows);
    return data;
  }
  Run Start(Pass& pass, const TokenBatch& data, const Rounding& rounding, const Layout& layout,
            bool dropout) const {
    return {sizes_,        layout, index_,   pass,
            pass.stream(), data,   rounding, pass.Workspace(layout.total).data,
            dropout};
  }

  Sizes sizes_;
  const Index index_;
};

}  // namespace
}  // namespace gpt

absl::StatusOr<std::unique_ptr<Model>> MakeGpt(const BuiltInConfig& config) {
  if (config.embed % config.heads != 0) {
    return absl::InvalidArgumentError(
        Cat("embed ", config.embed, " is not divisible by heads ", config.heads));
  }
  if (config.embed / config.heads > 256) {
    return absl::InvalidArgumentError(Cat("embed ", config.embed, " / heads ", config.heads, " = ",
                                          config.embed / config.heads,
                                          ": a head may be at most 256 wide; give more heads"));
  }
  HF_ASSIGN_OR_RETURN(const Precision precision, PrecisionOf(config.precision));
  return std::make_unique<gpt::Gpt>(gpt::Sizes{.layers = config.layers,
                                               .heads = config.heads,
                                               .width = config.embed,
                                               .context = config.context,
                                               .vocab = config.vocab(),
                                               .batch = config.micro_batch_size,
                                               .dropout = config.dropout,
                                               .precision = precision});
}

}  // namespace holdfast
