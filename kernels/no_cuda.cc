#include "kernels/cuda_backend.h"

namespace holdfast::kernels {
namespace {

class NoCuda final : public CudaBackend {
 public:
  absl::StatusOr<int> DeviceCount(const CudaOptions&) override { return Refused(); }
  absl::StatusOr<Device*> Open(const CudaOptions&, int) override { return Refused(); }
  std::string MatMulChoices(Device&) override { return ""; }
  absl::Status AdoptMatMulChoices(Device&, const std::string&) override { return Refused(); }

 private:
  static absl::Status Refused() {
    return absl::UnimplementedError(
        "this program was built without CUDA: build it where the CUDA toolkit is installed");
  }
};

}  // namespace

CudaBackend& FindCudaBackend() {
  static NoCuda backend;
  return backend;
}

}  // namespace holdfast::kernels
