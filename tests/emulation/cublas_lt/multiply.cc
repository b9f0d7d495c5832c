// The arithmetic of one product.
#include <dnnl.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/device.h"
#include "kernels/math/half.h"
#include "tests/emulation/cublas_lt/matmul.h"
#include "tests/emulation/tsan.h"

namespace holdfast::emulation {
namespace {

constexpr size_t kTouchedBytes = 4096;  // of the workspace, at least

float Load(const void* data, size_t i, cudaDataType_t type) {
  switch (type) {
    case CUDA_R_16F:
      return kernels::FloatOfF16(static_cast<const uint16_t*>(data)[i]);
    case CUDA_R_16BF:
      return kernels::FloatOfBf16(static_cast<const uint16_t*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

void Store(void* data, size_t i, cudaDataType_t type, float value) {
  switch (type) {
    case CUDA_R_16F:
      static_cast<uint16_t*>(data)[i] = kernels::F16Of(value);
      break;
    case CUDA_R_16BF:
      static_cast<uint16_t*>(data)[i] = kernels::Bf16Of(value);
      break;
    default:
      static_cast<float*>(data)[i] = value;
  }
}

// To 10 bits of mantissa, to nearest even.
float Tf32Of(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7f800000u) == 0x7f800000u) return value;
  bits += 0xfffu + ((bits >> 13) & 1u);
  return std::bit_cast<float>(bits & ~0x1fffu);
}

size_t At(const Layout& layout, int64_t i, int64_t j) {
  return static_cast<size_t>(layout.row_order() ? i * layout.ld + j : j * layout.ld + i);
}

// A factor as sgemm reads it: fp32, where it lies if it is that already. `t` is what sgemm (row
// order) is to be told of op(X).
struct Factor {
  std::vector<float> own;
  const float* data = nullptr;
  int64_t ld = 0;
  bool row_order = false;
  bool transposed = false;

  Factor(const void* from, const Layout& layout, bool transpose, bool tf32)
      : ld(layout.ld), row_order(layout.row_order()), transposed(transpose) {
    if (layout.type == CUDA_R_32F && !tf32) {
      data = static_cast<const float*>(from);
      return;
    }
    const auto along = static_cast<int64_t>(row_order ? layout.cols : layout.rows);
    const auto across = static_cast<int64_t>(row_order ? layout.rows : layout.cols);
    own.resize(static_cast<size_t>(along * across));
    for (int64_t o = 0; o < across; ++o) {
      for (int64_t i = 0; i < along; ++i) {
        const float value = Load(from, static_cast<size_t>(o * layout.ld + i), layout.type);
        own[static_cast<size_t>(o * along + i)] = tf32 ? Tf32Of(value) : value;
      }
    }
    data = own.data();
    ld = std::max<int64_t>(along, 1);
  }
  // 'N' when the memory, read in row order, is op(X) itself.
  char AsIs() const { return row_order != transposed ? 'N' : 'T'; }
  char Turned() const { return row_order != transposed ? 'T' : 'N'; }
  // Where column (or row) k of op(X) begins.
  const float* FromColumn(int64_t k) const { return data + (AsIs() == 'N' ? k : k * ld); }
  const float* FromRow(int64_t k) const { return data + (AsIs() == 'N' ? k * ld : k); }
  float at(int64_t i, int64_t j) const { return data[AsIs() == 'N' ? i * ld + j : j * ld + i]; }
};

// oneDNN's code is not instrumented: what it touches is said here, line by line; its locks order
// nothing.
void Touches(const Problem& p, const Factor& a, const Factor& b, float* to, int64_t ld) {
  const auto lines = [](const Layout& layout, int64_t lines_ld, auto touch) {
    const uint64_t along = layout.row_order() ? layout.cols : layout.rows;
    const uint64_t across = layout.row_order() ? layout.rows : layout.cols;
    for (uint64_t o = 0; o < across; ++o)
      touch(static_cast<int64_t>(o) * lines_ld, along * sizeof(float));
  };
  lines(p.a, a.ld, [&](int64_t at, size_t bytes) { Reads(a.data + at, bytes); });
  lines(p.b, b.ld, [&](int64_t at, size_t bytes) { Reads(b.data + at, bytes); });
  lines(p.d, ld, [&](int64_t at, size_t bytes) { Writes(to + at, bytes); });
}

// to = alpha op(A)[:, begin:end] op(B)[begin:end, :] + beta to
void Panel(const Problem& p, const Factor& a, const Factor& b, int64_t begin, int64_t end,
           float alpha, float beta, float* to, int64_t ld) {
  const int64_t m = p.m(), n = p.n(), k = end - begin;
  const Unseen unseen;
  if (p.d.row_order()) {
    dnnl_sgemm(a.AsIs(), b.AsIs(), m, n, k, alpha, a.FromColumn(begin), a.ld, b.FromRow(begin),
               b.ld, beta, to, ld);
  } else {  // its transpose, in row order
    dnnl_sgemm(b.Turned(), a.Turned(), n, m, k, alpha, b.FromRow(begin), b.ld, a.FromColumn(begin),
               a.ld, beta, to, ld);
  }
}

void Product(const Problem& p, Algorithm::Id id, const Factor& a, const Factor& b, float alpha,
             float beta, float* to, int64_t ld, float* workspace) {
  const int64_t k = p.k();
  if (HF_EMULATION_TSAN != 0) Touches(p, a, b, to, ld);
  if (id == Algorithm::kSplit && k >= 2) {
    const int64_t half = k / 2, along = p.d.row_order() ? p.n() : p.m();
    Panel(p, a, b, 0, half, alpha, beta, to, ld);
    Panel(p, a, b, half, k, alpha, 0.0f, workspace, along);
    const int64_t across = p.d.row_order() ? p.m() : p.n();
    for (int64_t o = 0; o < across; ++o) {
      for (int64_t i = 0; i < along; ++i) to[o * ld + i] += workspace[o * along + i];
    }
    return;
  }
  const int64_t panel = id == Algorithm::kPanels ? 128 : (id == Algorithm::kWide ? 192 : k);
  for (int64_t begin = 0; begin < k; begin += panel)
    Panel(p, a, b, begin, std::min(k, begin + panel), alpha, begin == 0 ? beta : 1.0f, to, ld);
}

constexpr double kGelu = 0.7978845608028654;  // sqrt(2 / pi)
double Tanh(double x) { return std::tanh(kGelu * (x + 0.044715 * x * x * x)); }
double Gelu(double x) { return 0.5 * x * (1 + Tanh(x)); }
double GeluSlope(double x) {
  const double t = Tanh(x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGelu * (1 + 3 * 0.044715 * x * x);
}

// What one matrix of the batch has beside its product.
struct Extras {
  void* bias = nullptr;
  void* aux = nullptr;
  cudaDataType_t bias_type, aux_type;
};

float Epilogue(const Problem& p, const Extras& extras, int64_t i, int64_t j, float value) {
  const uint32_t e = p.op.epilogue;
  const auto aux_at =
      static_cast<size_t>(p.d.row_order() ? i * p.op.aux_ld + j : j * p.op.aux_ld + i);
  if (e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_DGELU_BGRAD)
    return static_cast<float>(value * GeluSlope(Load(extras.aux, aux_at, extras.aux_type)));
  if ((e & CUBLASLT_EPILOGUE_BIAS) != 0)
    value += Load(extras.bias, static_cast<size_t>(i), extras.bias_type);
  if ((e & CUBLASLT_EPILOGUE_RELU) != 0) value = std::max(value, 0.0f);
  if ((e & CUBLASLT_EPILOGUE_GELU) == 0) return value;
  if ((e & CUBLASLT_EPILOGUE_GELU_AUX) == CUBLASLT_EPILOGUE_GELU_AUX)
    Store(extras.aux, aux_at, extras.aux_type, value);
  return static_cast<float>(Gelu(value));
}

// Sums along k (of a factor) or along the columns of D.
void BiasGradient(const Problem& p, const Factor& a, const Factor& b, const void* d,
                  const Extras& extras) {
  const uint32_t e = p.op.epilogue;
  const int64_t length = e == CUBLASLT_EPILOGUE_BGRADB ? p.n() : p.m();
  const int64_t terms = e == CUBLASLT_EPILOGUE_DGELU_BGRAD ? p.n() : p.k();
  for (int64_t i = 0; i < length; ++i) {
    float sum = 0;
    for (int64_t t = 0; t < terms; ++t) {
      if (e == CUBLASLT_EPILOGUE_BGRADA) sum += a.at(i, t);
      if (e == CUBLASLT_EPILOGUE_BGRADB) sum += b.at(t, i);
      if (e == CUBLASLT_EPILOGUE_DGELU_BGRAD) sum += Load(d, At(p.d, i, t), p.d.type);
    }
    Store(extras.bias, static_cast<size_t>(i), extras.bias_type, sum);
  }
}

void One(const Problem& p, Algorithm::Id id, float alpha, float beta, const void* a_data,
         const void* b_data, const void* c, void* d, float* workspace, const Extras& extras) {
  const bool tf32 = p.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const Factor a(a_data, p.a, p.op.transpose_a != CUBLAS_OP_N, tf32);
  const Factor b(b_data, p.b, p.op.transpose_b != CUBLAS_OP_N, tf32);
  const int64_t along = p.d.row_order() ? p.n() : p.m(), across = p.d.row_order() ? p.m() : p.n();
  const bool direct = p.d.type == CUDA_R_32F;
  std::vector<float> own(direct ? 0 : static_cast<size_t>(along * across));
  float* const to = direct ? static_cast<float*>(d) : own.data();
  const int64_t ld = direct ? p.d.ld : along;
  for (int64_t o = 0; o < across && beta != 0.0f && !(direct && c == d); ++o) {
    for (int64_t i = 0; i < along; ++i)
      to[o * ld + i] = Load(c, static_cast<size_t>(o * p.c.ld + i), p.c.type);
  }
  if (p.k() > 0) {
    Product(p, id, a, b, alpha, beta, to, ld, workspace);
  } else {
    for (int64_t o = 0; o < across; ++o) {
      for (int64_t i = 0; i < along; ++i) to[o * ld + i] = beta == 0.0f ? 0 : beta * to[o * ld + i];
    }
  }
  const bool plain = direct && p.op.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
  for (int64_t o = 0; o < across && !plain; ++o) {
    for (int64_t i = 0; i < along; ++i) {
      const int64_t row = p.d.row_order() ? o : i, col = p.d.row_order() ? i : o;
      Store(d, At(p.d, row, col), p.d.type, Epilogue(p, extras, row, col, to[o * ld + i]));
    }
  }
  const uint32_t e = p.op.epilogue;
  if (e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB ||
      e == CUBLASLT_EPILOGUE_DGELU_BGRAD)
    BiasGradient(p, a, b, d, extras);
}

template <typename T>
T* Moved(T* data, int64_t elements, cudaDataType_t type) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  if (data == nullptr) return nullptr;
  return static_cast<Byte*>(data) + elements * static_cast<int64_t>(BytesOf(type));
}

}  // namespace

void Multiply(const Problem& p, Algorithm::Id id, const ProductPointers& data) {
  thread_local const bool prepared = [] {
    kernels::SetComputeThread();
    return true;
  }();
  (void)prepared;
  if (p.m() == 0 || p.n() == 0) return;
  float alpha = 0, beta = 0;
  std::memcpy(&alpha, data.alpha, sizeof alpha);
  std::memcpy(&beta, data.beta, sizeof beta);
  const size_t touched = std::max(kTouchedBytes, WorkspaceOf(id, p));
  if (data.workspace != nullptr)
    std::memset(data.workspace, 0xff, std::min(touched, data.workspace_bytes));
  Extras extras;
  const auto type_or_own = [&](int type) {
    return type == -1 ? p.d.type : static_cast<cudaDataType_t>(type);
  };
  extras.bias_type = type_or_own(p.op.bias_type);
  extras.aux_type = type_or_own(p.op.aux_type);
  for (int32_t i = 0; i < p.d.batch_count; ++i) {
    extras.bias = Moved(p.op.bias, i * p.op.bias_stride, extras.bias_type);
    extras.aux = Moved(p.op.aux, i * p.op.aux_stride, extras.aux_type);
    One(p, id, alpha, beta, Moved(data.a, i * p.a.batch_stride, p.a.type),
        Moved(data.b, i * p.b.batch_stride, p.b.type),
        Moved(data.c, i * p.c.batch_stride, p.c.type),
        Moved(data.d, i * p.d.batch_stride, p.d.type), static_cast<float*>(data.workspace), extras);
  }
}

}  // namespace holdfast::emulation
