#include <stdlib.h>

#include <cstring>
#include <vector>

#include "tests/emulation/cuda/runtime.h"
#include "tests/emulation/faults.h"

#if defined(__SANITIZE_ADDRESS__)
#define HF_SANITIZED 1
#elif defined(__SANITIZE_THREAD__)
#define HF_SANITIZED 1
#else
#define HF_SANITIZED 0
#endif

using namespace holdfast::emulation;  // NOLINT: everything below is the emulation's

namespace {

constexpr size_t kAlignment = 256;  // of all device memory, as the manual says

// All bits set: floats and halves are NaN, counters -1.
void Spoil(void* data, size_t bytes) { std::memset(data, 0xff, bytes); }

// Freed memory keeps its NaNs for a while, as the memory of a pool would; the sanitizers see a use
// of freed memory by themselves. Large blocks are given out again: new pages cost more than all
// else here.
class Quarantine {
 public:
  void* TakeAgain(size_t bytes) {
    std::lock_guard lock(mutex_);
    for (auto it = held_.begin(); bytes >= kLarge && it != held_.end(); ++it) {
      if (it->second != bytes) continue;
      void* const data = it->first;
      bytes_ -= bytes;
      held_.erase(it);
      return data;
    }
    return nullptr;
  }
  void Put(void* data, size_t bytes) {
    if (HF_SANITIZED) return free(data);
    std::lock_guard lock(mutex_);
    held_.emplace_back(data, bytes);
    bytes_ += bytes;
    while (bytes_ > kBytesMax) {
      free(held_.front().first);
      bytes_ -= held_.front().second;
      held_.pop_front();
    }
  }

 private:
  static constexpr size_t kBytesMax = 128 << 20, kLarge = 1 << 20;
  std::mutex mutex_;
  std::deque<std::pair<void*, size_t>> held_;
  size_t bytes_ = 0;
};

Quarantine& Freed() {
  static auto* freed = new Quarantine;
  return *freed;
}

// cudaSuccess, or the injected error; hangs if that is the fault.
cudaError_t Faulted(const char* point, cudaError_t own) {
  const FaultAction fault = ReachFaultPoint(point);
  const int code = fault.code;
  switch (fault.kind) {
    case FaultAction::kNone:
      return cudaSuccess;
    case FaultAction::kError:
      return code != 0 ? static_cast<cudaError_t>(code) : own;
    case FaultAction::kHang:
      HangForEver();
    case FaultAction::kSticky:
      Runtime::Instance().LoseDevice(CurrentDevice(), code != 0 ? code : cudaErrorIllegalAddress);
      return Runtime::Instance().Enter();
  }
  return cudaSuccess;
}

cudaError_t Allocate(void** data, size_t bytes, Memory kind) {
  if (data == nullptr) return cudaErrorInvalidValue;
  *data = nullptr;
  if (const cudaError_t error = Faulted("cuda.alloc", cudaErrorMemoryAllocation);
      error != cudaSuccess)
    return error;
  if (bytes == 0) return cudaSuccess;
  Runtime& runtime = Runtime::Instance();
  Gpu& gpu = runtime.gpu(CurrentDevice());
  const bool device = kind == Memory::kDevice;
  if (device && gpu.used.fetch_add(bytes) + bytes > runtime.memory_bytes()) {
    gpu.used -= bytes;
    return cudaErrorMemoryAllocation;
  }
  *data = Freed().TakeAgain(bytes);
  if (*data == nullptr && posix_memalign(data, kAlignment, bytes) != 0) {
    if (device) gpu.used -= bytes;
    *data = nullptr;
    return cudaErrorMemoryAllocation;
  }
  runtime.AddBlock(*data, {.bytes = bytes, .kind = kind, .device = CurrentDevice()});
  return cudaSuccess;
}

void GiveBack(void* data, const Block& block) {
  Spoil(data, block.bytes);
  Runtime& runtime = Runtime::Instance();
  (void)runtime.TakeBlock(data);
  if (block.kind == Memory::kDevice)
    runtime.gpu(block.device).used.fetch_sub(block.bytes, std::memory_order_relaxed);
  Freed().Put(data, block.bytes);
}

// Waits for the device, then frees: cudaFree, cudaFreeHost.
cudaError_t FreeNow(void* data, Memory kind) {
  if (data == nullptr) return cudaSuccess;
  Runtime& runtime = Runtime::Instance();
  Block block = runtime.FindBlock(data).second;
  if (block.kind != kind || !runtime.BeginFree(data, block)) return cudaErrorInvalidValue;
  runtime.DrainDevice(block.device);
  GiveBack(data, block);
  return cudaSuccess;
}

// What a range of memory is; false when it leaves its allocation, or that is being freed.
bool Range(const void* data, size_t bytes, Memory& kind) {
  const auto [begin, block] = Runtime::Instance().FindBlock(data);
  kind = block.kind;
  if (kind == Memory::kPageable) return data != nullptr;
  const auto offset = static_cast<size_t>(static_cast<const char*>(data) - begin);
  return !block.freeing && bytes <= block.bytes - offset;
}

bool Agrees(Memory to, Memory from, cudaMemcpyKind kind) {
  const bool to_device = to == Memory::kDevice, from_device = from == Memory::kDevice;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

cudaError_t Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                 const StreamPointer& stream) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
    return cudaErrorInvalidMemcpyDirection;
  if (bytes == 0) return cudaSuccess;
  Memory to_kind{}, from_kind{};
  if (!Range(to, bytes, to_kind) || !Range(from, bytes, from_kind) ||
      !Agrees(to_kind, from_kind, kind))
    return cudaErrorInvalidValue;
  if (const cudaError_t error = Faulted("cuda.copy", cudaErrorInvalidValue); error != cudaSuccess)
    return error;
  Runtime& runtime = Runtime::Instance();
  if (from_kind == Memory::kPageable && to_kind == Memory::kDevice) {
    // Staged: the caller may use its memory at once.
    auto staged = std::make_shared<std::vector<char>>(static_cast<const char*>(from),
                                                      static_cast<const char*>(from) + bytes);
    runtime.Push(stream, [to, bytes, staged = std::move(staged)] {
      std::memcpy(to, staged->data(), bytes);
    });
    return cudaSuccess;
  }
  runtime.Push(stream, [=] { std::memmove(to, from, bytes); });
  const bool host_only = to_kind != Memory::kDevice && from_kind != Memory::kDevice;
  if (host_only || to_kind == Memory::kPageable) stream->Drain();
  return cudaSuccess;
}

