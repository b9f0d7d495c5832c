#include "tests/kernels/cuda_run.h"

namespace holdfast::kernels::testing {

CudaRun::CudaRun() : device_(Gpu()), stream_(device_.NewStream()) {}

void* CudaRun::Memory(int64_t bytes) {
  auto buffer = device_.Allocate(bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  buffers_.push_back(*std::move(buffer));
  return buffers_.back().data();
}

Floats CudaRun::Read(const float* from, int64_t n) {
  Floats x(n);
  device_.Copy(*stream_, x.data(), from, n * static_cast<int64_t>(sizeof(float)));
  const absl::Status status = stream_->Synchronize(Deadline::After(kWaitMs));
  EXPECT_TRUE(status.ok()) << status;
  return x;
}

Floats SameBitsOnGpu(int64_t size, const std::function<void(CudaRun&, float* out)>& work) {
  const auto run = [&](uint64_t seed, int64_t shift) {
    emulation::ShuffleBlocks(seed);
    CudaRun cuda;
    float* const out = cuda.Fresh(size, shift);
    work(cuda, out);
    const Floats got = cuda.Read(out, size);
    emulation::ShuffleBlocks(0);
    return got;
  };
  const Floats first = run(0, 0);
  const auto expect_same = [&](const Floats& other, const char* where) {
    EXPECT_EQ(0, std::memcmp(first.data(), other.data(), first.size() * sizeof(float))) << where;
  };
  expect_same(run(0, 0), "again");
  expect_same(run(7, 0), "blocks and threads in another order");
  expect_same(run(0, 1), "output shifted");
  return first;
}

}  // namespace holdfast::kernels::testing
