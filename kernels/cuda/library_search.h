// Where the libraries of CUDA are found: cuBLASLt and NCCL are opened while the program runs, so
// that one program serves machines with and without them. Folders, in this order: those the user
// names (--cuda-libs), LD_LIBRARY_PATH, the toolkit (the one of the build, then /usr/local/cuda*),
// Python wheels (site-packages/nvidia/*/lib), last what the system's loader knows.
//
// Threads: any. Errors: kFailedPrecondition names the library, every folder looked into and what to
// do.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda_backend.h"

namespace holdfast::kernels::cuda {

struct LibraryFolder {
  std::string path;
  std::string origin;  // who names it: "--cuda-libs", "LD_LIBRARY_PATH", "toolkit", "Python wheel"
};

// What of the process's environment the search depends on.
struct LibraryEnvironment {
  std::string library_path;                 // LD_LIBRARY_PATH
  std::vector<std::string> toolkits;        // folders with lib64/ or lib/
  std::vector<std::string> python_folders;  // patterns of site-packages folders
  static LibraryEnvironment OfProcess();
};

// Each folder once, only those that exist, except that named ones are kept for the message.
[[nodiscard]] std::vector<LibraryFolder> LibraryFolders(const CudaOptions& options,
                                                        const LibraryEnvironment& environment);

struct LibraryRequest {
  std::string name;     // "NCCL"
  std::string file;     // "libnccl.so.2"
  std::string install;  // how to get it: "the package libnccl2, or pip install nvidia-nccl-cu13"
};

// An opened library; stays open for the life of the process.
struct Library {
  std::string name, path;
  void* handle = nullptr;
  // kFailedPrecondition when the library has no such function: another version.
  [[nodiscard]] absl::StatusOr<void*> Function(const char* symbol) const;
};

// The first one that opens. A file that is there and does not open is named with the reason.
[[nodiscard]] absl::StatusOr<Library> OpenLibrary(const LibraryRequest& request,
                                                  const std::vector<LibraryFolder>& folders);

}  // namespace holdfast::kernels::cuda
