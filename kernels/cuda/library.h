// The functions of cuBLASLt and NCCL, as tables: the libraries are never linked, but opened when a
// device or a communicator is made (library.cc), so that the program starts without them. The tests
// on the emulated device fill the tables from what they link instead.
//
// Threads: any; each library is opened once and stays. Errors: kFailedPrecondition names the
// library that is missing (with every folder looked into), or its version and the one needed.
#pragma once

#include <cublasLt.h>
#if __has_include(<nccl.h>)  // a toolkit may come without it
#include <nccl.h>
#define HOLDFAST_HAVE_NCCL_HEADER 1
#endif

#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda_backend.h"
#include "runtime/base/text.h"

namespace holdfast::kernels::cuda {

// clang-format off
#define HOLDFAST_CUBLAS_LT_FUNCTIONS(X) \
  X(Create) X(Destroy) X(GetVersion) X(GetStatusString) X(Matmul) X(MatmulDescCreate) \
  X(MatmulDescDestroy) X(MatmulDescSetAttribute) X(MatrixLayoutCreate) X(MatrixLayoutDestroy) \
  X(MatrixLayoutSetAttribute) X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy) \
  X(MatmulPreferenceSetAttribute) X(MatmulAlgoGetHeuristic) X(MatmulAlgoCheck)
// clang-format on

// table.Matmul(...) is cublasLtMatmul(...).
struct CublasLtTable {
#define HOLDFAST_LIBRARY_FUNCTION(name) decltype(&::cublasLt##name) name = nullptr;
  HOLDFAST_CUBLAS_LT_FUNCTIONS(HOLDFAST_LIBRARY_FUNCTION)
#undef HOLDFAST_LIBRARY_FUNCTION
  std::string path;     // the file it comes from
  std::string version;  // "13.1.0"
};
[[nodiscard]] absl::StatusOr<const CublasLtTable*> LoadCublasLt(const CudaOptions& options);

#ifdef HOLDFAST_HAVE_NCCL_HEADER
// clang-format off
#define HOLDFAST_NCCL_FUNCTIONS(X) \
  X(GetVersion) X(GetUniqueId) X(GetErrorString) X(GetLastError) X(CommInitRankConfig) \
  X(CommGetAsyncError) X(CommAbort) X(CommFinalize) X(CommDestroy) X(CommShrink) X(CommCount) \
  X(CommUserRank) X(GroupStart) X(GroupEnd) X(AllReduce) X(Reduce) X(ReduceScatter) \
  X(AllGather) X(Broadcast) X(Send) X(Recv)
// clang-format on

// table.AllReduce(...) is ncclAllReduce(...).
struct NcclTable {
#define HOLDFAST_LIBRARY_FUNCTION(name) decltype(&::nccl##name) name = nullptr;
  HOLDFAST_NCCL_FUNCTIONS(HOLDFAST_LIBRARY_FUNCTION)
#undef HOLDFAST_LIBRARY_FUNCTION
  std::string path;     // the file it comes from
  std::string version;  // "2.28.9"
};
// Below 2.18: refused. Below 2.27 there is no ncclCommShrink: CommShrink is null.
[[nodiscard]] absl::StatusOr<const NcclTable*> LoadNccl(const CudaOptions& options);
#endif

// "13.1.0" of cuBLASLt's number 130100, "2.28.9" of NCCL's 22809.
[[nodiscard]] inline std::string LibraryVersionText(size_t number) {
  return Cat(number / 10'000, ".", number / 100 % 100, ".", number % 100);
}

}  // namespace holdfast::kernels::cuda
