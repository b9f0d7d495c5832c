// Descriptors: opaque structs that hold ours.
#include <cstring>

#include "tests/emulation/cublas_lt/matmul.h"

using namespace holdfast::emulation;  // NOLINT: everything below is the emulation's

namespace {

template <typename Ours, typename Opaque>
Ours* View(Opaque* opaque) {
  static_assert(sizeof(Ours) <= sizeof(Opaque));
  auto* ours = reinterpret_cast<Ours*>(opaque);
  return ours != nullptr && ours->mark == Ours::kMark ? ours : nullptr;
}

template <typename Ours, typename Opaque>
cublasStatus_t Make(Opaque** handle, const Ours& ours) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = new Opaque{};
  std::memcpy(static_cast<void*>(*handle), &ours, sizeof ours);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Ours, typename Opaque>
cublasStatus_t Drop(Opaque* handle) {
  if (View<Ours>(handle) == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  View<Ours>(handle)->mark = 0;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

// The size must be the attribute's own, as there.
template <typename T>
cublasStatus_t Set(T& to, const void* from, size_t bytes) {
  if (from == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(static_cast<void*>(&to), from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

namespace holdfast::emulation {

const Layout* LayoutOf(cublasLtMatrixLayout_t handle) { return View<Layout>(handle); }
const Description* DescriptionOf(cublasLtMatmulDesc_t handle) { return View<Description>(handle); }
const Preference* PreferenceOf(cublasLtMatmulPreference_t handle) {
  return View<Preference>(handle);
}

size_t BytesOf(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_32F:
      return 4;
    case CUDA_R_64F:
      return 8;
  }
  return 0;
}

bool Layout::whole() const {
  const uint64_t lines = row_order() ? cols : rows;
  return ld >= 0 && static_cast<uint64_t>(ld) >= lines;
}

size_t Layout::elements() const {
  if (rows == 0 || cols == 0 || batch_count < 1) return 0;
  const uint64_t along = row_order() ? cols : rows, across = row_order() ? rows : cols;
  return static_cast<size_t>(batch_count - 1) * static_cast<size_t>(batch_stride) +
         (across - 1) * static_cast<size_t>(ld) + along;
}

}  // namespace holdfast::emulation

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  Layout ours;
  ours.type = type;
  ours.rows = rows;
  ours.cols = cols;
  ours.ld = ld;
  return Make(layout, ours);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return Drop<Layout>(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* from, size_t bytes) {
  Layout* layout = View<Layout>(handle);
  if (layout == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return Set(layout->type, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return Set(layout->order, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return Set(layout->rows, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return Set(layout->cols, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return Set(layout->ld, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return Set(layout->batch_count, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return Set(layout->batch_stride, from, bytes);
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  Description ours;
  ours.compute = compute;
  ours.scale = scale;
  return Make(desc, ours);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return Drop<Description>(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* from, size_t bytes) {
  Description* desc = View<Description>(handle);
  if (desc == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return Set(desc->compute, from, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return Set(desc->scale, from, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return Set(desc->pointer_mode, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Set(desc->transpose_a, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Set(desc->transpose_b, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Set(desc->epilogue, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Set(desc->bias, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      return Set(desc->bias_stride, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return Set(desc->bias_type, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return Set(desc->aux, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return Set(desc->aux_ld, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
      return Set(desc->aux_stride, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return Set(desc->aux_type, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSC:
      break;
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return Make(preference, Preference{});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return Drop<Preference>(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* from, size_t bytes) {
  Preference* preference = View<Preference>(handle);
  if (preference == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
      return Set(preference->search_mode, from, bytes);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Set(preference->workspace_bytes, from, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Set(preference->reduction_mask, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return Set(preference->alignment[0], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return Set(preference->alignment[1], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return Set(preference->alignment[2], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Set(preference->alignment[3], from, bytes);
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}
