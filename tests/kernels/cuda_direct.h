// CUDA kernels by themselves: a stream whose kernels run at once in the calling thread, on the
// executor of tests/emulation, without a CUDA runtime. Its "device memory" is any host memory.
#pragma once

#include <vector>

#include "kernels/cuda/stream.h"
#include "tests/kernels/testing.h"

namespace holdfast::kernels::testing {

class DirectStream final : public Stream {
 public:
  DirectStream() : Stream(Backend::kCuda, false) {}
  Event Record() override { return Event(); }
  void Wait(const Event&) override {}
  absl::Status Synchronize(Deadline) override { return failure_; }
  void Fail(absl::Status status) override {
    if (failure_.ok()) failure_ = std::move(status);
  }
  // Filled with NaN: what is read must have been written.
  float* Scratch(int64_t bytes);

 protected:
  void Enqueue(std::function<void()> work) override { work(); }

 private:
  absl::Status failure_;
  std::vector<Floats> scratch_;
};

// `work` launches kernels that write to `out` (NaN before). Returns the output, after checking that
// it has the same bits again, with blocks and threads in other orders, and with the output shifted
// off its alignment by one float.
Floats SameBitsOnCuda(int64_t size, const std::function<void(Stream&, float* out)>& work);

}  // namespace holdfast::kernels::testing
