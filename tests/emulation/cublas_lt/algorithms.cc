// Which products there are, which algorithms for them, and the call.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/emulation/cublas_lt/matmul.h"
#include "tests/emulation/cuda/runtime.h"

using namespace holdfast::emulation;  // NOLINT: everything below is the emulation's

struct cublasLtContext {
  static constexpr uint64_t kMark = 0x7475626c61732d65;
  uint64_t mark = kMark;
};

namespace {

constexpr uint64_t kAlgorithmMark = 0x6f676c612d756d65;
constexpr size_t kVersion = 130100;
constexpr size_t kLittleWorkspace = 64 << 10;
constexpr uint32_t kWideAlignment = 16;

uint64_t Hash(std::initializer_list<uint64_t> words) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint64_t word : words) hash = (hash ^ word) * 0x100000001b3 + (hash >> 29);
  return hash;
}

// An algorithm is good for any size of a problem of its types and operations.
uint64_t KindOf(const Problem& p) {
  const auto word = [](auto value) { return static_cast<uint64_t>(value); };
  return Hash({word(p.a.type), word(p.b.type), word(p.c.type), word(p.d.type), word(p.op.compute),
               word(p.op.scale), word(p.op.transpose_a), word(p.op.transpose_b),
               word(p.op.epilogue)});
}

uint64_t CheckOf(const Algorithm& a) {
  return Hash(
      {a.mark, a.version, static_cast<uint64_t>(a.id), static_cast<uint64_t>(a.scheme), a.problem});
}

bool KnownEpilogue(uint32_t epilogue) {
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
      return true;
    default:
      return false;
  }
}

bool Supported(const Problem& p) {
  const bool narrow = p.a.type == CUDA_R_16F || p.a.type == CUDA_R_16BF;
  const bool compute = p.op.compute == CUBLAS_COMPUTE_32F ||
                       p.op.compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                       (p.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && !narrow);
  const auto own_or_float = [&](int type) {
    return type == -1 || type == CUDA_R_32F || type == static_cast<int>(p.d.type);
  };
  return compute && p.op.scale == CUDA_R_32F && (narrow || p.a.type == CUDA_R_32F) &&
         p.b.type == p.a.type && p.c.type == p.d.type &&
         (p.d.type == CUDA_R_32F || (narrow && p.d.type == p.a.type)) &&
         KnownEpilogue(p.op.epilogue) && own_or_float(p.op.bias_type) &&
         own_or_float(p.op.aux_type) && p.c.order == p.d.order;
}

// Device memory in which `bytes` lie from here.
bool OnDevice(const void* data, size_t bytes) {
  if (bytes == 0) return true;
  if (data == nullptr) return false;
  const auto [begin, block] = Runtime::Instance().FindBlock(data);
  return block.kind == Memory::kDevice && !block.freeing &&
         bytes <= block.bytes - static_cast<size_t>(static_cast<const char*>(data) - begin);
}

bool OnDevice(const void* data, const Layout& layout) {
  return OnDevice(data, layout.elements() * BytesOf(layout.type));
}

void Complain(const char* what) { std::fprintf(stderr, "emulated cuBLASLt: %s\n", what); }

}  // namespace

