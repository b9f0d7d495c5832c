// Streams and events of the emulated CUDA runtime.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/emulation/cuda/runtime.h"
#include "tests/emulation/cuda_testing.h"

namespace holdfast::emulation {
namespace {

TEST(Streams, CallsReturnBeforeTheirWork) {
  const TestStream stream;
  Gate gate;
  Enqueue(stream, [&] { gate.Pass(); });
  std::atomic<bool> ran{false};
  Enqueue(stream, [&] { ran = true; });
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorNotReady) << "it stays as the last error";
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_FALSE(ran);
  gate.Open();
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_TRUE(ran);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
}

TEST(Streams, EachIsInOrderAndAloneAmongOthers) {
  const TestStream a, b;
  Gate gate;
  Enqueue(a, [&] { gate.Pass(); });
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) Enqueue(b, [&order, i] { order.push_back(i); });
  EXPECT_EQ(cudaStreamSynchronize(b), cudaSuccess) << "a stands still, b does not";
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
  gate.Open();
  EXPECT_EQ(cudaStreamSynchronize(a), cudaSuccess);
}

TEST(Streams, AWaitBindsToTheRecordBeforeIt) {
  const TestStream a, b;
  const TestEvent event;
  Gate first, second;
  Enqueue(a, [&] { first.Pass(); });
  ASSERT_EQ(cudaEventRecord(event, a), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b, event), cudaSuccess);
  Enqueue(a, [&] { second.Pass(); });
  ASSERT_EQ(cudaEventRecord(event, a), cudaSuccess);  // not what b waits for
  EXPECT_EQ(cudaStreamQuery(b), cudaErrorNotReady);
  first.Open();
  EXPECT_EQ(cudaStreamSynchronize(b), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  second.Open();
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

TEST(Streams, AnEventThatWasNeverRecordedIsComplete) {
  const TestStream stream;
  const TestEvent event;
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream, event), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

TEST(Streams, DestroyDoesNotWaitAndTheWorkStillRuns) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  Gate gate;
  std::atomic<bool> ran{false};
  Enqueue(stream, [&] { gate.Pass(); });
  Enqueue(stream, [&] { ran = true; });
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
  gate.Open();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(ran);
  (void)cudaGetLastError();
}

TEST(Streams, FreeWaitsForTheWholeDevice) {
  const TestStream stream;
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
  Gate gate;
  Enqueue(stream, [&] { gate.Pass(); });
  std::atomic<bool> freed{false};
  std::thread freeing([&] {
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
    freed = true;
  });
  gate.AwaitArrival();
  EXPECT_FALSE(freed);
  gate.Open();
  freeing.join();
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess)
      << "freed before the other stream's work was over";
}

