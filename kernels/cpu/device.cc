#include "kernels/device.h"

#include <cassert>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "runtime/base/text.h"

namespace holdfast::kernels {

namespace {

class CpuPoint final : public Event::State {
 public:
  void Set() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
  }
  bool done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  bool WaitFor(int64_t ms) const override {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(ms), [this] { return done_; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
};

}  // namespace

bool Event::done() const { return state_ == nullptr || state_->done(); }

absl::Status Event::Synchronize(Deadline deadline) const {
  if (state_ == nullptr || state_->WaitFor(deadline.left_ms())) return absl::OkStatus();
  return absl::DeadlineExceededError("the device's work did not reach an awaited point in time");
}

namespace {

// How long work may wait for an event of another stream before the waiting stream gives up and
// fails.
constexpr int64_t kEventWaitMs = 60'000;
constexpr int64_t kSliceMs = 20;

class InlineStream final : public Stream {
 public:
  InlineStream() : Stream(Backend::kCpu, /*runs_inline=*/true) {}
  Event Record() override { return Event(); }
  void Wait(const Event& event) override {
    if (absl::Status s = event.Synchronize(Deadline::After(kEventWaitMs)); !s.ok())
      Fail(std::move(s));
  }
  absl::Status Synchronize(Deadline) override { return std::exchange(error_, absl::OkStatus()); }
  void Fail(absl::Status status) override {
    if (error_.ok()) error_ = std::move(status);
  }

 protected:
  void Enqueue(std::function<void()> work) override { work(); }

 private:
  absl::Status error_;
};

class ThreadedStream final : public Stream {
 public:
  ThreadedStream() : Stream(Backend::kCpu, /*runs_inline=*/false), thread_([this] { Run(); }) {}

  // Work already launched is finished first, except behind an event that has not come: that is
  // dropped.
  ~ThreadedStream() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Event Record() override {
    auto state = std::make_shared<CpuPoint>();
    Enqueue([state] { state->Set(); });
    return Event(std::move(state));
  }

  void Wait(const Event& event) override {
    Enqueue([this, event] { WaitInWorker(event); });
  }

  absl::Status Synchronize(Deadline deadline) override {
    std::unique_lock lock(mutex_);
    const int64_t target = launched_;
    if (!changed_.wait_for(lock, std::chrono::milliseconds(deadline.left_ms()),
                           [&] { return finished_ >= target; })) {
      return absl::DeadlineExceededError(Cat("a stream did not finish in time: ", finished_, " of ",
                                             target, " pieces of work done"));
    }
    return std::exchange(error_, absl::OkStatus());
  }

  void Fail(absl::Status status) override {
    const std::lock_guard lock(mutex_);
    if (error_.ok()) error_ = std::move(status);
  }

 protected:
  void Enqueue(std::function<void()> work) override {
    std::unique_lock lock(mutex_);
    // A full queue holds the caller back. It cannot be full for long: the work in it has bounded
    // waits.
    changed_.wait(lock, [this] { return queue_.size() < kQueueBound; });
    queue_.push_back(std::move(work));
    ++launched_;
    changed_.notify_all();
  }

 private:
  static constexpr size_t kQueueBound = 4096;

  void Run() {
    SetComputeThread();
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (!dropped_) work();
      lock.lock();
      ++finished_;
      changed_.notify_all();
    }
  }

  void WaitInWorker(const Event& event) {
    const Deadline deadline = Deadline::After(kEventWaitMs);
    while (!event.Synchronize(Deadline::After(kSliceMs)).ok()) {
      const std::lock_guard lock(mutex_);
      if (!stop_ && !deadline.passed()) continue;
      if (error_.ok())
        error_ = absl::DeadlineExceededError("an event awaited by a stream did not come");
      dropped_ = true;  // what follows would read data that is not there
      return;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  int64_t launched_ = 0, finished_ = 0;
  bool stop_ = false;
  bool dropped_ = false;  // worker thread only
  absl::Status error_;
  std::thread thread_;
};

class Cpu final : public Device {
 public:
  Backend backend() const override { return Backend::kCpu; }
  std::string Name() const override { return "CPU"; }
  absl::Status BindThread() override {
    SetComputeThread();
    return absl::OkStatus();
  }
  std::unique_ptr<Stream> NewStream() override { return std::make_unique<InlineStream>(); }
  std::unique_ptr<Stream> NewAsyncStream() override { return std::make_unique<ThreadedStream>(); }
  void Copy(Stream& stream, void* to, const void* from, int64_t bytes) override {
    stream.Launch([=] {
      if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    });
  }
  void Zero(Stream& stream, void* to, int64_t bytes) override {
    stream.Launch([=] {
      if (bytes > 0) std::memset(to, 0, static_cast<size_t>(bytes));
    });
  }

 protected:
  void* AllocateRaw(int64_t bytes) override {
    const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return std::aligned_alloc(kAlignment, static_cast<size_t>(rounded == 0 ? kAlignment : rounded));
  }
  void FreeRaw(void* data) override { std::free(data); }
};

}  // namespace

absl::StatusOr<Buffer> Device::Allocate(int64_t bytes) {
  assert(bytes >= 0);
  void* data = AllocateRaw(bytes);
  if (data == nullptr) {
    if (absl::Status health = Health(); !health.ok()) return health;
    return absl::ResourceExhaustedError(
        Cat("no memory for ", bytes, " bytes on the device: use a smaller model or micro-batch"));
  }
  return Buffer(this, data, bytes, /*host=*/false);
}

absl::StatusOr<Buffer> Device::AllocateHost(int64_t bytes) {
  assert(bytes >= 0);
  void* data = AllocateHostRaw(bytes);
  if (data == nullptr) {
    if (absl::Status health = Health(); !health.ok()) return health;
    return absl::ResourceExhaustedError(
        Cat("no memory for ", bytes, " bytes (pinned) on the host: free some, or use less of it"));
  }
  return Buffer(this, data, bytes, /*host=*/true);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    Reset();
    device_ = std::exchange(other.device_, nullptr);
    host_ = other.host_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Buffer::Reset() {
  if (device_ != nullptr) {
    host_ ? device_->FreeHostRaw(data_) : device_->FreeRaw(data_);
  }
  device_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

Device& CpuDevice() {
  static Cpu* const device =
      new Cpu;  // never destroyed: streams of static objects may still use it
  return *device;
}

}  // namespace holdfast::kernels
