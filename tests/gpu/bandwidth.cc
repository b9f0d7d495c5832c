// Each memory-bound operation at the sizes of one training step: its bytes a second as a share of
// a device copy of the same bytes.
#include <string>

#include "runtime/base/text.h"
#include "tests/gpu/gpu_check.h"
#include "tests/gpu/measure.h"

namespace holdfast {
namespace {

using kernels::Half;

class Bandwidth {
 public:
  explicit Bandwidth(GpuCheck& check)
      : s_(check.shapes),
        rows_(*check.rows),
        bench_(*check.device, check.shapes.measure_ms),
        stream_(bench_.stream()),
        n_(s_.rows() * s_.width) {}

  absl::Status Run() {
    for (const auto part :
         {&Bandwidth::Norms, &Bandwidth::Branches, &Bandwidth::Gelus, &Bandwidth::Embeddings,
          &Bandwidth::Losses, &Bandwidth::Halves, &Bandwidth::Fixed, &Bandwidth::Parameters}) {
      (this->*part)();
      bench_.Forget();
      if (!bench_.status().ok()) break;
    }
    return bench_.status();
  }

 private:
  // `bytes`: read and written. `times`: how often one step of one unit does it; 0: not at all.
  void One(const std::string& name, double bytes, double times, const std::function<void()>& work) {
    if (!bench_.status().ok()) return;
    rows_.Begin(name);
    const double copy = bench_.CopyMs(static_cast<int64_t>(bytes)), ms = bench_.Ms(work);
    if (!bench_.status().ok()) return;
    rows_.Measure(Cat("bandwidth: ", name), 100 * copy / ms, "% of a copy", 0,
                  Cat(FigureText(ms * 1e3), " us, ", FigureText(bytes / ms * 1e-6), " GB/s"));
    if (times > 0) rows_.Part(name, times, ms);
  }
  double Floats(double arrays) const { return 4 * arrays * static_cast<double>(n_); }
  double Layers(double each) const { return each * static_cast<double>(s_.layers); }

  void Norms() {
    const kernels::LayerNormShape shape{.rows = s_.rows(), .cols = s_.width};
    float *x = bench_.Normal(n_), *y = bench_.Normal(n_), *dx = bench_.Normal(n_);
    float *gain = bench_.Normal(s_.width), *bias = bench_.Normal(s_.width);
    float *mean = bench_.Normal(s_.rows()), *rstd = bench_.Normal(s_.rows());
    float *d_gain = bench_.Normal(s_.width), *d_bias = bench_.Normal(s_.width);
    One("layer norm forward", Floats(2), Layers(2) + 1,
        [&] { kernels::LayerNormForward(stream_, shape, x, gain, bias, y, mean, rstd); });
    One("layer norm backward", Floats(4), Layers(2) + 1, [&] {
      kernels::LayerNormBackward(stream_, shape, x, gain, mean, rstd, y,
                                 {dx, d_gain, d_bias, true});
    });
  }

  void Branches() {
    const kernels::MatrixShape narrow{s_.rows(), s_.width}, triple{s_.rows(), 3 * s_.width};
    float *x = bench_.Normal(n_), *y = bench_.Normal(n_), *z = bench_.Normal(n_);
    float *wide = bench_.Normal(3 * n_), *bias = bench_.Normal(3 * s_.width);
    One("bias + residual", Floats(3), Layers(2),
        [&] { kernels::BiasResidualAdd(stream_, narrow, x, bias, y, z); });
    One("residual", Floats(3), 0, [&] { kernels::ResidualAdd(stream_, n_, x, y, z); });
    One("add bias", Floats(2), 0, [&] { kernels::AddBias(stream_, narrow, bias, x); });
    One("bias gradient", Floats(1), 0, [&] { kernels::BiasGradient(stream_, narrow, x, bias); });
    auto* half = static_cast<uint16_t*>(bench_.Bytes(6 * n_));
    One("bias gradient, rounded on its way", Floats(1.5), Layers(2),
        [&] { kernels::BiasGradientHalf(stream_, Half::kBf16, narrow, x, half, bias); });
    One("bias gradient of qkv, rounded on its way", Floats(4.5), Layers(1),
        [&] { kernels::BiasGradientHalf(stream_, Half::kBf16, triple, wide, half, bias); });
    One("dropout", Floats(2), 0,
        [&] { kernels::Dropout(stream_, {.key = 1, .keep = 0.9f}, n_, x, z); });
    One("bias + relu forward", Floats(2), 0,
        [&] { kernels::BiasReluForward(stream_, narrow, bias, x, z); });
    One("relu backward", Floats(3), 0,
        [&] { kernels::BiasReluBackward(stream_, narrow, x, y, z, bias); });
    One("copy of floats", Floats(2), 0, [&] { kernels::CopyFloat(stream_, n_, x, z); });
    One("fill", Floats(1), 0, [&] { kernels::Fill(stream_, n_, 1.0f, z); });
    One("scale", Floats(2), 0, [&] { kernels::ScaleFloat(stream_, n_, 1.0f, x); });
    One("random normal", Floats(1), 0, [&] {
      kernels::RandomNormal(stream_, {3, 0}, 0.0f, 1.0f, n_, z);
    });
    One("random uniform", Floats(1), 0, [&] {
      kernels::RandomUniform(stream_, {3, 0}, 0.0f, 1.0f, n_, z);
    });
  }