TEST(Streams, TheDefaultStreamAndBlockingStreamsWaitForEachOther) {
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  const TestStream other;  // non-blocking
  Gate gate;
  std::atomic<int> ran{0};
  Enqueue(blocking, [&] { gate.Pass(); });
  Enqueue(nullptr, [&] { ++ran; });
  Enqueue(blocking, [&] { EXPECT_EQ(ran, 1); });
  Enqueue(other, [&] {});
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(ran, 0);
  gate.Open();
  EXPECT_EQ(cudaStreamSynchronize(blocking), cudaSuccess);
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

TEST(Streams, AHostFunctionMayNotCallCuda) {
  const TestStream stream;
  cudaError_t inside = cudaSuccess;
  ASSERT_EQ(cudaLaunchHostFunc(
                stream,
                [](void* result) {
                  void* memory = nullptr;
                  *static_cast<cudaError_t*>(result) = cudaMalloc(&memory, 8);
                },
                &inside),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(inside, cudaErrorNotPermitted);
}

TEST(Streams, TimingNeedsAnEventThatKeepsTime) {
  const TestStream stream;
  cudaEvent_t begin = nullptr, end = nullptr;
  ASSERT_EQ(cudaEventCreate(&begin), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&end), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(begin, stream), cudaSuccess);
  Enqueue(stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  ASSERT_EQ(cudaEventRecord(end, stream), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(end), cudaSuccess);
  float ms = 0;
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaSuccess);
  EXPECT_GE(ms, 2.0f);
  const TestEvent without;
  ASSERT_EQ(cudaEventRecord(without, stream), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, without), cudaErrorInvalidResourceHandle);
  (void)cudaGetLastError();
  EXPECT_EQ(cudaEventDestroy(begin), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
}

TEST(Streams, AForkedChildCannotUseThem) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const pid_t child = fork();
  if (child == 0) {
    cudaStream_t stream = nullptr;
    _exit(cudaStreamCreate(&stream) == cudaErrorInitializationError ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// What the sanitizers are for here: they must see it.
#if defined(__SANITIZE_THREAD__)
TEST(Streams, AForgottenWaitIsARace) {
  const int forgotten = RunChild({{"FORGET", "1"}}, "Child.TwoStreams");
  ASSERT_TRUE(WIFEXITED(forgotten));
  EXPECT_EQ(WEXITSTATUS(forgotten), 66) << "ThreadSanitizer's own code for a race";
  EXPECT_EQ(RunChild({}, "Child.TwoStreams"), 0);
}
TEST(Child, TwoStreams) {
  if (!IsChild()) return;
  const TestStream a, b;
  const TestEvent event;
  float* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 4), cudaSuccess);
  Enqueue(a, [data] { *data = 1; });
  ASSERT_EQ(cudaEventRecord(event, a), cudaSuccess);
  if (std::getenv("FORGET") == nullptr) {
    ASSERT_EQ(cudaStreamWaitEvent(b, event), cudaSuccess);
  }
  Enqueue(b, [data] { *data += 1; });
  ASSERT_EQ(cudaStreamSynchronize(b), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(a), cudaSuccess);
}
#endif
#if defined(__SANITIZE_ADDRESS__)
TEST(Memory, OneElementTooFarIsSeen) { EXPECT_NE(RunChild({}, "Child.WritesTooFar"), 0); }
TEST(Child, WritesTooFar) {
  if (!IsChild()) return;
  const TestStream stream;
  char* data = nullptr;
  ASSERT_EQ(cudaMallocAsync(&data, 5, stream), cudaSuccess);
  Enqueue(stream, [data] { data[5] = 1; });
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}
#endif

TEST(Devices, VisibleDevicesAreChosenAsTheDriverDoes) {
  using List = std::vector<int>;
  EXPECT_EQ(VisibleGpus(3, nullptr), (List{0, 1, 2}));
  EXPECT_EQ(VisibleGpus(3, ""), List{});
  EXPECT_EQ(VisibleGpus(3, "2"), List{2});
  EXPECT_EQ(VisibleGpus(3, "2,0"), (List{2, 0}));
  EXPECT_EQ(VisibleGpus(3, "1,7,0"), List{1}) << "the list ends at what is not there";
  EXPECT_EQ(VisibleGpus(3, "-1"), List{});
  EXPECT_EQ(VisibleGpus(3, "1,1"), List{});
  EXPECT_EQ(VisibleGpus(3, GpuName(2).c_str()), List{2});
}

TEST(Devices, WithoutDriverOrGpuEveryCallSaysSo) {
  EXPECT_EQ(RunChild({{"HOLDFAST_EMU_DRIVER", "0"}}, "Child.NoDriver"), 0);
  EXPECT_EQ(RunChild({{"HOLDFAST_EMU_GPUS", "0"}}, "Child.NoGpu"), 0);
  EXPECT_EQ(
      RunChild({{"HOLDFAST_EMU_GPUS", "2"}, {"CUDA_VISIBLE_DEVICES", "1"}}, "Child.SecondGpu"), 0);
}

// Run by the tests above in a process of their own; here they have nothing to show.
TEST(Child, NoDriver) {
  if (!IsChild()) return;
  int count = -1, version = -1;
  EXPECT_EQ(cudaDriverGetVersion(&version), cudaSuccess);
  EXPECT_EQ(version, 0);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(count, 0);
}
TEST(Child, NoGpu) {
  if (!IsChild()) return;
  int count = -1;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorNoDevice);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorNoDevice);
}
TEST(Child, SecondGpu) {
  if (!IsChild()) return;
  int count = -1, bus = -1;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(cudaDeviceGetAttribute(&bus, cudaDevAttrPciBusId, 0), cudaSuccess);
  EXPECT_EQ(bus, 2) << "device 0 of this process is the host's second GPU";
  EXPECT_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
}

}  // namespace
}  // namespace holdfast::emulation
