// Times of every kernel of one training step of the small GPT (4 layers, 4 heads, 128 wide, context
// 64, 256 tokens of vocabulary, 834 k parameters; 768 tokens a step), on one core, and the step
// they add up to against the rate of the matrix products alone.   kernels_bench [--json]
// [--micro-batches N]: a divisor of 12; default 4.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "runtime/base/digest.h"
#include "runtime/base/text.h"
#include "tests/bench/report.h"

namespace holdfast::kernels {
namespace {

constexpr int64_t kLayers = 4, kHeads = 4, kWidth = 128, kContext = 64, kVocab = 256,
                  kSequences = 12;
constexpr int64_t kParameters = 834'304;

double MedianMs(const std::function<void()>& work, int runs = 25) {
  std::vector<double> ms;
  for (int i = 0; i < runs + 2; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const auto end = std::chrono::steady_clock::now();
    if (i >= 2) ms.push_back(std::chrono::duration<double, std::milli>(end - start).count());
  }
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 4];  // the lower quartile: other processes only ever add
}

class Bench {
 public:
  Bench(BenchReport& report, int64_t micro_batches)
      : report_(report),
        micro_batches_(micro_batches),
        batch_(kSequences / micro_batches),
        rows_(batch_ * kContext) {
    SetComputeThread();
    stream_ = CpuDevice().NewStream();
  }

  void Run() {
    report_.Say(Cat("a step: ", micro_batches_, " micro-batches of ", rows_, " rows"));
    Products();
    Attention();
    RowOperations();
    Loss();
    Parameters();
    const double flop = products_flop_, rest = total_ms_ - products_ms_;
    report_.Add("products together, a step", products_ms_, "ms");
    report_.Add("  their rate", flop / products_ms_ * 1e-6, "GFLOP/s");
    report_.Add("all the rest, a step", rest, "ms");
    report_.Add("step at the rate of its products", 100 * products_ms_ / total_ms_, "%");
  }

 private:
  float* Array(int64_t n) {
    buffers_.push_back(std::move(CpuDevice().Allocate(n * 8)).value());
    auto* x = buffers_.back().as<float>();
    RandomNormal(*stream_, {buffers_.size(), 0}, 0.0f, 0.1f, n, x);
    return x;
  }

  // `times`: how often a micro-batch does this.
  double Report(const std::string& name, double times, bool per_step,
                const std::function<void()>& work) {
    const double ms = MedianMs(work),
                 step = ms * times * (per_step ? 1.0 : static_cast<double>(micro_batches_));
    total_ms_ += step;
    report_.Add(
        name, step, "ms", "",
        Cat(static_cast<int64_t>(step / ms + 0.5), " x ", static_cast<int64_t>(ms * 1e3), " us"));
    return step;
  }

  void Product(const std::string& name, const MatMulShape& s, double times) {
    float *a = Array(s.m * s.k), *b = Array(s.k * s.n), *c = Array(s.m * s.n);
    const double ms = Report(name, times, false, [&] { MatMul(*stream_, s, a, b, c); });
    const double flop =
        2.0 * static_cast<double>(s.m * s.n * s.k) * times * static_cast<double>(micro_batches_);
    report_.Add("  its rate", flop / ms * 1e-6, "GFLOP/s");
    products_ms_ += ms;
    products_flop_ += flop;
  }

  // y = x W, dx = dy W^T, dW = x^T dy.
  void Linear(const std::string& name, int64_t in, int64_t out, double times) {
    Product(name + " forward", {rows_, out, in}, times);
    Product(name + " input gradient", {rows_, in, out, false, true}, times);
    Product(name + " weight gradient", {in, out, rows_, true, false}, times);
  }

  void Products() {
    Linear("qkv", kWidth, 3 * kWidth, kLayers);
    Linear("projection", kWidth, kWidth, kLayers);
    Linear("mlp up", kWidth, 4 * kWidth, kLayers);
    Linear("mlp down", 4 * kWidth, kWidth, kLayers);
    Product("head forward", {rows_, kVocab, kWidth, false, true}, 1);
    Product("head input gradient", {rows_, kWidth, kVocab}, 1);
    Product("head weight gradient", {kVocab, kWidth, rows_, true, false}, 1);
  }

  void Attention() {
    const AttentionShape s{batch_, kContext, kHeads, kWidth / kHeads};
    float *qkv = Array(rows_ * 3 * kWidth), *out = Array(rows_ * kWidth),
          *log = Array(rows_ * kHeads);
    float *d_out = Array(rows_ * kWidth), *d_qkv = Array(rows_ * 3 * kWidth);
    float* scratch = Array(AttentionScratchBytes(s) / 4);
    Report("attention forward", kLayers, false,
           [&] { AttentionForward(*stream_, s, qkv, out, log, scratch); });
    Report("attention backward", kLayers, false,
           [&] { AttentionBackward(*stream_, s, qkv, out, log, d_out, d_qkv, scratch); });
  }

