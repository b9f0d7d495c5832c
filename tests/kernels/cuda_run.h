// Kernels on the device that this program is linked with, a GPU or the emulated one: arrays are
// copied there, the operations of ops.h run on one stream, results come back.
//
// Threads: one owner.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "tests/kernels/cuda_testing.h"

namespace holdfast::kernels::testing {

class CudaRun {
 public:
  CudaRun();

  Stream& stream() { return *stream_; }
  // A copy of `x` on the device, one of exactly its size, `shift` elements off an alignment of 256
  // bytes. It lives as long as this.
  template <typename T>
  T* On(const std::vector<T>& x, int64_t shift = 0) {
    const auto bytes = static_cast<int64_t>(x.size() * sizeof(T));
    auto* const to =
        static_cast<T*>(Memory(bytes + shift * static_cast<int64_t>(sizeof(T)))) + shift;
    device_.Copy(*stream_, to, x.data(), bytes);
    return to;
  }
  // NaN: what is read must have been written.
  float* Fresh(int64_t n, int64_t shift = 0) { return On(Floats(n, NAN), shift); }
  // Over an array of the device, in the stream's order.
  void Write(const Floats& x, float* to) {
    device_.Copy(*stream_, to, x.data(), static_cast<int64_t>(x.size() * sizeof(float)));
  }
  // What is there when all work so far has run.
  Floats Read(const float* from, int64_t n);

 private:
  void* Memory(int64_t bytes);

  Device& device_;
  const std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;
};

// `work` launches operations that write to `out` (NaN before). Returns the output, after checking
// that it has the same bits again, with blocks and threads in another order where the device is the
// emulated one, and with the output shifted off its alignment by one float.
Floats SameBitsOnGpu(int64_t size, const std::function<void(CudaRun&, float* out)>& work);

}  // namespace holdfast::kernels::testing