  void Gelus() {
    const kernels::MatrixShape wide{s_.rows(), 4 * s_.width};
    float *pre = bench_.Normal(4 * n_), *out = bench_.Normal(4 * n_);
    float *source = bench_.Normal(4 * n_), *bias = bench_.Normal(4 * s_.width);
    auto* half = static_cast<uint16_t*>(bench_.Bytes(8 * n_));
    One("bias + gelu forward", Floats(12), 0,
        [&] { kernels::BiasGeluForward(stream_, wide, bias, pre, out); });
    One("gelu backward", Floats(12), 0,
        [&] { kernels::BiasGeluBackward(stream_, wide, pre, source, source, bias); });
    One("bias + gelu forward to bf16", Floats(10), Layers(1),
        [&] { kernels::BiasGeluForwardHalf(stream_, Half::kBf16, wide, bias, pre, half); });
    One("gelu backward to bf16", Floats(10), Layers(1), [&] {
      kernels::BiasGeluBackwardHalf(stream_, Half::kBf16, wide, pre, source, half, bias);
    });
  }

  void Embeddings() {
    const kernels::EmbeddingShape shape{s_.batch, s_.context, s_.width, s_.vocab};
    int32_t* tokens = bench_.Tokens(s_.rows(), s_.vocab);
    float *table = bench_.Normal(s_.vocab * s_.width), *x = bench_.Normal(n_);
    float* positions = bench_.Normal(s_.context * s_.width);
    One("embedding forward", Floats(2), 1,
        [&] { kernels::EmbeddingForward(stream_, shape, tokens, table, positions, x); });
    One("embedding backward", Floats(3), 1,
        [&] { kernels::EmbeddingBackward(stream_, shape, tokens, x, table, positions); });
  }

  void Losses() {
    const kernels::LogitsShape shape{
        .rows = LogitRows(s_), .vocab = s_.vocab, .leading = LogitLeading(s_)};
    const double logits_bytes = 4 * static_cast<double>(shape.rows * shape.vocab);
    const double blocks = static_cast<double>(s_.rows()) / static_cast<double>(shape.rows);
    const int64_t floats = shape.rows * shape.leading;
    int32_t* targets = bench_.Tokens(shape.rows, s_.vocab);
    float *logits = bench_.Normal(floats), *losses = bench_.Normal(shape.rows);
    One("cross-entropy, losses only", logits_bytes, 0,
        [&] { kernels::CrossEntropyLoss(stream_, shape, targets, logits, losses); });
    One("hits of the largest logit", logits_bytes, 0,
        [&] { kernels::ArgMaxHits(stream_, shape, targets, logits, losses); });
    One("softmax + cross-entropy", 2 * logits_bytes, blocks,
        [&] { kernels::SoftmaxCrossEntropy(stream_, shape, targets, 1.0f, logits, losses); });
    auto* half = static_cast<uint16_t*>(bench_.Bytes(floats * 2));
    One("logits' gradient to bf16", 1.5 * logits_bytes, blocks,
        [&] { kernels::FloatToHalf(stream_, Half::kBf16, floats, logits, half); });
  }

