// What kernels/cuda knows of its own devices and streams beyond kernels/device.h: ToCuda(stream).
// Files with kernels include stream.h, which needs no header of cuBLASLt.
//
// Threads: a CudaDevice by any bound thread, a CudaStream by one at a time.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda_backend.h"
#include "kernels/device.h"

namespace holdfast::kernels::cuda {

class MatMulLibrary;

// 13000 -> "13.0": how the driver and the runtime number CUDA's versions.
std::string CudaVersionText(int number);

class CudaDevice final : public Device {
 public:
  // Binds the calling thread. kFailedPrecondition: the GPU is too old, or cuBLASLt is missing.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(const CudaOptions& options, int index);
  ~CudaDevice() override;

  Backend backend() const override { return Backend::kCuda; }
  std::string Name() const override { return name_; }
  absl::Status BindThread() override;
  absl::Status Health() override;
  std::unique_ptr<Stream> NewStream() override;
  std::unique_ptr<Stream> NewAsyncStream() override { return NewStream(); }
  void Copy(Stream& stream, void* to, const void* from, int64_t bytes) override;
  void Zero(Stream& stream, void* to, int64_t bytes) override;

  [[nodiscard]] MatMulLibrary& matmul() { return *matmul_; }

  // The one place where what a call returned becomes a Status: it names the call, the error and the
  // device, and clears the error. kResourceExhausted for memory, kInternal else; after one of those
  // that CUDA answers every later call with, Health() is that error, too. cudaErrorNotReady is not
  // to be brought here.
  absl::Status Check(cudaError_t error, const char* call);

 protected:
  void* AllocateRaw(int64_t bytes) override;
  void FreeRaw(void* data) override;
  void* AllocateHostRaw(int64_t bytes) override;
  void FreeHostRaw(void* data) override;

 private:
  CudaDevice(int index, std::string label);
  absl::Status Prepare(const CudaOptions& options, const std::string& compute_class);

  const int index_;
  const std::string label_;  // "GPU 0 (NVIDIA H200)", for messages
  std::string name_;
  // Memory is given and taken in the order of this stream, on which nothing else runs.
  std::mutex memory_mutex_;
  cudaStream_t memory_stream_ = nullptr;
  std::unique_ptr<MatMulLibrary> matmul_;
  std::atomic<bool> broken_ = false;
  std::mutex health_mutex_;
  absl::Status health_;
};

class CudaStream final : public Stream {
 public:
  CudaStream(CudaDevice& device, cudaStream_t native);
  ~CudaStream() override;

  void* native() const override { return native_; }
  Event Record() override;
  void Wait(const Event& event) override;
  absl::Status Synchronize(Deadline deadline) override;
  void Fail(absl::Status status) override;

  [[nodiscard]] CudaDevice& device() { return device_; }
  // True for cudaSuccess; else the stream has failed.
  bool Check(cudaError_t error, const char* call);
  // See CudaScratch of stream.h.
  void* Scratch(int64_t bytes) { return Grow(scratch_, bytes); }
  // The same for the workspace of matrix products, which no two streams may share.
  void* Workspace(int64_t bytes) { return Grow(workspace_, bytes); }

  bool allow_tf32 = false;

 protected:
  void Enqueue(std::function<void()> work) override;

 private:
  struct Memory {
    void* data = nullptr;
    int64_t bytes = 0;
  };
  void* Grow(Memory& memory, int64_t bytes);

  CudaDevice& device_;
  const cudaStream_t native_;
  Memory scratch_, workspace_;
  absl::Status error_;
};

inline CudaStream& ToCuda(Stream& stream) { return static_cast<CudaStream&>(stream); }

// cudaStreamQuery. cudaErrorNotReady is no error, but CUDA keeps it as the thread's last one, which
// the check behind the next launch would find: it is taken away here.
cudaError_t QueryStream(cudaStream_t stream);

// True when `ready` says so before the deadline: it is asked again and again, with pauses that
// grow. cudaStreamSynchronize has no deadline, and a collective that waits for a dead rank never
// ends.
bool PollUntil(Deadline deadline, const std::function<bool()>& ready);

}  // namespace holdfast::kernels::cuda
