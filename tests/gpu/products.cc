// The matrix products of a training step in bf16: their rate beside that of a large square product
// in the same run, and what they compute.
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/digest.h"
#include "runtime/base/text.h"
#include "tests/gpu/gpu_check.h"
#include "tests/gpu/measure.h"

namespace holdfast {
namespace {

using kernels::Half;
using kernels::MatMulShape;

constexpr double kGoalPercent = 75;
constexpr int kSamples = 64;
// Sums are fp32 in an order that cuBLASLt chooses.
constexpr double kTolerance = 1e-4;

class ProductCheck {
 public:
  explicit ProductCheck(GpuCheck& check)
      : s_(check.shapes),
        rows_(*check.rows),
        bench_(*check.device, check.shapes.measure_ms),
        stream_(bench_.stream()) {}

  absl::Status Run() {
    Square();
    const int64_t c = s_.width;
    const auto layers = static_cast<double>(s_.layers);
    Linear("qkv", c, 3 * c, layers);
    Linear("attention out", c, c, layers);
    Linear("mlp up", c, 4 * c, layers);
    Linear("mlp down", 4 * c, c, layers);
    const int64_t n = LogitRows(s_);
    const double blocks = static_cast<double>(s_.rows()) / static_cast<double>(n);
    const int64_t v = s_.vocab, leading = LogitLeading(s_);
    One("head, forward", {.m = n, .n = v, .k = c, .transpose_b = true, .ldc = leading}, blocks);
    One("head, dX", {.m = n, .n = c, .k = v, .lda = leading}, blocks);
    One("head, dW", {.m = v, .n = c, .k = n, .transpose_a = true, .lda = leading}, blocks);
    if (!bench_.status().ok()) return bench_.status();
    rows_.Measure("products of a step together", 100 * flop_ / ms_ / square_rate_,
                  "% of the square product", kGoalPercent,
                  Cat(FigureText(flop_ / ms_ * 1e-9), " TFLOP/s, ", FigureText(ms_), " ms"));
    if (checked_ok_)
      rows_.Ok("products against sums in double",
               Cat(checked_, " elements of each kind; the largest error is ", worst_ * 1e6,
                   "e-6 of the size of a sum"));
    return bench_.status();
  }

 private:
  struct Arrays {
    uint16_t *a = nullptr, *b = nullptr;
    float* c = nullptr;
    bool ok() const { return a != nullptr && b != nullptr && c != nullptr; }
  };

  uint16_t* Inputs(int64_t n) {
    float* x = bench_.Normal(n);
    auto* half = static_cast<uint16_t*>(bench_.Bytes(2 * n));
    if (x == nullptr || half == nullptr) return nullptr;
    kernels::FloatToHalf(stream_, Half::kBf16, n, x, half);
    return half;
  }
  Arrays Make(const MatMulShape& shape) {
    return {Inputs(SizeA(shape)), Inputs(shape.k * shape.n),
            static_cast<float*>(bench_.Bytes(4 * SizeC(shape)))};
  }
  double Time(const MatMulShape& shape, const Arrays& x) {
    return bench_.Ms(
        [&] { kernels::MatMulHalf(stream_, Half::kBf16, shape, x.a, x.b, nullptr, x.c); });
  }
  static int64_t StrideA(const MatMulShape& s) {
    return std::max(s.lda, s.transpose_a ? s.m : s.k);
  }
  static int64_t StrideC(const MatMulShape& s) { return std::max(s.ldc, s.n); }
  static int64_t SizeA(const MatMulShape& s) { return (s.transpose_a ? s.k : s.m) * StrideA(s); }
  static int64_t SizeC(const MatMulShape& s) { return s.m * StrideC(s); }
  static double Flop(const MatMulShape& s) { return 2.0 * static_cast<double>(s.m * s.n * s.k); }

  void Square() {
    const int64_t n = s_.square;
    rows_.Begin("square product");
    const MatMulShape shape{.m = n, .n = n, .k = n};
    const Arrays x = Make(shape);
    if (!x.ok()) return;
    const double ms = Time(shape, x);
    bench_.Forget();
    if (!bench_.status().ok()) return;
    square_rate_ = Flop(shape) / ms;
    rows_.Measure(Cat("bf16 product ", n, "^3"), square_rate_ * 1e-9, "TFLOP/s");
  }

  // y = x W, dX = dy W^T, dW = x^T dy.
  void Linear(const std::string& name, int64_t in, int64_t out, double times) {
    const int64_t rows = s_.rows();
    One(name + ", forward", {.m = rows, .n = out, .k = in}, times);
    One(name + ", dX", {.m = rows, .n = in, .k = out, .transpose_b = true}, times);
    One(name + ", dW", {.m = in, .n = out, .k = rows, .transpose_a = true}, times);
  }