  void Halves() {
    float *x = bench_.Normal(4 * n_), *y = bench_.Normal(4 * n_);
    auto* half = static_cast<uint16_t*>(bench_.Bytes(8 * n_));
    // In each layer two norms and the attention; the final norm.
    One("activations to bf16", Floats(1.5), Layers(3) + 1,
        [&] { kernels::FloatToHalf(stream_, Half::kBf16, n_, x, half); });
    One("bf16 to floats", Floats(6), 0,
        [&] { kernels::HalfToFloat(stream_, Half::kBf16, 4 * n_, half, y); });
    One("floats rounded to bf16", Floats(8), 0,
        [&] { kernels::RoundToHalf(stream_, Half::kBf16, 4 * n_, x, y); });
  }

  void Fixed() {
    const int64_t p = s_.parameters();
    const auto bytes = static_cast<double>(p);
    float* x = bench_.Normal(p);
    auto* acc = static_cast<int64_t*>(bench_.Bytes(8 * p));
    auto* other = static_cast<int64_t*>(bench_.Bytes(8 * p));
    auto* flags = static_cast<kernels::FixedFlags*>(bench_.Bytes(sizeof(kernels::FixedFlags)));
    auto* word = static_cast<uint64_t*>(bench_.Bytes(8));
    const kernels::FixedScale scale{40, 8};
    One("gradients to fixed point, first unit", 12 * bytes, 1,
        [&] { kernels::StoreFixed(stream_, scale, p, x, acc, flags); });
    One("gradients to fixed point, added", 20 * bytes, 0,
        [&] { kernels::AccumulateFixed(stream_, scale, p, x, acc, flags); });
    One("fixed point to gradients", 12 * bytes, 1,
        [&] { kernels::FixedToFloat(stream_, p, 0x1p-40, acc, x); });
    One("words added", 24 * bytes, 0, [&] { kernels::AddWords(stream_, p, other, acc); });
    One("sum of words", 8 * bytes, 0, [&] { kernels::SumWords(stream_, p, acc, word); });
    One("words filled", 8 * bytes, 0, [&] { kernels::FillWords(stream_, p, 1, other); });
  }

  void Parameters() {
    const int64_t p = s_.parameters();
    const auto bytes = static_cast<double>(p);
    float *g = bench_.Normal(p), *value = bench_.Normal(p), *m = bench_.Normal(p);
    auto* v = static_cast<float*>(bench_.Bytes(4 * p));
    auto* half = static_cast<uint16_t*>(bench_.Bytes(2 * p));
    auto* word = static_cast<uint64_t*>(bench_.Bytes(8));
    auto* chunks = static_cast<double*>(bench_.Bytes(8 * kernels::SquaredNormCount(p)));
    // Weights are rounded once forward and once backward (the table of tokens: once).
    One("weights to bf16", 6 * bytes, 2,
        [&] { kernels::FloatToHalf(stream_, Half::kBf16, p, value, half); });
    One("AdamW", 28 * bytes, 1, [&] {
      kernels::AdamW(stream_, {.learning_rate = 1e-4, .weight_decay = 0.1}, p, g, value, m, v);
    });
    auto* sums = static_cast<int64_t*>(bench_.Bytes(8 * p));
    One("AdamW from fixed point", 32 * bytes, 0, [&] {
      kernels::AdamWFixed(stream_, {.learning_rate = 1e-4, .weight_decay = 0.1}, p, 0x1p-40, sums,
                          value, m, v);
    });
    One("SGD", 12 * bytes, 0, [&] { kernels::Sgd(stream_, {.learning_rate = 1e-4}, p, g, value); });
    One("squared norm", 4 * bytes, 1, [&] { kernels::SquaredNormChunks(stream_, p, g, chunks); });
    One("digest of a state array", 4 * bytes, 4,
        [&] { kernels::Digest(stream_, value, p, 1, 0, word); });
    One("floats added", 12 * bytes, 0, [&] { kernels::AccumulateFloat(stream_, p, g, value); });
  }

  const GpuShapes& s_;
  CheckRows& rows_;
  GpuBench bench_;
  kernels::Stream& stream_;
  const int64_t n_;
};

}  // namespace

absl::Status CheckBandwidth(GpuCheck& check) { return Bandwidth(check).Run(); }

}  // namespace holdfast
