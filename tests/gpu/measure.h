// Memory and times of single operations on a GPU. A time is that of many launches in a row on one
// stream, begun when it is idle, ended when its last work is seen to be over, divided by their
// number; the shorter of three such readings.
//
// Threads: one owner, bound to the device.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace holdfast {

inline constexpr int64_t kGpuWaitMs = 30'000;

class GpuBench {
 public:
  // least_ms: of one reading; 0: a single launch.
  GpuBench(kernels::Device& device, double least_ms)
      : device_(device), least_ms_(least_ms), stream_(device.NewStream()) {}

  kernels::Stream& stream() { return *stream_; }
  kernels::Device& device() { return device_; }
  // Memory that lives as long as this, N(0, deviation) in it. Null, and status() says why, when
  // there is none.
  float* Normal(int64_t n, float deviation = 0.1f);
  void* Bytes(int64_t bytes);  // zeros
  int32_t* Tokens(int64_t n, int64_t vocab);
  void Forget();  // frees all of it

  // Milliseconds of one `work`, which only launches. 0 after an error.
  double Ms(const std::function<void()>& work);
  // Of a device copy that moves `bytes` in all: reads half of them and writes the other half.
  double CopyMs(int64_t bytes);

  // The first error; what was measured before it is sound.
  const absl::Status& status() const { return status_; }

 private:
  bool Settle();
  double Reading(const std::function<void()>& work, int64_t launches);

  kernels::Device& device_;
  const double least_ms_;
  const std::unique_ptr<kernels::Stream> stream_;
  std::vector<kernels::Buffer> buffers_;
  absl::Status status_;
};

}  // namespace holdfast
