// Memory and errors of the emulated CUDA runtime.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/emulation/cuda/runtime.h"
#include "tests/emulation/cuda_testing.h"
#include "tests/emulation/faults.h"

namespace holdfast::emulation {
namespace {

TEST(Memory, NewMemoryIsNotZero) {
  const TestStream stream;
  float *plain = nullptr, *ordered = nullptr, *pinned = nullptr;
  ASSERT_EQ(cudaMalloc(&plain, 4), cudaSuccess);
  ASSERT_EQ(cudaMallocAsync(&ordered, 4, stream), cudaSuccess);
  ASSERT_EQ(cudaHostAlloc(&pinned, 4, cudaHostAllocPortable), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_TRUE(std::isnan(*plain));
  EXPECT_TRUE(std::isnan(*ordered));
  EXPECT_TRUE(std::isnan(*pinned));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(ordered) % 256, 0u);
  EXPECT_EQ(cudaFree(plain), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(ordered, stream), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

// A sanitizer sees the use of freed memory by itself.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Memory, FreedMemoryIsPoisonInStreamOrder) {
  const TestStream stream;
  float* data = nullptr;
  ASSERT_EQ(cudaMallocAsync(&data, 4, stream), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(data, 0, 4, stream), cudaSuccess);
  Gate gate;
  float before = 1, after = 1;
  Enqueue(stream, [&] { gate.Pass(); });
  Enqueue(stream, [&] { before = *data; });
  ASSERT_EQ(cudaFreeAsync(data, stream), cudaSuccess);
  Enqueue(stream, [&] { after = *data; });  // what a kernel that forgot would read
  EXPECT_EQ(cudaFreeAsync(data, stream), cudaErrorInvalidValue) << "freed twice";
  (void)cudaGetLastError();
  gate.Open();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(before, 0.0f);
  EXPECT_TRUE(std::isnan(after));
}
#endif

TEST(Memory, CopiesStayInsideTheirAllocation) {
  const TestStream stream;
  char* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 10), cudaSuccess);
  std::vector<char> host(20, 7);
  EXPECT_EQ(cudaMemcpyAsync(data, host.data(), 11, cudaMemcpyDefault, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(data + 5, host.data(), 6, cudaMemcpyDefault, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(data + 10, 0, 1, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(host.data(), 0, 1, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(data, host.data(), 10, cudaMemcpyDeviceToDevice, stream),
            cudaErrorInvalidValue)
      << "the direction is not what the pointers are";
  (void)cudaGetLastError();
  EXPECT_EQ(cudaMemcpyAsync(data + 5, host.data(), 5, cudaMemcpyHostToDevice, stream), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaErrorInvalidValue);
  (void)cudaGetLastError();
}

TEST(Memory, PageableMemoryStopsTheCallerAndPinnedDoesNot) {
  const TestStream stream;
  int *device = nullptr, *pinned = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 4), cudaSuccess);
  ASSERT_EQ(cudaHostAlloc(&pinned, 4, cudaHostAllocDefault), cudaSuccess);
  Gate gate;
  Enqueue(stream, [&] { gate.Pass(); });
  int plain = 5;
  ASSERT_EQ(cudaMemcpyAsync(device, &plain, 4, cudaMemcpyDefault, stream), cudaSuccess);
  plain = 6;  // the copy has been staged
  ASSERT_EQ(cudaMemcpyAsync(pinned, device, 4, cudaMemcpyDefault, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady) << "pinned: the call came back before";
  gate.Open();
  int back = 0;
  ASSERT_EQ(cudaMemcpyAsync(&back, device, 4, cudaMemcpyDefault, stream), cudaSuccess);
  EXPECT_EQ(back, 5) << "pageable: the call has waited";
  EXPECT_EQ(*pinned, 5);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  (void)cudaGetLastError();
}

TEST(Memory, APinnedCopyReadsWhenItRuns) {
  const TestStream stream;
  int *device = nullptr, *pinned = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 4), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned), 4), cudaSuccess);
  *pinned = 1;
  Gate gate;
  Enqueue(stream, [&] { gate.Pass(); });
  ASSERT_EQ(cudaMemcpyAsync(device, pinned, 4, cudaMemcpyDefault, stream), cudaSuccess);
  *pinned = 2;  // the mistake that this shows
  gate.Open();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(*device, 2);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST(Memory, ThereIsAnEndOfIt) {
  size_t free_bytes = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, total + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(data, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "not a sticky error";
  ASSERT_EQ(cudaMalloc(&data, 1000), cudaSuccess);
  size_t left = 0;
  ASSERT_EQ(cudaMemGetInfo(&left, &total), cudaSuccess);
  EXPECT_EQ(free_bytes - left, 1000u);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&data, 0), cudaSuccess);
  EXPECT_EQ(data, nullptr);
}

// The tests named Child are run by others in a process of its own; elsewhere they show nothing.
TEST(Memory, AStreamOfAnotherDeviceTakesNoLaunch) {
  EXPECT_EQ(RunChild({{"HOLDFAST_EMU_GPUS", "2"}}, "Child.TwoGpus"), 0);
}
TEST(Child, TwoGpus) {
  if (!IsChild()) return;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const TestStream second;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  Enqueue(second, [] {});
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  Enqueue(second, [] {});
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
}

// ---- Faults

TEST(Faults, AllocationsFailWhereAsked) {
  ASSERT_TRUE(SetFaults("cuda.alloc.error:2").ok());
  const int64_t before = FaultsFired("cuda.alloc.error");
  void *a = nullptr, *b = nullptr, *c = nullptr;
  EXPECT_EQ(cudaMalloc(&a, 8), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&b, 8), cudaErrorMemoryAllocation);
  EXPECT_EQ(b, nullptr);
  EXPECT_EQ(cudaMalloc(&c, 8), cudaSuccess);
  EXPECT_EQ(FaultsFired("cuda.alloc.error") - before, 1);
  ASSERT_TRUE(SetFaults("").ok());
  EXPECT_EQ(cudaFree(a), cudaSuccess);
  EXPECT_EQ(cudaFree(c), cudaSuccess);
  (void)cudaGetLastError();
}

TEST(Faults, ALaunchIsRefused) {
  const TestStream stream;
  ASSERT_TRUE(SetFaults("cuda.launch.error").ok());
  bool ran = false;
  Enqueue(stream, [&] { ran = true; });
  ASSERT_TRUE(SetFaults("").ok());
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchOutOfResources);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_FALSE(ran);
}

TEST(Faults, AStickyErrorIsEveryCallsAnswer) {
  EXPECT_EQ(RunChild({{"HOLDFAST_EMU_FAULT", "cuda.launch.sticky:3"}}, "Child.Sticky"), 0);
}
TEST(Child, Sticky) {
  if (!IsChild()) return;
  const TestStream stream, other;
  const TestEvent event;
  Gate gate;
  std::atomic<int> ran{0};
  Enqueue(stream, [&] { gate.Pass(); });
  Enqueue(stream, [&] { ++ran; });
  Enqueue(stream, [&] { ++ran; });  // this one
  Enqueue(stream, [&] { ++ran; });
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  gate.Open();
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(ran, 1);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 8), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamQuery(other), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress) << "it does not go away";
  EXPECT_EQ(FaultsFired("cuda.launch.sticky"), 1);
}

}  // namespace
}  // namespace holdfast::emulation