  void RowOperations() {
    const int64_t n = rows_ * kWidth;
    float *x = Array(n), *y = Array(n), *z = Array(n), *gain = Array(4 * kWidth),
          *bias = Array(4 * kWidth);
    float *mean = Array(rows_), *rstd = Array(rows_), *d_gain = Array(4 * kWidth),
          *d_bias = Array(4 * kWidth);
    const LayerNormShape norm{rows_, kWidth};
    Report("layer norm forward", 2 * kLayers + 1, false,
           [&] { LayerNormForward(*stream_, norm, x, gain, bias, y, mean, rstd); });
    Report("layer norm backward", 2 * kLayers + 1, false, [&] {
      LayerNormBackward(*stream_, norm, x, gain, mean, rstd, y, {z, d_gain, d_bias, true});
    });
    const MatrixShape wide{rows_, 4 * kWidth}, narrow{rows_, kWidth}, triple{rows_, 3 * kWidth};
    float *pre = Array(4 * n), *out = Array(4 * n), *source = Array(4 * n);
    // `pre` holds derivatives after the first run: the kernel has no branches, its time does not
    // depend on values.
    Report("bias + gelu forward", kLayers, false,
           [&] { BiasGeluForward(*stream_, wide, bias, pre, out); });
    Report("gelu backward", kLayers, false,
           [&] { BiasGeluBackward(*stream_, wide, pre, out, source, d_bias); });
    Report("add bias (qkv)", kLayers, false, [&] { AddBias(*stream_, triple, bias, pre); });
    Report("bias gradient (qkv)", kLayers, false,
           [&] { BiasGradient(*stream_, triple, pre, d_bias); });
    Report("bias + residual", 2 * kLayers, false,
           [&] { BiasResidualAdd(*stream_, narrow, x, bias, y, z); });
    Report("bias gradient (narrow)", 2 * kLayers, false,
           [&] { BiasGradient(*stream_, narrow, x, d_bias); });
  }

  void Loss() {
    const EmbeddingShape s{batch_, kContext, kWidth, kVocab};
    std::vector<int32_t> tokens(rows_);
    for (int64_t i = 0; i < rows_; ++i) tokens[i] = static_cast<int32_t>(Mix64(i) % kVocab);
    float *table = Array(kVocab * kWidth), *positions = Array(kContext * kWidth),
          *x = Array(rows_ * kWidth);
    float *logits = Array(rows_ * kVocab), *losses = Array(rows_);
    Report("embedding forward", 1, false,
           [&] { EmbeddingForward(*stream_, s, tokens.data(), table, positions, x); });
    Report("embedding backward", 1, false,
           [&] { EmbeddingBackward(*stream_, s, tokens.data(), x, table, positions); });
    Report("cross-entropy", 1, false, [&] {
      SoftmaxCrossEntropy(*stream_, {rows_, kVocab}, tokens.data(), 1.0f, logits, losses);
    });
  }

  void Parameters() {
    const int64_t n = kParameters;
    float *gradient = Array(n), *value = Array(n), *m = Array(n), *v = Array(n);
    Fill(*stream_, n, 1e-4f, v);
    std::vector<int64_t> acc(n);
    std::vector<double> chunks(SquaredNormCount(n));
    FixedFlags flags;
    uint64_t sum = 0;
    Report("fixed point", 1, false, [&] {
      AccumulateFixed(*stream_, {40, 4}, n, gradient, acc.data(), &flags);
    });
    Report("fixed point back", 1, true,
           [&] { FixedToFloat(*stream_, n, 0x1p-40, acc.data(), gradient); });
    Report("sum of words", 2, true, [&] { SumWords(*stream_, n, acc.data(), &sum); });
    Report("squared norm", 1, true,
           [&] { SquaredNormChunks(*stream_, n, gradient, chunks.data()); });
    Report("AdamW", 1, true,
           [&] { AdamW(*stream_, {.learning_rate = 1e-3}, n, gradient, value, m, v); });
    Report("digest of a state array", 3, true, [&] { sum += DigestWords(value, n, 1, 0); });
    if (sum == 1) report_.Say(" ");  // keeps the results alive
  }

  BenchReport& report_;
  const int64_t micro_batches_, batch_, rows_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;
  double total_ms_ = 0, products_ms_ = 0, products_flop_ = 0;
};

}  // namespace
}  // namespace holdfast::kernels

int main(int argc, char** argv) {
  holdfast::BenchReport report("kernels", argc, argv);
  const auto micro_batches = static_cast<int64_t>(report.Number("--micro-batches", 4));
  if (micro_batches < 1 || 12 % micro_batches != 0) {
    std::fprintf(stderr, "kernels_bench: --micro-batches must divide 12\n");
    return 2;
  }
  holdfast::kernels::Bench(report, micro_batches).Run();
  return report.Print();
}
