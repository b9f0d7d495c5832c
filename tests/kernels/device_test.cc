#include "kernels/device.h"

#include <omp.h>
#include <xmmintrin.h>

#include <atomic>
#include <cstring>
#include <limits>

#include "tests/kernels/testing.h"

namespace holdfast::kernels {
namespace {

using testing::kWaitMs;

TEST(Buffer, IsAlignedAndMoves) {
  auto made = CpuDevice().Allocate(100);
  ASSERT_TRUE(made.ok());
  Buffer buffer = *std::move(made);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment, 0u);
  EXPECT_EQ(buffer.bytes(), 100);
  std::memset(buffer.data(), 1, 100);
  Buffer other = std::move(buffer);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(other.as<char>()[99], 1);
  other.Reset();
  EXPECT_EQ(other.data(), nullptr);
  EXPECT_NE(CpuDevice().Allocate(0)->data(), nullptr);
}

TEST(Buffer, NoMemoryIsAnErrorThatNamesTheSize) {
  const auto made = CpuDevice().Allocate(int64_t{1} << 60);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(made.status().message()), ::testing::HasSubstr("1152921504606846976"));
}

TEST(Stream, InlineWorkHasRunWhenLaunchReturns) {
  const auto stream = CpuDevice().NewStream();
  int ran = 0;
  stream->Launch([&] { ++ran; });
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(stream->Record().done());
}

TEST(Stream, ThreadedWorkRunsInOrderAndNotInTheCaller) {
  const auto stream = CpuDevice().NewAsyncStream();
  std::vector<int> order;
  std::thread::id worker;
  for (int i = 0; i < 100; ++i) {
    stream->Launch([&, i] {
      order.push_back(i);
      worker = std::this_thread::get_id();
    });
  }
  ASSERT_TRUE(stream->Synchronize(Deadline::After(kWaitMs)).ok());
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
  EXPECT_NE(worker, std::this_thread::get_id());
}

TEST(Stream, WaitOrdersTwoStreams) {
  const auto first = CpuDevice().NewAsyncStream(), second = CpuDevice().NewAsyncStream();
  std::atomic<bool> go = false;
  int value = 0, seen = -1;
  first->Launch([&] {
    while (!go) std::this_thread::yield();
    value = 42;
  });
  const Event written = first->Record();
  second->Wait(written);
  second->Launch([&] { seen = value; });
  EXPECT_FALSE(written.done());
  go = true;
  ASSERT_TRUE(second->Synchronize(Deadline::After(kWaitMs)).ok());
  EXPECT_EQ(seen, 42);
  EXPECT_TRUE(written.done());
}

TEST(Stream, DeadlinesPass) {
  const auto stream = CpuDevice().NewAsyncStream();
  std::atomic<bool> go = false;
  stream->Launch([&] {
    while (!go) std::this_thread::yield();
  });
  const Event event = stream->Record();
  EXPECT_EQ(event.Synchronize(Deadline::After(10)).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(stream->Synchronize(Deadline::After(10)).code(), absl::StatusCode::kDeadlineExceeded);
  go = true;
  EXPECT_TRUE(event.Synchronize(Deadline::After(kWaitMs)).ok());
}

TEST(Stream, DestructionDropsWhatWaitsForAnEventThatNeverComes) {
  const auto blocked = CpuDevice().NewAsyncStream();
  std::atomic<bool> go = false;
  bool ran = false;
  blocked->Launch([&] {
    while (!go) std::this_thread::yield();
  });
  const Event event = blocked->Record();
  {
    const auto stream = CpuDevice().NewAsyncStream();
    stream->Wait(event);
    stream->Launch([&] { ran = true; });
  }
  EXPECT_FALSE(ran);
  go = true;
}

TEST(Stream, KeepsTheFirstErrorOnce) {
  for (const bool async : {false, true}) {
    const auto stream = async ? CpuDevice().NewAsyncStream() : CpuDevice().NewStream();
    Stream* s = stream.get();
    s->Launch([s] { s->Fail(absl::InternalError("first")); });
    s->Launch([s] { s->Fail(absl::InternalError("second")); });
    EXPECT_EQ(s->Synchronize(Deadline::After(kWaitMs)), absl::InternalError("first"));
    EXPECT_TRUE(s->Synchronize(Deadline::After(kWaitMs)).ok());
  }
}

TEST(ComputeThread, SetsRoundingAndThreadsWhateverWasThere) {
  std::thread([] {
    _mm_setcsr(0x1f80 | 0x8040 | 0x6000);  // flush to zero, subnormals as zero, round towards zero
    omp_set_num_threads(7);
    SetComputeThread();
    EXPECT_EQ(_mm_getcsr() & 0xffc0u, 0x1f80u);
    EXPECT_EQ(omp_get_max_threads(), 1);
    volatile float tiny = std::numeric_limits<float>::denorm_min();
    EXPECT_GT(tiny * 2.0f, 0.0f);
  }).join();
}

TEST(ComputeThread, AsyncStreamsHaveCalledIt) {
  const auto stream = CpuDevice().NewAsyncStream();
  int threads = 0;
  stream->Launch([&] { threads = omp_get_max_threads(); });
  ASSERT_TRUE(stream->Synchronize(Deadline::After(kWaitMs)).ok());
  EXPECT_EQ(threads, 1);
}

TEST(Device, CopiesInStreamOrder) {
  const auto stream = CpuDevice().NewAsyncStream();
  std::vector<float> a(1000, 1.0f), b(1000), c(1000);
  CpuDevice().Copy(*stream, b.data(), a.data(), 4000);
  CpuDevice().Copy(*stream, c.data(), b.data(), 4000);
  ASSERT_TRUE(stream->Synchronize(Deadline::After(kWaitMs)).ok());
  EXPECT_EQ(c, a);
}

}  // namespace
}  // namespace holdfast::kernels
