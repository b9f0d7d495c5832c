#include <algorithm>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/stream.h"
#include "runtime/base/text.h"

namespace holdfast::kernels::cuda {
namespace {

// Mapping memory of a whole GPU takes a second.
constexpr int64_t kAllocationMs = 60'000;
constexpr int kCapabilityOldest = 80;

// After these CUDA goes on working. All others are taken to be for good ("sticky").
bool LeavesTheDeviceUsable(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorNotPermitted:
    case cudaErrorNotSupported:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string CudaVersionText(int number) { return Cat(number / 1000, ".", number % 1000 / 10); }

CudaDevice::CudaDevice(int index, std::string label) : index_(index), label_(std::move(label)) {}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(const CudaOptions& options,
                                                             int index) {
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDeviceProperties(&properties, index);
  int major = 0, minor = 0, multiprocessors = 0;
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, index);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return absl::UnavailableError(Cat("GPU ", index, " does not answer: ", cudaGetErrorName(error),
                                      ": ", cudaGetErrorString(error)));
  }
  const std::string label = Cat("GPU ", index, " (", properties.name, ")");
  if (10 * major + minor < kCapabilityOldest) {
    return absl::FailedPreconditionError(
        Cat(label, " has compute capability ", major, ".", minor,
            ": this program needs 8.0 (Ampere) or newer; use another GPU, or --device cpu"));
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice(index, label));
  const std::string compute_class =
      Cat(properties.name, ", ", multiprocessors, " SMs, sm_", 10 * major + minor);
  if (absl::Status s = device->Prepare(options, compute_class); !s.ok()) return s;
  return device;
}

absl::Status CudaDevice::Prepare(const CudaOptions& options, const std::string& compute_class) {
  auto library = LoadCublasLt(options);
  if (!library.ok()) return library.status();
  int driver = 0, runtime = 0;
  if (absl::Status s = BindThread(); !s.ok()) return s;
  if (absl::Status s = Check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion"); !s.ok())
    return s;
  if (absl::Status s = Check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion"); !s.ok())
    return s;
  name_ = Cat(compute_class, ", driver for CUDA ", CudaVersionText(driver), ", runtime ",
              CudaVersionText(runtime), ", cuBLASLt ", (*library)->version);
  absl::Status s = Check(cudaStreamCreateWithFlags(&memory_stream_, cudaStreamNonBlocking),
                         "cudaStreamCreateWithFlags");
  if (!s.ok()) return s;
  // Freed memory stays with the process: it is asked for again.
  cudaMemPool_t pool;
  s = Check(cudaDeviceGetDefaultMemPool(&pool, index_), "cudaDeviceGetDefaultMemPool");
  if (!s.ok()) return s;
  uint64_t keep = UINT64_MAX;
  s = Check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
            "cudaMemPoolSetAttribute");
  if (!s.ok()) return s;
  auto matmul = MatMulLibrary::Create(**library, compute_class);
  if (!matmul.ok()) return matmul.status();
  matmul_ = *std::move(matmul);
  return absl::OkStatus();
}

CudaDevice::~CudaDevice() {
  if (memory_stream_ != nullptr) (void)cudaStreamDestroy(memory_stream_);
}

absl::Status CudaDevice::Check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();  // else the next launch of this thread would report it
  const std::string text =
      Cat(call, " on ", label_, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  if (LeavesTheDeviceUsable(error)) return absl::InternalError(text);
  const std::lock_guard lock(health_mutex_);
  if (!broken_) {
    health_ = absl::InternalError(
        Cat(text, ". The device answers nothing else to this process any more, which must end and ",
            "be replaced"));
    broken_ = true;
  }
  return health_;
}

absl::Status CudaDevice::BindThread() {
  SetComputeThread();
  return Check(cudaSetDevice(index_), "cudaSetDevice");
}

absl::Status CudaDevice::Health() {
  if (!broken_) {
    const cudaError_t error = QueryStream(memory_stream_);
    if (error != cudaErrorNotReady) (void)Check(error, "cudaStreamQuery");
  }
  const std::lock_guard lock(health_mutex_);
  return health_;
}

std::unique_ptr<Stream> CudaDevice::NewStream() {
  cudaStream_t native = nullptr;
  (void)cudaSetDevice(index_);
  // Not the legacy stream's equal: work on that one would stop all others.
  absl::Status s =
      Check(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  auto stream = std::make_unique<CudaStream>(*this, native);
  if (!s.ok()) stream->Fail(std::move(s));
  return stream;
}

void CudaDevice::Copy(Stream& stream, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  const auto native = static_cast<cudaStream_t>(stream.native());
  ToCuda(stream).Check(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, native),
      "cudaMemcpyAsync");
}

void CudaDevice::Zero(Stream& stream, void* to, int64_t bytes) { CudaZero(stream, to, bytes); }

void* CudaDevice::AllocateRaw(int64_t bytes) {
  const std::lock_guard lock(memory_mutex_);
  (void)cudaSetDevice(index_);
  void* data = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  if (!Check(cudaMallocAsync(&data, size, memory_stream_), "cudaMallocAsync").ok()) return nullptr;
  // Other streams may use it only once the allocation has run.
  cudaError_t error = cudaSuccess;
  const bool there = PollUntil(Deadline::After(kAllocationMs), [&] {
    error = QueryStream(memory_stream_);
    return error != cudaErrorNotReady;
  });
  if (there && Check(error, "cudaMallocAsync").ok()) return data;
  (void)cudaFreeAsync(data, memory_stream_);
  (void)cudaGetLastError();
  return nullptr;
}

void CudaDevice::FreeRaw(void* data) {
  const std::lock_guard lock(memory_mutex_);
  (void)cudaSetDevice(index_);
  (void)Check(cudaFreeAsync(data, memory_stream_), "cudaFreeAsync");
}

void* CudaDevice::AllocateHostRaw(int64_t bytes) {
  (void)cudaSetDevice(index_);
  void* data = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  if (!Check(cudaHostAlloc(&data, size, cudaHostAllocPortable), "cudaHostAlloc").ok())
    return nullptr;
  return data;
}

void CudaDevice::FreeHostRaw(void* data) {
  (void)cudaSetDevice(index_);
  (void)Check(cudaFreeHost(data), "cudaFreeHost");
}

}  // namespace holdfast::kernels::cuda