namespace holdfast::emulation {

cublasStatus_t Describe(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, Problem& problem) {
  const Description* description = DescriptionOf(op);
  if (description == nullptr || LayoutOf(a) == nullptr || LayoutOf(b) == nullptr ||
      LayoutOf(c) == nullptr || LayoutOf(d) == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  problem = {*description, *LayoutOf(a), *LayoutOf(b), *LayoutOf(c), *LayoutOf(d)};
  const Problem& p = problem;
  const bool ta = p.op.transpose_a != CUBLAS_OP_N, tb = p.op.transpose_b != CUBLAS_OP_N;
  const bool fits = (ta ? p.a.cols : p.a.rows) == p.d.rows &&
                    (tb ? p.b.rows : p.b.cols) == p.d.cols &&
                    (tb ? p.b.cols : p.b.rows) == (ta ? p.a.rows : p.a.cols) &&
                    p.c.rows == p.d.rows && p.c.cols == p.d.cols;
  const bool batches = p.a.batch_count >= 1 && p.a.batch_count == p.d.batch_count &&
                       p.b.batch_count == p.d.batch_count && p.c.batch_count == p.d.batch_count;
  if (!fits || !batches || !p.a.whole() || !p.b.whole() || !p.c.whole() || !p.d.whole())
    return CUBLAS_STATUS_INVALID_VALUE;
  return Supported(p) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

size_t WorkspaceOf(Algorithm::Id id, const Problem& problem) {
  if (id == Algorithm::kWide) return kLittleWorkspace;
  if (id == Algorithm::kSplit)
    return static_cast<size_t>(problem.m() * problem.n()) * sizeof(float);
  return 0;
}

std::vector<Algorithm::Id> Suitable(const Problem& problem, const Preference& preference) {
  const uint32_t least =
      *std::min_element(std::begin(preference.alignment), std::end(preference.alignment));
  std::vector<Algorithm::Id> ids;
  const auto offer = [&](Algorithm::Id id) {
    if (WorkspaceOf(id, problem) <= preference.workspace_bytes) ids.push_back(id);
  };
  const bool may_reduce = (preference.reduction_mask & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0;
  const bool few_tiles = problem.m() * problem.n() <= 128 * 128;
  if (may_reduce && few_tiles && problem.k() >= 256) offer(Algorithm::kSplit);
  if (problem.k() >= 512 && least >= kWideAlignment) offer(Algorithm::kWide);
  if (problem.m() % 2 == 0) {
    offer(Algorithm::kWhole);
    offer(Algorithm::kPanels);
  } else {
    offer(Algorithm::kPanels);
    offer(Algorithm::kWhole);
  }
  return ids;
}

cublasLtMatmulAlgo_t Pack(const Problem& problem, Algorithm::Id id) {
  Algorithm ours;
  ours.mark = kAlgorithmMark;
  ours.version = kVersion;
  ours.id = id;
  ours.scheme = id == Algorithm::kSplit ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                        : CUBLASLT_REDUCTION_SCHEME_NONE;
  ours.problem = KindOf(problem);
  ours.check = CheckOf(ours);
  static_assert(sizeof ours <= sizeof(cublasLtMatmulAlgo_t));
  cublasLtMatmulAlgo_t packed{};
  std::memcpy(&packed, &ours, sizeof ours);
  return packed;
}

std::optional<Algorithm> Unpack(const cublasLtMatmulAlgo_t& packed, const Problem& problem) {
  Algorithm ours;
  std::memcpy(static_cast<void*>(&ours), &packed, sizeof ours);
  if (ours.mark != kAlgorithmMark || ours.version != kVersion || ours.check != CheckOf(ours) ||
      ours.id < Algorithm::kWhole || ours.id > Algorithm::kSplit || ours.problem != KindOf(problem))
    return std::nullopt;
  return ours;
}

}  // namespace holdfast::emulation

// ---- Calls

size_t cublasLtGetVersion() { return kVersion; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "CUBLAS_STATUS_UNKNOWN";
}

const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (Runtime::Instance().Enter() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (count == nullptr || results == nullptr || wanted < 1 || PreferenceOf(preference) == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  *count = 0;
  Problem problem;
  if (const cublasStatus_t status = Describe(op, a, b, c, d, problem);
      status != CUBLAS_STATUS_SUCCESS)
    return status;
  for (const Algorithm::Id id : Suitable(problem, *PreferenceOf(preference))) {
    if (*count >= wanted) break;
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {};
    result.algo = Pack(problem, id);
    result.workspaceSize = WorkspaceOf(id, problem);
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1.0f;
  }
  return *count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (algo == nullptr || result == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  Problem problem;
  if (const cublasStatus_t status = Describe(op, a, b, c, d, problem);
      status != CUBLAS_STATUS_SUCCESS)
    return status;
  const std::optional<Algorithm> ours = Unpack(*algo, problem);
  if (!ours) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {};
  result->algo = *algo;
  result->workspaceSize = WorkspaceOf(static_cast<Algorithm::Id>(ours->id), problem);
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1.0f;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* to, size_t bytes, size_t* written) {
  if (algo == nullptr || to == nullptr || bytes != sizeof(int32_t))
    return CUBLAS_STATUS_INVALID_VALUE;
  Algorithm ours;
  std::memcpy(static_cast<void*>(&ours), algo, sizeof ours);
  int32_t value = 0;
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_ID:
      value = ours.id;
      break;
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
      value = ours.id == Algorithm::kSplit ? 2 : 1;
      break;
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
      value = ours.scheme;
      break;
  }
  std::memcpy(to, &value, sizeof value);
  if (written != nullptr) *written = sizeof value;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  Problem problem;
  if (const cublasStatus_t status = Describe(op, a_layout, b_layout, c_layout, d_layout, problem);
      status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  auto id = Algorithm::kWhole;
  if (algo != nullptr) {
    const std::optional<Algorithm> ours = Unpack(*algo, problem);
    if (!ours) return CUBLAS_STATUS_NOT_SUPPORTED;
    id = static_cast<Algorithm::Id>(ours->id);
  } else {
    Preference preference;
    preference.workspace_bytes = workspace_bytes;
    id = Suitable(problem, preference).front();
  }
  if (WorkspaceOf(id, problem) > workspace_bytes ||
      (workspace_bytes > 0 && reinterpret_cast<uintptr_t>(workspace) % 16 != 0))
    return CUBLAS_STATUS_INVALID_VALUE;
  float scale[2] = {0, 0};
  const bool on_host = problem.op.pointer_mode == CUBLASLT_POINTER_MODE_HOST;
  if (on_host) {
    std::memcpy(&scale[0], alpha, sizeof(float));
    std::memcpy(&scale[1], beta, sizeof(float));
  }
  const bool reads_c = !on_host || scale[1] != 0.0f;
  if (!OnDevice(a, problem.a) || !OnDevice(b, problem.b) || !OnDevice(d, problem.d) ||
      (reads_c && !OnDevice(c, problem.c)) || !OnDevice(workspace, workspace_bytes)) {
    Complain("a matrix or the workspace is not device memory of the size that is used");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (c == d && (problem.c.ld != problem.d.ld || problem.c.batch_stride != problem.d.batch_stride))
    return CUBLAS_STATUS_INVALID_VALUE;
  ProductPointers data{alpha, a, b, beta, c, d, workspace, workspace_bytes};
  const cudaError_t error = Submit(stream, [problem, id, data, scale, on_host]() mutable {
    if (on_host) {
      data.alpha = &scale[0];
      data.beta = &scale[1];
    }
    Multiply(problem, id, data);
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
