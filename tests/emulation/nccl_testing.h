// What the tests of the emulated NCCL share: ranks that are threads of this process (each with a
// GPU of its own) or processes.
#pragma once

#include <nccl.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/emulation/cuda_testing.h"

namespace holdfast::emulation {

inline constexpr int kBoundMs = 30'000;  // against hanging; nothing takes so long

ncclConfig_t NonBlocking();
// Polls until the communicator is no longer in progress (or kBoundMs); its state.
ncclResult_t AwaitState(ncclComm_t comm);
// True when the stream's work ends within `ms`.
bool Drains(cudaStream_t stream, int ms = kBoundMs);

// Device memory of `count` elements, written and read by copies that wait.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count, T value = T{}) : count_(count) {
    (void)cudaMalloc(&data_, count * sizeof(T));
    Set(std::vector<T>(count, value));
  }
  ~DeviceArray() { (void)cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* data() const { return data_; }
  void Set(const std::vector<T>& values) {
    (void)cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyDefault);
  }
  std::vector<T> Get() const {
    std::vector<T> values(count_);
    (void)cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDefault);
    return values;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

// One rank that is a thread: on GPU `rank`, with a communicator that is ready and a stream. The
// communicator is destroyed at the end unless the test set it to null.
struct Rank {
  int rank = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
};
void RunRanks(int n, const std::function<void(Rank&)>& body);

// One rank that is a process; obeys lines (nccl_testing.cc says which).
class RankProcess {
 public:
  explicit RankProcess(int gpu, const Environment& environment = {});
  ~RankProcess();  // SIGKILL, and reaps it
  void Say(const std::string& line);
  std::string Hear(int ms = kBoundMs);  // "" : nothing came, or it has ended
  std::string Ask(const std::string& line) {
    Say(line);
    return Hear();
  }
  void Kill();
  void Signal(int signal) const;

 private:
  pid_t process_ = -1;
  int socket_ = -1;
};
void ObeyParent();  // in the child; returns when the parent is gone

}  // namespace holdfast::emulation
