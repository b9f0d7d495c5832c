#include "kernels/cuda/stream.h"

#include <algorithm>
#include <cassert>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/ops.h"
#include "runtime/base/back_off.h"
#include "runtime/base/text.h"

namespace holdfast::kernels {
namespace cuda {
namespace {

// For events of the CPU's streams, which a GPU cannot wait for.
constexpr int64_t kHostEventMs = 60'000;
// Scratch grows in steps, so that a few operations settle its size.
constexpr int64_t kGrain = int64_t{1} << 20;

class CudaPoint final : public Event::State {
 public:
  CudaPoint(CudaDevice& device, cudaEvent_t event) : device_(device), event_(event) {}
  ~CudaPoint() override { (void)cudaEventDestroy(event_); }
  cudaEvent_t event() const { return event_; }

  bool done() const override {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    (void)device_.Check(error, "cudaEventQuery");  // kept in the device's health
    return true;
  }
  bool WaitFor(int64_t ms) const override {
    return PollUntil(Deadline::After(ms), [this] { return done(); });
  }

 private:
  CudaDevice& device_;
  const cudaEvent_t event_;
};

}  // namespace

cudaError_t QueryStream(cudaStream_t stream) {
  const cudaError_t error = cudaStreamQuery(stream);
  if (error == cudaErrorNotReady) (void)cudaGetLastError();
  return error;
}

bool PollUntil(Deadline deadline, const std::function<bool()>& ready) {
  const BackOff back_off;
  while (!ready()) {
    if (deadline.passed()) return false;
    back_off.Pause();
  }
  return true;
}

CudaStream::CudaStream(CudaDevice& device, cudaStream_t native)
    : Stream(Backend::kCuda, /*runs_inline=*/false, &CudaOps()), device_(device), native_(native) {}

CudaStream::~CudaStream() {
  for (const Memory& memory : {scratch_, workspace_}) {
    if (memory.data != nullptr)
      (void)device_.Check(cudaFreeAsync(memory.data, native_), "cudaFreeAsync");
  }
  if (native_ != nullptr) (void)device_.Check(cudaStreamDestroy(native_), "cudaStreamDestroy");
}

bool CudaStream::Check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return true;
  Fail(device_.Check(error, call));
  return false;
}

void CudaStream::Fail(absl::Status status) {
  if (error_.ok()) error_ = std::move(status);
}

void CudaStream::Enqueue(std::function<void()>) {
  assert(false && "work for a CUDA stream goes through operations, copies and events");
}

Event CudaStream::Record() {
  cudaEvent_t event = nullptr;
  if (!Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags"))
    return Event();
  auto point = std::make_shared<CudaPoint>(device_, event);
  if (!Check(cudaEventRecord(event, native_), "cudaEventRecord")) return Event();
  return Event(std::move(point));
}

void CudaStream::Wait(const Event& event) {
  if (const auto* point = dynamic_cast<const CudaPoint*>(StateOf(event).get())) {
    Check(cudaStreamWaitEvent(native_, point->event(), 0), "cudaStreamWaitEvent");
  } else if (absl::Status s = event.Synchronize(Deadline::After(kHostEventMs)); !s.ok()) {
    Fail(std::move(s));
  }
}

absl::Status CudaStream::Synchronize(Deadline deadline) {
  if (native_ == nullptr) return error_;  // it could not be made
  cudaError_t error = cudaSuccess;
  const bool over = PollUntil(deadline, [&] {
    error = QueryStream(native_);
    return error != cudaErrorNotReady;
  });
  if (!over) {
    return absl::DeadlineExceededError(
        Cat("a stream of ", device_.Name(), " did not finish its work in time"));
  }
  if (absl::Status s = device_.Check(error, "cudaStreamQuery"); !s.ok()) return s;
  return std::exchange(error_, absl::OkStatus());
}

void* CudaStream::Grow(Memory& memory, int64_t bytes) {
  if (bytes <= memory.bytes && memory.data != nullptr) return memory.data;
  // In this stream's order: what uses the old memory has run when it is freed.
  if (memory.data != nullptr) Check(cudaFreeAsync(memory.data, native_), "cudaFreeAsync");
  memory = {};
  const int64_t size = (std::max<int64_t>(bytes, 1) + kGrain - 1) / kGrain * kGrain;
  void* data = nullptr;
  if (!Check(cudaMallocAsync(&data, static_cast<size_t>(size), native_), "cudaMallocAsync"))
    return nullptr;
  memory = {data, size};
  return data;
}

}  // namespace cuda

float* CudaScratch(Stream& stream, int64_t bytes) {
  return static_cast<float*>(cuda::ToCuda(stream).Scratch(bytes));
}

void CudaZero(Stream& stream, void* to, int64_t bytes) {
  if (bytes == 0) return;
  const auto native = static_cast<cudaStream_t>(stream.native());
  cuda::ToCuda(stream).Check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), native),
                             "cudaMemsetAsync");
}

}  // namespace holdfast::kernels