  void One(const std::string& name, const MatMulShape& shape, double times) {
    if (!bench_.status().ok()) return;
    rows_.Begin(Cat("product ", name));
    const Arrays x = Make(shape);
    if (!x.ok()) return;
    const double ms = Time(shape, x);
    if (bench_.status().ok()) Compare(name, shape, x);
    bench_.Forget();
    if (!bench_.status().ok()) return;
    const double rate = Flop(shape) / ms;
    rows_.Measure(
        Cat("product: ", name), 100 * rate / square_rate_, "% of the square product", kGoalPercent,
        Cat(FigureText(rate * 1e-9), " TFLOP/s, ", shape.m, " x ", shape.n, " x ", shape.k));
    rows_.Part(Cat("product ", name), times, ms);
    flop_ += Flop(shape) * times;
    ms_ += ms * times;
  }

  static double Value(uint16_t bf16) {
    const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }

  // Some elements of the result, drawn by a seed, against sums in double.
  void Compare(const std::string& name, const MatMulShape& s, const Arrays& x) {
    std::vector<uint16_t> a(static_cast<size_t>(SizeA(s))), b(static_cast<size_t>(s.k * s.n));
    std::vector<float> c(static_cast<size_t>(SizeC(s)));
    bench_.device().Copy(stream_, a.data(), x.a, SizeA(s) * 2);
    bench_.device().Copy(stream_, b.data(), x.b, s.k * s.n * 2);
    bench_.device().Copy(stream_, c.data(), x.c, SizeC(s) * 4);
    if (!stream_.Synchronize(Deadline::After(kGpuWaitMs)).ok()) return;
    for (uint64_t i = 0; i < kSamples; ++i) {
      const auto row = static_cast<int64_t>(Mix64(2 * i) % static_cast<uint64_t>(s.m));
      const auto col = static_cast<int64_t>(Mix64(2 * i + 1) % static_cast<uint64_t>(s.n));
      double sum = 0, size = 0;
      for (int64_t k = 0; k < s.k; ++k) {
        const int64_t at_a = s.transpose_a ? k * StrideA(s) + row : row * StrideA(s) + k;
        const int64_t at_b = s.transpose_b ? col * s.k + k : k * s.n + col;
        const double term =
            Value(a[static_cast<size_t>(at_a)]) * Value(b[static_cast<size_t>(at_b)]);
        sum += term;
        size += std::fabs(term);
      }
      const float got = c[static_cast<size_t>(row * StrideC(s) + col)];
      const double error = std::fabs(got - sum) / size;
      ++checked_;
      worst_ = std::max(worst_, error);
      if (error <= kTolerance) continue;  // NaN is not
      checked_ok_ = false;
      rows_.Fail(Cat("product ", name, " against a sum in double"),
                 Cat("element (", row, ", ", col, ") is ", got, " instead of ", sum));
      return;
    }
  }

  const GpuShapes& s_;
  CheckRows& rows_;
  GpuBench bench_;
  kernels::Stream& stream_;
  double square_rate_ = 1, flop_ = 0, ms_ = 0, worst_ = 0;
  int64_t checked_ = 0;
  bool checked_ok_ = true;
};

}  // namespace

absl::Status CheckProducts(GpuCheck& check) { return ProductCheck(check).Run(); }

absl::Status CheckAttention(GpuCheck& check) {
  const GpuShapes& s = check.shapes;
  GpuBench bench(*check.device, s.measure_ms);
  kernels::AttentionShape shape{s.batch, s.context, s.heads, s.width / s.heads};
  shape.half_products = true;
  kernels::AttentionShape exact = shape;
  exact.half_products = false;
  const int64_t n = s.rows() * s.width;
  float *qkv = bench.Normal(3 * n), *d_qkv = bench.Normal(3 * n), *out = bench.Normal(n);
  float *d_out = bench.Normal(n), *log_sum_exp = bench.Normal(s.rows() * s.heads);
  void* scratch = bench.Bytes(kernels::AttentionScratchBytes(shape));
  if (!bench.status().ok()) return bench.status();
  // The usual count: two products forward and five backward, each on a matrix that is half full.
  const double product = static_cast<double>(s.rows() * s.context * s.width);
  const auto one = [&](const std::string& name, bool in_step, double products,
                       const std::function<void()>& work) {
    check.rows->Begin(name);
    const double ms = bench.Ms(work);
    if (!bench.status().ok()) return;
    check.rows->Measure(name, products * product / ms * 1e-9, "TFLOP/s", 0,
                        Cat(FigureText(ms), " ms"));
    if (in_step) check.rows->Part(name, static_cast<double>(s.layers), ms);
  };
  const auto both = [&](const std::string& kind, bool in_step, const kernels::AttentionShape& a) {
    one(Cat("attention forward, ", kind), in_step, 2,
        [&] { kernels::AttentionForward(bench.stream(), a, qkv, out, log_sum_exp, scratch); });
    one(Cat("attention backward, ", kind), in_step, 5, [&] {
      kernels::AttentionBackward(bench.stream(), a, qkv, out, log_sum_exp, d_out, d_qkv, scratch);
    });
  };
  both("bf16", true, shape);
  both("fp32", false, exact);
  return bench.status();
}

}  // namespace holdfast
