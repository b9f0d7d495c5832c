// The way to CUDA devices. Exactly one definition of FindCudaBackend is linked into a program: that
// of kernels/no_cuda.cc (built without CUDA), of kernels/cuda/, or of the stand-in that the tests
// run on.
//
// Threads: any. Errors name what is missing and what to do: kUnavailable (no driver, no device),
// kFailedPrecondition (driver too old for this build, a library is missing or of another version),
// kUnimplemented (built without CUDA).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace holdfast::kernels {

struct CudaOptions {
  // Folders that are searched for the CUDA libraries before all others (--cuda-libs).
  std::vector<std::string> library_folders;
};

class CudaBackend {
 public:
  virtual ~CudaBackend() = default;
  // GPUs that this process may use.
  [[nodiscard]] virtual absl::StatusOr<int> DeviceCount(const CudaOptions& options) = 0;
  // The device, once for each index: it lives as long as the process. The calling thread is bound.
  [[nodiscard]] virtual absl::StatusOr<Device*> Open(const CudaOptions& options, int index) = 0;
  // The algorithms of matrix products that were chosen since the start, as text for the run's
  // record, and taken over from it (before the first product). kInvalidArgument: not of these
  // library versions, which makes this another compute class.
  [[nodiscard]] virtual std::string MatMulChoices(Device& device) = 0;
  [[nodiscard]] virtual absl::Status AdoptMatMulChoices(Device& device,
                                                        const std::string& choices) = 0;
};

// Never null; in a build without CUDA it answers kUnimplemented.
CudaBackend& FindCudaBackend();

}  // namespace holdfast::kernels
