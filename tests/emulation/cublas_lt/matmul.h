// The inside of the emulated cuBLASLt: matrix products on the CPU, by oneDNN's sgemm in one thread.
//
// What is imitated: descriptors, layouts in both orders, strided batches, the heuristic (several
// algorithms, whose bits differ; which comes first depends on the shape), its preferences
// (workspace, reduction schemes, alignments), algorithms as opaque bytes that can be kept and given
// back, and are refused when they are not of this version or not for this problem. 16-bit inputs
// are widened exactly; TF32 rounds its inputs; sums are fp32. Epilogues: bias, ReLU, GELU (of tanh)
// with auxiliary output, its gradient, bias gradients.
//
// Stricter than the real one: matrices and workspace must be device memory that is large enough,
// and each product writes over the part of the workspace that its algorithm asks for (at least the
// first bytes), in its stream's order: two streams that share one show as a race, or as other bits.
//
// Threads: any; a product runs in its stream's thread.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace holdfast::emulation {

struct Layout {
  static constexpr uint32_t kMark = 0x4c41594f;
  uint32_t mark = kMark;
  cudaDataType_t type = CUDA_R_32F;
  uint64_t rows = 0, cols = 0;
  int64_t ld = 0;
  int32_t order = CUBLASLT_ORDER_COL, batch_count = 1;
  int64_t batch_stride = 0;

  bool row_order() const { return order == CUBLASLT_ORDER_ROW; }
  // Whether ld is long enough for the rows (or columns).
  bool whole() const;
  // From the first element to behind the last one of all matrices.
  size_t elements() const;
};

struct Description {
  static constexpr uint32_t kMark = 0x44455343;
  uint32_t mark = kMark;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int32_t bias_type = -1, aux_type = -1;  // -1: that of D
  void* bias = nullptr;
  int64_t bias_stride = 0;
  void* aux = nullptr;
  int64_t aux_ld = 0, aux_stride = 0;
};

struct Preference {
  static constexpr uint32_t kMark = 0x50524546;
  uint32_t mark = kMark;
  uint32_t reduction_mask = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint64_t workspace_bytes = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
  uint32_t search_mode = 0;
};

// Null: not one (that is alive).
const Layout* LayoutOf(cublasLtMatrixLayout_t handle);
const Description* DescriptionOf(cublasLtMatmulDesc_t handle);
const Preference* PreferenceOf(cublasLtMatmulPreference_t handle);

size_t BytesOf(cudaDataType_t type);

// One product as it was described.
struct Problem {
  Description op;
  Layout a, b, c, d;
  int64_t m() const { return static_cast<int64_t>(d.rows); }
  int64_t n() const { return static_cast<int64_t>(d.cols); }
  int64_t k() const {
    return static_cast<int64_t>(op.transpose_a == CUBLAS_OP_N ? a.cols : a.rows);
  }
};
// kInvalidValue or kNotSupported as cuBLASLt has it; success fills `problem`.
cublasStatus_t Describe(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, Problem& problem);

// What the 64 opaque bytes hold.
struct Algorithm {
  enum Id : int32_t {
    kWhole = 1,   // k in one piece
    kPanels = 2,  // k in panels of 128, one after the other: other bits
    kWide = 3,    // panels of 192, wants aligned matrices and a little workspace
    kSplit = 4    // two halves of k at once, added through the workspace
  };
  uint64_t mark = 0, version = 0;
  int32_t id = 0, scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  uint64_t problem = 0;  // hash of types and operations
  uint64_t check = 0;
};
cublasLtMatmulAlgo_t Pack(const Problem& problem, Algorithm::Id id);
std::optional<Algorithm> Unpack(const cublasLtMatmulAlgo_t& packed, const Problem& problem);
size_t WorkspaceOf(Algorithm::Id id, const Problem& problem);
// Those that fit the preference, the best first.
std::vector<Algorithm::Id> Suitable(const Problem& problem, const Preference& preference);

struct ProductPointers {
  const void *alpha, *a, *b, *beta, *c;
  void *d, *workspace;
  size_t workspace_bytes;
};
// Runs it, in the calling thread.
void Multiply(const Problem& problem, Algorithm::Id id, const ProductPointers& data);

}  // namespace holdfast::emulation
