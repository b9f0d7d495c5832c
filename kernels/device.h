// The device interface: memory, streams, events. Asynchronous by contract: a launch may return
// before its work has run, and whoever reads a result first synchronises the stream or waits for an
// event. The CPU has two kinds of stream: *inline* (work runs in the caller's thread, at once; used
// in production) and *threaded* (work runs in order on a thread of the stream; used in tests, where
// a forgotten wait then shows). A CUDA device is opened through kernels/cuda_backend.h.
//
// Threads: Device may be used by any thread that has called its BindThread(). A Stream and a Buffer
// belong to one thread at a time; Record on one stream and Wait on another is how two streams are
// ordered. Errors: work that fails marks its stream; Synchronize returns the first such error; one
// that leaves the whole device unusable (a "sticky" CUDA error) is kInternal from then on, from
// Health() and from every stream: the process must end and be replaced. Units: bytes, milliseconds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/clock.h"

namespace holdfast::kernels {

inline constexpr int64_t kAlignment = 64;

enum class Backend : uint8_t { kCpu, kCuda };

struct DeviceOps;

// A point in a stream's order. Copies name the same point.
class Event {
 public:
  // What a backend keeps of a point. Thread-safe.
  class State {
   public:
    virtual ~State() = default;
    virtual bool done() const = 0;
    // True when the point was reached (or cannot be any more: its stream reports why) in time.
    virtual bool WaitFor(int64_t ms) const = 0;
  };
  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // True when everything before the point has run (an empty event: always).
  [[nodiscard]] bool done() const;
  // kDeadlineExceeded when the point is not reached in time.
  [[nodiscard]] absl::Status Synchronize(Deadline deadline) const;

 private:
  friend class Stream;
  std::shared_ptr<State> state_;
};

class Stream {
 public:
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  [[nodiscard]] Backend backend() const { return backend_; }
  // The backend's own operations (kernels/device_ops.h); null on the CPU, whose operations are
  // those of ops.h.
  [[nodiscard]] const DeviceOps* ops() const { return ops_; }
  // The backend's handle (a cudaStream_t); null on the CPU.
  [[nodiscard]] virtual void* native() const { return nullptr; }

  // CPU streams only: work for a CUDA stream goes through the operations, copies and events.
  //
  // Runs `fn` after all earlier work of this stream. `fn` owns what it captures by value; memory it
  // points to must stay valid until the work has run. No allocation on an inline stream.
  template <typename Fn>
  void Launch(Fn&& fn) {
    if (inline_) {
      fn();
    } else {
      Enqueue(std::function<void()>(std::forward<Fn>(fn)));
    }
  }

  [[nodiscard]] virtual Event Record() = 0;
  // Later work of this stream starts only after `event`. A threaded stream stops waiting when it is
  // destroyed.
  virtual void Wait(const Event& event) = 0;
  // Waits for all work launched so far; returns the first error of this stream's work.
  [[nodiscard]] virtual absl::Status Synchronize(Deadline deadline) = 0;
  // Called from inside work: keeps the first error for Synchronize.
  virtual void Fail(absl::Status status) = 0;

 protected:
  Stream(Backend backend, bool runs_inline, const DeviceOps* ops = nullptr)
      : backend_(backend), inline_(runs_inline), ops_(ops) {}
  virtual void Enqueue(std::function<void()> work) = 0;
  static const std::shared_ptr<Event::State>& StateOf(const Event& event) { return event.state_; }

 private:
  const Backend backend_;
  const bool inline_;
  const DeviceOps* const ops_;
};

class Device;

// Memory of one device (or pinned host memory beside it), 64-byte aligned, freed with the object.
// Contents are not initialised. Who lets go of a buffer has waited for the work that uses it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { Reset(); }

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] int64_t bytes() const { return bytes_; }
  template <typename T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }
  void Reset();

 private:
  friend class Device;
  Buffer(Device* device, void* data, int64_t bytes, bool host)
      : device_(device), host_(host), data_(data), bytes_(bytes) {}
  Device* device_ = nullptr;
  bool host_ = false;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual Backend backend() const = 0;
  // For people, and for the name of the compute class: "CPU", or the GPU's model, SM count, driver
  // and library versions.
  [[nodiscard]] virtual std::string Name() const = 0;
  // Every thread that launches, copies or allocates calls this once, first. On the CPU it is
  // SetComputeThread().
  [[nodiscard]] virtual absl::Status BindThread() = 0;
  // kInternal once the device is unusable for this process.
  [[nodiscard]] virtual absl::Status Health() { return absl::OkStatus(); }
  // kResourceExhausted names the size asked for. bytes == 0 gives a buffer whose data() is not
  // null.
  [[nodiscard]] absl::StatusOr<Buffer> Allocate(int64_t bytes);
  // Host memory that copies to and from this device run through at full speed and without a stop
  // (pinned); on the CPU plain memory.
  [[nodiscard]] absl::StatusOr<Buffer> AllocateHost(int64_t bytes);
  // The stream of production: inline on the CPU. It must not outlive the device.
  [[nodiscard]] virtual std::unique_ptr<Stream> NewStream() = 0;
  // A stream whose work never runs in the caller's thread. Its thread has called SetComputeThread.
  [[nodiscard]] virtual std::unique_ptr<Stream> NewAsyncStream() = 0;
  // Copies inside the device, or between host and device, in stream order. The ranges must not
  // overlap.
  // Either side may be device memory or host memory; host memory that is not from AllocateHost may
  // make the call wait for the copy.
  virtual void Copy(Stream& stream, void* to, const void* from, int64_t bytes) = 0;
  // Sets bytes of device memory to zero, in stream order.
  virtual void Zero(Stream& stream, void* to, int64_t bytes) = 0;

 protected:
  friend class Buffer;
  virtual void* AllocateRaw(int64_t bytes) = 0;  // null when there is no memory
  virtual void FreeRaw(void* data) = 0;
  virtual void* AllocateHostRaw(int64_t bytes) { return AllocateRaw(bytes); }
  virtual void FreeHostRaw(void* data) { FreeRaw(data); }
};

// The CPU as a device. Lives as long as the process.
Device& CpuDevice();

// Every thread that computes calls this once, first. It sets, for this thread only, what the bits
// depend on: MXCSR (round to nearest, subnormals kept, exceptions masked) and one OpenMP thread for
// oneDNN's products, whatever the environment says.
void SetComputeThread();

}  // namespace holdfast::kernels
