#include <dnnl.hpp>

#include <cassert>

#include "kernels/device_ops.h"
#include "runtime/base/text.h"

namespace holdfast::kernels {
namespace {

int64_t Leading(int64_t given, int64_t dense) {
  if (given == 0) return dense > 0 ? dense : 1;
  assert(given >= dense);
  return given;
}

void ScaleMatrix(int64_t rows, int64_t cols, float factor, int64_t leading, float* c) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < cols; ++i)
      c[r * leading + i] = factor == 0.0f ? 0.0f : c[r * leading + i] * factor;
  }
}

dnnl::memory::desc MatrixDescriptor(int64_t rows, int64_t cols, bool transposed, int64_t leading,
                                    dnnl::memory::data_type type) {
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, leading} : dnnl::memory::dims{leading, 1};
  return {{rows, cols}, type, strides};
}

dnnl::engine& Engine() {
  static dnnl::engine* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

dnnl::matmul::primitive_desc Bf16Product(const MatMulShape& s) {
  using Type = dnnl::memory::data_type;
  const auto a = MatrixDescriptor(s.m, s.k, s.transpose_a,
                                  Leading(s.lda, s.transpose_a ? s.m : s.k), Type::bf16);
  const auto b = MatrixDescriptor(s.k, s.n, s.transpose_b,
                                  Leading(s.ldb, s.transpose_b ? s.k : s.n), Type::bf16);
  const auto c = MatrixDescriptor(s.m, s.n, false, Leading(s.ldc, s.n), Type::f32);
  dnnl::primitive_attr attributes;
  if (s.beta != 0.0f) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  return {dnnl::matmul::desc(a, b, c), attributes, Engine()};
}

absl::Status RunBf16(const MatMulShape& shape, const uint16_t* a, const uint16_t* b, float* c) {
  try {
    const auto product = Bf16Product(shape);
    dnnl::stream stream(Engine());
    const dnnl::memory a_memory(product.src_desc(), Engine(), const_cast<uint16_t*>(a));
    const dnnl::memory b_memory(product.weights_desc(), Engine(), const_cast<uint16_t*>(b));
    const dnnl::memory c_memory(product.dst_desc(), Engine(), c);
    dnnl::matmul(product).execute(
        stream, {{DNNL_ARG_SRC, a_memory}, {DNNL_ARG_WEIGHTS, b_memory}, {DNNL_ARG_DST, c_memory}});
    stream.wait();
    return absl::OkStatus();
  } catch (const dnnl::error& error) {
    return absl::InternalError(Cat("oneDNN refuses the bf16 product ", shape.m, " x ", shape.n,
                                   " x ", shape.k, ": ", error.what()));
  }
}

}  // namespace

// dnnl_sgemm everywhere: the `matmul` primitive gives other bits for many shapes, and one of the
// two must be chosen.
void MatMul(Stream& stream, const MatMulShape& s, const float* a, const float* b, float* c) {
  if (const DeviceOps* ops = stream.ops()) return ops->MatMul(stream, s, a, b, c);
  assert(s.m >= 0 && s.n >= 0 && s.k >= 0);
  if (s.m == 0 || s.n == 0) return;
  const int64_t lda = Leading(s.lda, s.transpose_a ? s.m : s.k);
  const int64_t ldb = Leading(s.ldb, s.transpose_b ? s.k : s.n);
  const int64_t ldc = Leading(s.ldc, s.n);
  stream.Launch([=, &stream] {
    if (s.k == 0) return ScaleMatrix(s.m, s.n, s.beta, ldc, c);
    const dnnl_status_t status = dnnl_sgemm(s.transpose_a ? 'T' : 'N', s.transpose_b ? 'T' : 'N',
                                            s.m, s.n, s.k, s.alpha, a, lda, b, ldb, s.beta, c, ldc);
    if (status != dnnl_success) {
      stream.Fail(absl::InternalError(Cat("oneDNN refuses the product ", s.m, " x ", s.n, " x ",
                                          s.k, " with status ", static_cast<int>(status))));
    }
  });
}

bool Bf16Available() {
  static const bool available = [] {
    try {
      MatMulShape shape;
      shape.m = shape.n = shape.k = 32;
      (void)Bf16Product(shape);
      return true;
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return available;
}

bool HalfAvailable(const Stream& stream, Half half) {
  if (const DeviceOps* ops = stream.ops()) return ops->HalfAvailable(stream, half);
  return half == Half::kBf16 && Bf16Available();
}

void MatMulBias(Stream& stream, const MatMulShape& shape, const float* a, const float* b,
                const float* bias, float* c) {
  if (const DeviceOps* ops = stream.ops()) return ops->MatMulBias(stream, shape, a, b, bias, c);
  MatMul(stream, shape, a, b, c);
  AddBias(stream, {.rows = shape.m, .cols = shape.n}, bias, c);
}

void MatMulHalf(Stream& stream, Half half, const MatMulShape& shape, const uint16_t* a,
                const uint16_t* b, const float* bias, float* c) {
  if (const DeviceOps* ops = stream.ops())
    return ops->MatMulHalf(stream, half, shape, a, b, bias, c);
  assert(shape.alpha == 1.0f && (shape.beta == 0.0f || shape.beta == 1.0f));
  if (!HalfAvailable(stream, half)) {
    return stream.Fail(absl::UnimplementedError(
        "this CPU has no products of 16-bit inputs (AVX-512 BF16 or AMX): use fp32"));
  }
  if (shape.m == 0 || shape.n == 0) return;
  stream.Launch([=, &stream] {
    if (absl::Status status = RunBf16(shape, a, b, c); !status.ok()) stream.Fail(std::move(status));
  });
  if (bias != nullptr) AddBias(stream, {.rows = shape.m, .cols = shape.n}, bias, c);
}

}  // namespace holdfast::kernels
