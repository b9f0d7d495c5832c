#include "kernels/cuda/library.h"

#include <mutex>
#include <string_view>

#include "kernels/cuda/library_search.h"
#include "runtime/base/text.h"

namespace holdfast::kernels::cuda {
namespace {

// What nccl.h calls 2.18.0: the first that can end a communicator of which a member is gone.
constexpr int kNcclOldest = 21800;
constexpr int kNcclWithShrink = 22700;

absl::StatusOr<Library> Open(const CudaOptions& options, const LibraryRequest& request) {
  return OpenLibrary(request, LibraryFolders(options, LibraryEnvironment::OfProcess()));
}

template <typename Function>
absl::Status Take(const Library& library, const char* symbol, Function& to) {
  absl::StatusOr<void*> function = library.Function(symbol);
  if (function.ok()) to = reinterpret_cast<Function>(*function);
  return function.status();
}

absl::StatusOr<CublasLtTable> OpenCublasLt(const CudaOptions& options) {
  constexpr int kMajor = CUDART_VERSION / 1000;
  auto library =
      Open(options, {.name = "cuBLASLt",
                     .file = Cat("libcublasLt.so.", kMajor),
                     .install = Cat("the CUDA toolkit ", kMajor, ", or pip's nvidia-cublas")});
  if (!library.ok()) return library.status();
  CublasLtTable table;
  table.path = library->path;
#define HOLDFAST_LIBRARY_FUNCTION(name) \
  if (absl::Status s = Take(*library, "cublasLt" #name, table.name); !s.ok()) return s;
  HOLDFAST_CUBLAS_LT_FUNCTIONS(HOLDFAST_LIBRARY_FUNCTION)
#undef HOLDFAST_LIBRARY_FUNCTION
  table.version = LibraryVersionText(table.GetVersion());
  return table;
}

#ifdef HOLDFAST_HAVE_NCCL_HEADER
absl::StatusOr<NcclTable> OpenNccl(const CudaOptions& options) {
  constexpr int kMajor = CUDART_VERSION / 1000;
  auto library =
      Open(options, {.name = "NCCL",
                     .file = "libnccl.so.2",
                     .install = Cat("the package libnccl2, or pip's nvidia-nccl-cu", kMajor)});
  if (!library.ok()) return library.status();
  NcclTable table;
  table.path = library->path;
  int number = 0;
  if (absl::Status s = Take(*library, "ncclGetVersion", table.GetVersion); !s.ok()) return s;
  if (table.GetVersion(&number) != ncclSuccess || number < kNcclOldest) {
    return absl::FailedPreconditionError(
        Cat("NCCL ", LibraryVersionText(number), " (", table.path, ") is older than ",
            LibraryVersionText(kNcclOldest),
            ", which this program needs: install a newer one, or name ",
            "its folder with --cuda-libs"));
  }
#define HOLDFAST_LIBRARY_FUNCTION(name)                                                    \
  if (absl::Status s = Take(*library, "nccl" #name, table.name);                           \
      !s.ok() && (std::string_view(#name) != "CommShrink" || number >= kNcclWithShrink)) { \
    return s;                                                                              \
  }
  HOLDFAST_NCCL_FUNCTIONS(HOLDFAST_LIBRARY_FUNCTION)
#undef HOLDFAST_LIBRARY_FUNCTION
  table.version = LibraryVersionText(number);
  return table;
}
#endif

// Opened once; a failure is not kept, so that other folders can be tried.
template <typename Table>
absl::StatusOr<const Table*> Once(absl::StatusOr<Table> (*open)(const CudaOptions&),
                                  const CudaOptions& options) {
  static std::mutex mutex;
  static const Table* table = nullptr;
  const std::lock_guard lock(mutex);
  if (table == nullptr) {
    absl::StatusOr<Table> opened = open(options);
    if (!opened.ok()) return opened.status();
    table = new Table(*std::move(opened));
  }
  return table;
}

}  // namespace

absl::StatusOr<const CublasLtTable*> LoadCublasLt(const CudaOptions& options) {
  return Once<CublasLtTable>(&OpenCublasLt, options);
}

#ifdef HOLDFAST_HAVE_NCCL_HEADER
absl::StatusOr<const NcclTable*> LoadNccl(const CudaOptions& options) {
  return Once<NcclTable>(&OpenNccl, options);
}
#endif

}  // namespace holdfast::kernels::cuda
