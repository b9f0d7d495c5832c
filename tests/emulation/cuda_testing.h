// What the tests of the stand-ins share.
#pragma once

#include <cuda_runtime.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace holdfast::emulation {

class TestStream {
 public:
  TestStream() { (void)cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
  ~TestStream() { (void)cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class TestEvent {
 public:
  TestEvent() { (void)cudaEventCreateWithFlags(&event_, cudaEventDisableTiming); }
  ~TestEvent() { (void)cudaEventDestroy(event_); }
  TestEvent(const TestEvent&) = delete;
  TestEvent& operator=(const TestEvent&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Work on a stream stands in Pass until somebody opens it.
class Gate {
 public:
  void Pass() {
    std::unique_lock lock(mutex_);
    arrived_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void AwaitArrival() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return arrived_; });
  }
  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool arrived_ = false, open_ = false;
};

// Runs one test of this program in a process of its own, with these variables; its exit status.
using Environment = std::vector<std::pair<std::string, std::string>>;
int RunChild(const Environment& environment, const std::string& test);
bool IsChild();

}  // namespace holdfast::emulation
