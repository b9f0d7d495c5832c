#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/matmul.h"
#include "runtime/base/text.h"

namespace holdfast::kernels {
namespace {

// Before the first call into the driver, which reads them once.
void SettleEnvironment() {
  static const bool once = [] {
    // A kernel that is loaded at its first launch may have to wait for those that run, and one of
    // NCCL runs until all members have come. (The user's own setting stays.)
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    // It would move the bits of fp32 behind everybody's back: --precision tf32 is the way.
    unsetenv("NVIDIA_TF32_OVERRIDE");
    return true;
  }();
  (void)once;
}

absl::StatusOr<int> CountDevices() {
  SettleEnvironment();
  int driver = 0, runtime = 0, count = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  if (driver == 0) {
    return absl::UnavailableError(
        "no NVIDIA driver on this machine (libcuda.so.1 is not there, or not in the container): "
        "install it, or use --device cpu");
  }
  const cudaError_t error = cudaGetDeviceCount(&count);
  (void)cudaGetLastError();
  if (error == cudaErrorInsufficientDriver || driver / 1000 < runtime / 1000) {
    return absl::FailedPreconditionError(
        Cat("the NVIDIA driver of this machine is for CUDA ", cuda::CudaVersionText(driver),
            ", this program for CUDA ", cuda::CudaVersionText(runtime),
            ": install a newer driver, build with an older toolkit, or use --device cpu"));
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return absl::UnavailableError(
        Cat("there is an NVIDIA driver (for CUDA ", cuda::CudaVersionText(driver),
            "), but no GPU that this process may use: look at CUDA_VISIBLE_DEVICES, or use "
            "--device cpu"));
  }
  if (error != cudaSuccess) {
    return absl::UnavailableError(Cat("the NVIDIA driver does not answer: ",
                                      cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
  }
  return count;
}

class Cuda final : public CudaBackend {
 public:
  absl::StatusOr<int> DeviceCount(const CudaOptions&) override { return CountDevices(); }

  absl::StatusOr<Device*> Open(const CudaOptions& options, int index) override {
    auto count = CountDevices();
    if (!count.ok()) return count.status();
    if (index < 0 || index >= *count) {
      return absl::UnavailableError(
          Cat("there is no GPU ", index, ": this process may use ", *count, ", numbered from 0"));
    }
    const std::lock_guard lock(mutex_);
    std::unique_ptr<cuda::CudaDevice>& device = devices_[index];
    if (device == nullptr) {
      auto opened = cuda::CudaDevice::Open(options, index);
      if (!opened.ok()) return opened.status();
      device = *std::move(opened);
    }
    if (absl::Status s = device->BindThread(); !s.ok()) return s;
    return device.get();
  }

  std::string MatMulChoices(Device& device) override {
    return static_cast<cuda::CudaDevice&>(device).matmul().Choices();
  }
  absl::Status AdoptMatMulChoices(Device& device, const std::string& choices) override {
    return static_cast<cuda::CudaDevice&>(device).matmul().Adopt(choices);
  }

 private:
  std::mutex mutex_;
  std::map<int, std::unique_ptr<cuda::CudaDevice>> devices_;
};

}  // namespace

CudaBackend& FindCudaBackend() {
  // Never destroyed: streams of static objects may still use its devices.
  static Cuda* const backend = new Cuda;
  return *backend;
}

}  // namespace holdfast::kernels
