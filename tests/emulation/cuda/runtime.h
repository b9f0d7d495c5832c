// The inside of the emulated CUDA runtime: GPUs, streams, memory. A GPU's memory is host memory; a
// stream is a queue with a thread of its own.
//
// As the real one: calls return before their work has run; cudaStreamQuery and cudaEventQuery then
// answer cudaErrorNotReady (and leave it as the last error); a wait binds to the record made before
// it; an event that was never recorded counts as complete; cudaFree, cudaFreeHost and
// cudaDeviceSynchronize wait for everything on the device, cudaStreamDestroy for nothing; a lost
// device answers every call with its error and runs nothing any more; a host function may not call
// CUDA; copies from and to pageable memory stop the caller as the manual says; the default stream
// and blocking streams wait for each other; a child of fork() cannot use it.
//
// Stricter than the real one: device memory is exactly as large as asked for (AddressSanitizer
// finds overruns), new memory is filled with NaNs in stream order (ThreadSanitizer finds a use by
// another stream that did not wait), freed memory too, ranges of copies are checked, use of a
// stream that is gone is an error. Not imitated: graphs, managed memory, peer access, priorities
// (kept, without effect), pools (an attribute is kept; memory goes back at once).
//
// Threads: any, everywhere. Locks are taken in the order runtime, stream, point; none is held while
// work runs.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "tests/emulation/tsan.h"

namespace holdfast::emulation {

// A point in a stream's order, reached once.
class Point {
 public:
  bool reached() const;  // true also orders
  void Reach();          // the stream that reaches it has said Release(this)
  void Wait();
  std::chrono::steady_clock::time_point when() const { return when_; }  // once reached

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> reached_{false};
  std::chrono::steady_clock::time_point when_{};
};

struct Gpu {
  int physical = 0;          // its number on the host, whatever is visible
  std::atomic<int> lost{0};  // the sticky error
  std::atomic<size_t> used{0};
  std::atomic<uint64_t> release_threshold{0};
};

}  // namespace holdfast::emulation

// A stream. Its thread keeps it alive until the queue is empty after Close.
struct CUstream_st : std::enable_shared_from_this<CUstream_st> {
 public:
  CUstream_st(int device, unsigned flags, int priority, uint64_t serial);
  void Start();
  void Push(std::function<void()> work);
  // Reached after all that was pushed before, on a lost device too.
  void Push(std::shared_ptr<holdfast::emulation::Point> point);
  bool idle();
  void Drain();  // waits for what was pushed before the call
  void Close();  // the thread ends after the work

  const int device;
  const unsigned flags;
  const int priority;

 private:
  struct Work {
    std::function<void()> run;
    std::shared_ptr<holdfast::emulation::Point> point;
    std::unique_ptr<char> pushed;  // an address for ThreadSanitizer
  };
  void PushWork(Work work);
  bool Next(Work& work);  // false: closed, and nothing is left
  void Finish(Work work);
  void Run();
  void Pause();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  uint64_t pushed_ = 0, done_ = 0;
  bool closed_ = false;
  std::mt19937_64 delays_;
};

struct CUevent_st {
  std::mutex mutex;
  unsigned flags = 0;
  std::shared_ptr<holdfast::emulation::Point> point;  // of the newest record
};

struct CUmemPoolHandle_st {
  int device = 0;
};

namespace holdfast::emulation {

enum class Memory : uint8_t { kPageable, kPinned, kDevice };

struct Block {
  size_t bytes = 0;
  Memory kind = Memory::kPageable;
  int device = 0;
  bool freeing = false;  // cudaFreeAsync was called
};

using StreamPointer = std::shared_ptr<CUstream_st>;

class Runtime {
 public:
  static Runtime& Instance();  // lives as long as the process

  // What a call does first: cudaSuccess, or why no call can succeed here.
  cudaError_t Enter();
  int device_count() const { return static_cast<int>(gpus_.size()); }
  Gpu& gpu(int device) { return *gpus_[static_cast<size_t>(device)]; }
  int driver_version() const { return driver_version_; }
  size_t memory_bytes() const { return memory_bytes_; }
  CUmemPoolHandle_st& pool(int device) { return pools_[static_cast<size_t>(device)]; }

  StreamPointer NewStream(int device, unsigned flags, int priority);
  StreamPointer FindStream(cudaStream_t handle);  // null: gone; 0 is the current device's default
  bool ForgetStream(cudaStream_t handle);
  void DrainDevice(int device);
  // Pushes work in the order that blocking streams and the default stream keep.
  template <typename Work>
  void Push(const StreamPointer& stream, Work&& work) {
    AwaitNeighbours(stream);
    stream->Push(std::forward<Work>(work));
  }
  void LoseDevice(int device, int error);

  void AddBlock(void* data, const Block& block);
  // The block that `data` points into, with its beginning; pageable when there is none.
  std::pair<char*, Block> FindBlock(const void* data);
  std::optional<Block> TakeBlock(void* data);  // out of the list
  bool BeginFree(void* data, Block& block);    // false: not an allocation, or freed before

  // Random pauses: 0 is none.
  int64_t delay_us_max() const { return delay_us_max_; }
  uint64_t delay_seed() const { return delay_seed_; }

 private:
  Runtime();
  StreamPointer Default(int device);
  void AwaitNeighbours(const StreamPointer& stream);
  std::vector<StreamPointer> StreamsOf(int device);

  const int process_;
  int driver_version_ = CUDART_VERSION;
  size_t memory_bytes_ = 0;
  int64_t delay_us_max_ = 0;
  uint64_t delay_seed_ = 0;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::vector<CUmemPoolHandle_st> pools_;

  std::mutex mutex_;
  uint64_t serial_ = 0;
  std::map<CUstream_st*, StreamPointer> streams_;    // those with a handle
  std::vector<std::weak_ptr<CUstream_st>> running_;  // and those that only drain
  std::vector<StreamPointer> defaults_;
  std::map<char*, Block> blocks_;
};

// ---- Of the calling thread

int CurrentDevice();
// Keeps an error for cudaGetLastError, and returns it.
cudaError_t Returned(cudaError_t error);
// Set while a host function runs: it may not call CUDA.
void InHostFunction(bool inside);

// A number of the environment; `otherwise` when it is not set, abort when it is no number.
int64_t EnvironmentNumber(const char* name, int64_t otherwise);
// The GPUs that CUDA_VISIBLE_DEVICES leaves, by their number on the host.
std::vector<int> VisibleGpus(int count, const char* visible);
std::string GpuName(int physical);  // "GPU-..."

// Work of a kernel's kind: in the order of the stream, on the current device. Enqueue (simt.h) does
// the same and leaves the error to cudaGetLastError.
cudaError_t Submit(cudaStream_t stream, std::function<void()> work);

// True once the stream's device is lost: work that waits for something gives up.
bool DeviceLost(int device);

#define HF_ENTER()                                                                    \
  if (const cudaError_t entered = ::holdfast::emulation::Runtime::Instance().Enter(); \
      entered != cudaSuccess)                                                         \
  return ::holdfast::emulation::Returned(entered)

}  // namespace holdfast::emulation
