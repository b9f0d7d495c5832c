#include "kernels/cuda/matmul.h"

#include <algorithm>
#include <cassert>

#include "kernels/cuda/cuda_ops.h"
#include "runtime/base/text.h"

namespace holdfast::kernels::cuda {
namespace {

// NVIDIA's advice for sm_90; the choice depends on it, so it is the same everywhere.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
constexpr int kCandidates = 8;

absl::Status StatusOf(const CublasLtTable& table, cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(Cat(call, ": ", table.GetStatusString(status)));
}

// A descriptor of cuBLASLt.
template <typename T>
class Owned {
 public:
  explicit Owned(cublasStatus_t (*destroy)(T)) : destroy_(destroy) {}
  ~Owned() {
    if (value != nullptr) (void)destroy_(value);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T value = nullptr;

 private:
  cublasStatus_t (*const destroy_)(T);
};

cudaDataType_t DataType(ProductType type) {
  if (type == ProductType::kBf16) return CUDA_R_16BF;
  return type == ProductType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

// How cuBLASLt, which knows columns first, sees a product: c^T [n,m] = op(b)^T op(a)^T, and a
// row-major matrix is its own transpose. So its A is b, its B is a, and the bias, one value for a
// column of c, is one for a row of its D: what the epilogue BIAS adds.
class Problem {
 public:
  Problem(const CublasLtTable& table, const Product& product)
      : table_(table),
        product_(product),
        operation(table.MatmulDescDestroy),
        a(table.MatrixLayoutDestroy),
        b(table.MatrixLayoutDestroy),
        c(table.MatrixLayoutDestroy) {}

  // bias: null leaves it out.
  absl::Status Describe(const float* bias) {
    const Product& p = product_;
    const int parts = PartsOf(p);
    const int64_t k = p.k / parts;
    const auto compute =
        p.type == ProductType::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    if (auto s = Call(table_.MatmulDescCreate(&operation.value, compute, CUDA_R_32F)); !s.ok())
      return s;
    Set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    Set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (bias != nullptr) {
      Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    const cudaDataType_t type = DataType(p.type);
    Layout(a, type, p.transpose_b ? k : p.n, p.transpose_b ? p.n : k, p.ldb, parts,
           p.transpose_b ? k : k * p.ldb);
    Layout(b, type, p.transpose_a ? p.m : k, p.transpose_a ? k : p.m, p.lda, parts,
           p.transpose_a ? k * p.lda : k);
    Layout(c, CUDA_R_32F, p.n, p.m, parts > 1 ? p.n : p.ldc, parts, p.m * p.n);
    return status_;
  }

 private:
  absl::Status Call(cublasStatus_t status) {
    if (status_.ok()) status_ = StatusOf(table_, status, "describing a product to cuBLASLt");
    return status_;
  }
  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    (void)Call(table_.MatmulDescSetAttribute(operation.value, attribute, &value, sizeof value));
  }
  void Layout(Owned<cublasLtMatrixLayout_t>& layout, cudaDataType_t type, int64_t rows,
              int64_t cols, int64_t leading, int parts, int64_t stride) {
    if (!Call(table_.MatrixLayoutCreate(&layout.value, type, static_cast<uint64_t>(rows),
                                        static_cast<uint64_t>(cols), leading))
             .ok() ||
        parts == 1) {
      return;
    }
    (void)Call(table_.MatrixLayoutSetAttribute(layout.value, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                               &parts, sizeof parts));
    (void)Call(table_.MatrixLayoutSetAttribute(
        layout.value, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
  }

  const CublasLtTable& table_;
  const Product& product_;
  absl::Status status_;

 public:
  Owned<cublasLtMatmulDesc_t> operation;
  Owned<cublasLtMatrixLayout_t> a, b, c;
};

std::string Named(const Product& p) {
  return Cat("the product ", p.m, " x ", p.n, " x ", p.k, " (", ChoiceText(p, {}).substr(0, 4),
             ")");
}

int AlignmentOf(const ProductData& data) {
  const uintptr_t all = reinterpret_cast<uintptr_t>(data.a) | reinterpret_cast<uintptr_t>(data.b) |
                        reinterpret_cast<uintptr_t>(data.c) |
                        reinterpret_cast<uintptr_t>(data.bias) | 16u;
  return static_cast<int>(all & (~all + 1));  // its lowest bit
}

}  // namespace

int PartsOf(const Product& p) {
  constexpr int64_t kTile = 128, kTilesAtOnce = 264;  // two on each multiprocessor of an H100
  constexpr int64_t kShortest = 512, kStep = 64, kScratchMost = int64_t{64} << 20;
  const int64_t results = p.m * p.n;
  const int64_t tiles = (p.m + kTile - 1) / kTile * ((p.n + kTile - 1) / kTile);
  // Picoseconds: for a term of one wave of tiles, and for one result of a part that is written and
  // read again (4 TB/s). They decide between few and many parts only; no bits beyond that.
  const int64_t term = p.type == ProductType::kFloat ? 140'000 : 12'000, result = 1,
                start = 3'000'000;
  int best = 1;
  int64_t least = 0;
  for (const int parts : {1, 2, 4, 8}) {
    if (parts > 1 && (p.bias || p.k % (parts * kStep) != 0 || p.k / parts < kShortest ||
                      parts * results * 4 > kScratchMost))
      break;
    const int64_t waves = (tiles * parts + kTilesAtOnce - 1) / kTilesAtOnce;
    const int64_t cost =
        waves * (p.k / parts) * term + (parts > 1 ? start + (parts + 1) * results * result : 0);
    if (parts == 1 || cost < least) {
      best = parts;
      least = cost;
    }
  }
  return best;
}

absl::StatusOr<std::unique_ptr<MatMulLibrary>> MatMulLibrary::Create(
    const CublasLtTable& table, const std::string& compute_class) {
  std::unique_ptr<MatMulLibrary> library(
      new MatMulLibrary(table, Cat("cuBLASLt ", table.version, " | ", compute_class)));
  absl::Status s = StatusOf(table, table.Create(&library->handle_), "cublasLtCreate");
  if (!s.ok()) return s;
  return library;
}

MatMulLibrary::~MatMulLibrary() {
  if (handle_ != nullptr) (void)table_.Destroy(handle_);
}

absl::StatusOr<Choice> MatMulLibrary::AskHeuristic(const Product& product, const float* bias) {
  Problem problem(table_, product);
  if (absl::Status s = problem.Describe(bias); !s.ok()) return s;
  Owned<cublasLtMatmulPreference_t> preference(table_.MatmulPreferenceDestroy);
  cublasStatus_t status = table_.MatmulPreferenceCreate(&preference.value);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    if (status == CUBLAS_STATUS_SUCCESS) {
      status =
          table_.MatmulPreferenceSetAttribute(preference.value, attribute, &value, sizeof value);
    }
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(attribute, static_cast<uint32_t>(product.alignment));
  if (absl::Status s = StatusOf(table_, status, "cublasLtMatmulPreference"); !s.ok()) return s;

  cublasLtMatmulHeuristicResult_t results[kCandidates] = {};
  int count = 0;
  status = table_.MatmulAlgoGetHeuristic(handle_, problem.operation.value, problem.a.value,
                                         problem.b.value, problem.c.value, problem.c.value,
                                         preference.value, kCandidates, results, &count);
  // The best by the library's own estimate comes first.
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    if (results[i].state != CUBLAS_STATUS_SUCCESS ||
        results[i].workspaceSize > static_cast<size_t>(kWorkspaceBytes))
      continue;
    return Choice{.algorithm = results[i].algo,
                  .workspace_bytes = static_cast<int64_t>(results[i].workspaceSize)};
  }
  if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED)
    return StatusOf(table_, status, "cublasLtMatmulAlgoGetHeuristic");
  return absl::UnimplementedError(
      Cat("cuBLASLt has no algorithm for ", Named(product), " without reductions between blocks"));
}

absl::StatusOr<Choice> MatMulLibrary::ChoiceOf(const Product& product, const float* bias) {
  const std::lock_guard lock(mutex_);
  const auto known = choices_.find(product);
  if (known != choices_.end()) return known->second;
  absl::StatusOr<Choice> choice = AskHeuristic(product, bias);
  if (absl::IsUnimplemented(choice.status()) && bias != nullptr) {
    choice = AskHeuristic(product, nullptr);
    if (choice.ok()) choice->separate_bias = true;
  }
  if (choice.ok()) choices_.emplace(product, *choice);
  return choice;
}

absl::Status MatMulLibrary::Multiply(CudaStream& stream, const Product& product,
                                     const Choice& choice, const ProductData& data) {
  Problem problem(table_, product);
  const int parts = PartsOf(product);
  const bool fused = data.bias != nullptr && !choice.separate_bias;
  if (absl::Status s = problem.Describe(fused ? data.bias : nullptr); !s.ok()) return s;
  void* const workspace = stream.Workspace(choice.workspace_bytes);
  if (workspace == nullptr) return absl::OkStatus();  // the stream has failed
  float* out = data.c;
  float beta = data.beta;
  if (parts > 1) {
    beta = 0;
    out = static_cast<float*>(stream.Scratch(parts * product.m * product.n * 4));
    if (out == nullptr) return absl::OkStatus();
  }
  const cublasStatus_t status =
      table_.Matmul(handle_, problem.operation.value, &data.alpha, data.b, problem.a.value, data.a,
                    problem.b.value, &beta, out, problem.c.value, out, problem.c.value,
                    &choice.algorithm, workspace, static_cast<size_t>(choice.workspace_bytes),
                    static_cast<cudaStream_t>(stream.native()));
  if (!stream.Check(cudaGetLastError(), "cublasLtMatmul")) return absl::OkStatus();
  if (absl::Status s = StatusOf(table_, status, "cublasLtMatmul"); !s.ok())
    return absl::InternalError(Cat(Named(product), ": ", StdView(s.message())));
  if (parts > 1) SumParts(stream, product, parts, data.beta != 0.0f, out, data.c);
  if (choice.separate_bias && data.bias != nullptr) AddBiasRows(stream, product, data.bias, data.c);
  return absl::OkStatus();
}

void MatMulLibrary::Run(CudaStream& stream, Product product, const ProductData& data) {
  if (product.m == 0 || product.n == 0) return;
  if (product.k == 0) {
    ScaleRows(stream, product, data.beta, data.c);
    if (data.bias != nullptr) AddBiasRows(stream, product, data.bias, data.c);
    return;
  }
  product.bias = data.bias != nullptr;
  product.alignment = AlignmentOf(data);
  const absl::StatusOr<Choice> choice = ChoiceOf(product, data.bias);
  absl::Status status = choice.status();
  if (choice.ok()) status = Multiply(stream, product, *choice, data);
  if (!status.ok()) stream.Fail(std::move(status));
}

std::string MatMulLibrary::Choices() const {
  const std::lock_guard lock(mutex_);
  std::string text = header_ + "\n";
  for (const auto& [product, choice] : choices_) text += ChoiceText(product, choice) + "\n";
  return text;
}

absl::Status MatMulLibrary::Adopt(const std::string& text) {
  constexpr size_t kMost = 65'536;
  size_t end = text.find('\n');
  const std::string header = text.substr(0, end);
  if (header != header_) {
    return absl::InvalidArgumentError(Cat("the run's matrix products were chosen by '", header,
                                          "', here it is '", header_,
                                          "': another compute class, with other bits"));
  }
  std::map<Product, Choice> adopted;
  while (end != std::string::npos && end + 1 < text.size() && adopted.size() < kMost) {
    const size_t begin = end + 1;
    end = text.find('\n', begin);
    auto read = ParseChoice(text.substr(begin, end == std::string::npos ? end : end - begin));
    if (!read.ok()) return read.status();
    const auto& [product, choice] = *read;
    Problem problem(table_, product);
    // Any address will do for the check; it is not read.
    const auto* bias = reinterpret_cast<const float*>(uintptr_t{256});
    absl::Status s = problem.Describe(product.bias && !choice.separate_bias ? bias : nullptr);
    if (!s.ok()) return s;
    cublasLtMatmulHeuristicResult_t result = {};
    const cublasStatus_t status =
        table_.MatmulAlgoCheck(handle_, problem.operation.value, problem.a.value, problem.b.value,
                               problem.c.value, problem.c.value, &choice.algorithm, &result);
    if (status != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > static_cast<size_t>(kWorkspaceBytes)) {
      return absl::InvalidArgumentError(Cat("the run's algorithm for ", Named(product),
                                            " cannot run here: ", table_.GetStatusString(status),
                                            ": another compute class, with other bits"));
    }
    adopted.insert(*read);
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [product, choice] : adopted) {
    const auto known = choices_.find(product);
    if (known != choices_.end() &&
        ChoiceText(product, known->second) != ChoiceText(product, choice)) {
      return absl::FailedPreconditionError(
          Cat(Named(product), " was computed here before the run's algorithms were adopted"));
    }
  }
  choices_.insert(adopted.begin(), adopted.end());
  return absl::OkStatus();
}

// ---- The operations

namespace {

Product ProductOf(const MatMulShape& s, ProductType type) {
  const auto leading = [](int64_t given, int64_t dense) {
    if (given == 0) return std::max<int64_t>(dense, 1);
    assert(given >= dense);
    return given;
  };
  assert(s.m >= 0 && s.n >= 0 && s.k >= 0);
  return {.type = type,
          .transpose_a = s.transpose_a,
          .transpose_b = s.transpose_b,
          .m = s.m,
          .n = s.n,
          .k = s.k,
          .lda = leading(s.lda, s.transpose_a ? s.m : s.k),
          .ldb = leading(s.ldb, s.transpose_b ? s.k : s.n),
          .ldc = leading(s.ldc, s.n)};
}

void Multiply(Stream& stream, const Product& product, const ProductData& data) {
  CudaStream& on = ToCuda(stream);
  on.device().matmul().Run(on, product, data);
}

ProductType FloatType(Stream& stream) {
  return ToCuda(stream).allow_tf32 ? ProductType::kTf32 : ProductType::kFloat;
}

}  // namespace

void MatMul(Stream& stream, const MatMulShape& s, const float* a, const float* b, float* c) {
  Multiply(stream, ProductOf(s, FloatType(stream)),
           {.a = a, .b = b, .c = c, .alpha = s.alpha, .beta = s.beta});
}

void MatMulBias(Stream& stream, const MatMulShape& s, const float* a, const float* b,
                const float* bias, float* c) {
  Multiply(stream, ProductOf(s, FloatType(stream)), {.a = a, .b = b, .bias = bias, .c = c});
}

bool HalfAvailable(const Stream&, Half) { return true; }  // sm_80 and later have both

void MatMulHalf(Stream& stream, Half half, const MatMulShape& s, const uint16_t* a,
                const uint16_t* b, const float* bias, float* c) {
  assert(s.alpha == 1.0f && (s.beta == 0.0f || s.beta == 1.0f));
  const ProductType type = half == Half::kBf16 ? ProductType::kBf16 : ProductType::kF16;
  Multiply(stream, ProductOf(s, type), {.a = a, .b = b, .bias = bias, .c = c, .beta = s.beta});
}

void AllowTf32(Stream& stream, bool allow) { ToCuda(stream).allow_tf32 = allow; }

}  // namespace holdfast::kernels::cuda
