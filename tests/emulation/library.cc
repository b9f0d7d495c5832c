// The tables of cuBLASLt and NCCL in the emulated build: the stand-ins, which are linked.
#include "kernels/cuda/library.h"

namespace holdfast::kernels::cuda {

absl::StatusOr<const CublasLtTable*> LoadCublasLt(const CudaOptions&) {
  static const CublasLtTable* const table = [] {
    auto* made = new CublasLtTable;
#define HOLDFAST_LIBRARY_FUNCTION(name) made->name = &::cublasLt##name;
    HOLDFAST_CUBLAS_LT_FUNCTIONS(HOLDFAST_LIBRARY_FUNCTION)
#undef HOLDFAST_LIBRARY_FUNCTION
    made->path = "the emulation";
    made->version = LibraryVersionText(made->GetVersion());
    return made;
  }();
  return table;
}

absl::StatusOr<const NcclTable*> LoadNccl(const CudaOptions&) {
  static const NcclTable* const table = [] {
    auto* made = new NcclTable;
#define HOLDFAST_LIBRARY_FUNCTION(name) made->name = &::nccl##name;
    HOLDFAST_NCCL_FUNCTIONS(HOLDFAST_LIBRARY_FUNCTION)
#undef HOLDFAST_LIBRARY_FUNCTION
    int number = 0;
    if (made->GetVersion(&number) == ncclSuccess) made->version = LibraryVersionText(number);
    made->path = "the emulation";
    return made;
  }();
  return table;
}

}  // namespace holdfast::kernels::cuda
