#include "tests/kernels/cuda_direct.h"

#include <cuda_runtime.h>

namespace holdfast::kernels {

float* CudaScratch(Stream& stream, int64_t bytes) {
  return static_cast<testing::DirectStream&>(stream).Scratch(bytes);
}

namespace testing {

float* DirectStream::Scratch(int64_t bytes) {
  scratch_.emplace_back((bytes + 3) / 4, NAN);
  return scratch_.back().data();
}

Floats SameBitsOnCuda(int64_t size, const std::function<void(Stream&, float* out)>& work) {
  const auto run = [&](uint64_t seed, int64_t shift) {
    emulation::ShuffleBlocks(seed);
    Floats memory(size + shift, NAN);
    DirectStream stream;
    work(stream, memory.data() + shift);
    emulation::ShuffleBlocks(0);
    const absl::Status status = stream.Synchronize(Deadline::After(kWaitMs));
    EXPECT_TRUE(status.ok()) << status;
    return Floats(memory.begin() + shift, memory.end());
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

}  // namespace testing
}  // namespace holdfast::kernels

// All that a launch needs of a CUDA runtime.
namespace holdfast::emulation {
void Enqueue(cudaStream_t, std::function<void()> work) { work(); }
}  // namespace holdfast::emulation
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