cudaError_t Fill(void* data, int value, size_t bytes, const StreamPointer& stream) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  Memory kind{};
  if (!Range(data, bytes, kind) || kind == Memory::kPageable) return cudaErrorInvalidValue;
  if (const cudaError_t error = Faulted("cuda.copy", cudaErrorInvalidValue); error != cudaSuccess)
    return error;
  Runtime::Instance().Push(stream, [=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaMalloc(void** data, size_t bytes) {
  HF_ENTER();
  const cudaError_t error = Allocate(data, bytes, Memory::kDevice);
  if (error == cudaSuccess && bytes > 0) Spoil(*data, bytes);
  return Returned(error);
}

cudaError_t cudaFree(void* data) {
  HF_ENTER();
  return Returned(FreeNow(data, Memory::kDevice));
}

cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t handle) {
  HF_ENTER();
  const StreamPointer stream = Runtime::Instance().FindStream(handle);
  if (stream == nullptr) return Returned(cudaErrorInvalidResourceHandle);
  const cudaError_t error = Allocate(data, bytes, Memory::kDevice);
  if (error == cudaSuccess && bytes > 0)
    Runtime::Instance().Push(stream, [at = *data, bytes] { Spoil(at, bytes); });
  return Returned(error);
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t handle) {
  HF_ENTER();
  if (data == nullptr) return cudaSuccess;
  const StreamPointer stream = Runtime::Instance().FindStream(handle);
  if (stream == nullptr) return Returned(cudaErrorInvalidResourceHandle);
  Block block = Runtime::Instance().FindBlock(data).second;
  if (block.kind != Memory::kDevice || !Runtime::Instance().BeginFree(data, block))
    return Returned(cudaErrorInvalidValue);
  Runtime::Instance().Push(stream, [data, block] { GiveBack(data, block); });
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int flags) {
  HF_ENTER();
  if (flags > 7) return Returned(cudaErrorInvalidValue);
  const cudaError_t error = Allocate(data, bytes, Memory::kPinned);
  if (error == cudaSuccess && bytes > 0) Spoil(*data, bytes);
  return Returned(error);
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
  return cudaHostAlloc(data, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* data) {
  HF_ENTER();
  return Returned(FreeNow(data, Memory::kPinned));
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  HF_ENTER();
  Runtime& runtime = Runtime::Instance();
  *total_bytes = runtime.memory_bytes();
  *free_bytes = runtime.memory_bytes() - runtime.gpu(CurrentDevice()).used.load();
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  HF_ENTER();
  return Returned(Copy(to, from, bytes, kind, Runtime::Instance().FindStream(handle)));
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  HF_ENTER();
  const StreamPointer stream = Runtime::Instance().FindStream(nullptr);
  if (const cudaError_t error = Copy(to, from, bytes, kind, stream); error != cudaSuccess)
    return Returned(error);
  stream->Drain();
  HF_ENTER();
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t handle) {
  HF_ENTER();
  return Returned(Fill(data, value, bytes, Runtime::Instance().FindStream(handle)));
}

cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  return cudaMemsetAsync(data, value, bytes, nullptr);
}

// ---- Pools: memory goes back at once, whatever the threshold

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  HF_ENTER();
  Runtime& runtime = Runtime::Instance();
  if (device < 0 || device >= runtime.device_count()) return Returned(cudaErrorInvalidDevice);
  *pool = &runtime.pool(device);
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attr, void* value) {
  HF_ENTER();
  if (pool == nullptr || value == nullptr) return Returned(cudaErrorInvalidValue);
  if (attr == cudaMemPoolAttrReleaseThreshold) {
    Runtime::Instance().gpu(pool->device).release_threshold = *static_cast<uint64_t*>(value);
    return cudaSuccess;
  }
  return attr < cudaMemPoolAttrReleaseThreshold ? cudaSuccess : Returned(cudaErrorNotSupported);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attr, void* value) {
  HF_ENTER();
  if (pool == nullptr || value == nullptr) return Returned(cudaErrorInvalidValue);
  const Gpu& gpu = Runtime::Instance().gpu(pool->device);
  switch (attr) {
    case cudaMemPoolAttrReleaseThreshold:
      *static_cast<uint64_t*>(value) = gpu.release_threshold.load();
      return cudaSuccess;
    case cudaMemPoolAttrUsedMemCurrent:
    case cudaMemPoolAttrReservedMemCurrent:
      *static_cast<uint64_t*>(value) = gpu.used.load();
      return cudaSuccess;
    default:
      return Returned(cudaErrorNotSupported);
  }
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) {
  HF_ENTER();
  return pool != nullptr ? cudaSuccess : Returned(cudaErrorInvalidValue);
}

cudaError_t cudaFuncSetAttribute(const void* func, cudaFuncAttribute, int) {
  HF_ENTER();
  return func != nullptr ? cudaSuccess : Returned(cudaErrorInvalidDeviceFunction);
}
