// The CUDA device on the emulated runtime: memory, order between streams, deadlines, and what
// becomes of errors. A stream is held back by a gate, never by time.
#include <cuda_runtime.h>

#include <condition_variable>
#include <mutex>

#include "absl/strings/match.h"
#include "kernels/cuda/stream.h"
#include "tests/emulation/faults.h"
#include "tests/emulation/simt.h"
#include "tests/kernels/cuda_testing.h"

namespace holdfast::kernels {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers
using ::testing::HasSubstr;

// Work on the stream stands at the gate until it is opened (or goes out of scope).
class Gate {
 public:
  explicit Gate(Stream& stream) {
    emulation::Enqueue(static_cast<cudaStream_t>(stream.native()), [this] {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return open_; });
      passed_ = true;
      changed_.notify_all();
    });
  }
  ~Gate() {
    Open();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return passed_; });
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false, passed_ = false;
};

absl::Status Sync(Stream& stream) { return stream.Synchronize(Deadline::After(kWaitMs)); }

Buffer MustAllocate(int64_t bytes) {
  auto made = Gpu().Allocate(bytes);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}
Buffer MustPin(int64_t bytes) {
  auto made = Gpu().AllocateHost(bytes);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

TEST(CudaDevice, NamesItselfAndItsLibraries) {
  EXPECT_EQ(Gpu().backend(), Backend::kCuda);
  EXPECT_THAT(Gpu().Name(), HasSubstr(" SMs, sm_"));
  EXPECT_THAT(Gpu().Name(), HasSubstr("driver for CUDA 13.0, runtime 13.0, cuBLASLt "));
  EXPECT_TRUE(Gpu().Health().ok());
  EXPECT_EQ(&Gpu(), &Gpu()) << "opened once";
  EXPECT_EQ(*FindCudaBackend().DeviceCount({}), 1);
  const auto second = FindCudaBackend().Open({}, 1);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("no GPU 1"));
}

TEST(CudaDevice, MemoryIsAlignedAndEmptyMemoryIsNotNull) {
  const Buffer buffer = MustAllocate(100), empty = MustAllocate(0), pinned = MustPin(0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment, 0u);
  EXPECT_EQ(buffer.bytes(), 100);
  EXPECT_NE(empty.data(), nullptr);
  EXPECT_NE(pinned.data(), nullptr);
}

TEST(CudaDevice, NoMemoryNamesTheSizeAndDoesNoHarm) {
  const auto huge = Gpu().Allocate(int64_t{1} << 50);
  EXPECT_EQ(huge.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(huge.status().message()), HasSubstr("1125899906842624"));
  ASSERT_TRUE(emulation::SetFaults("cuda.alloc.error").ok());
  EXPECT_EQ(Gpu().AllocateHost(64).status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(emulation::SetFaults("").ok());
  EXPECT_TRUE(Gpu().Health().ok());
  // The error of the allocation is not taken for one of the next launch.
  const Buffer buffer = MustAllocate(64);
  const std::unique_ptr<Stream> stream = Gpu().NewStream();
  Fill(*stream, 16, 1.0f, buffer.as<float>());
  EXPECT_TRUE(Sync(*stream).ok());
}

TEST(CudaDevice, ScratchThatCannotGrowFailsTheStream) {
  const std::unique_ptr<Stream> stream = Gpu().NewStream();
  const Buffer buffer = MustAllocate(64);
  ASSERT_TRUE(emulation::SetFaults("cuda.alloc.error").ok());
  BiasGradient(*stream, {2, 4}, buffer.as<float>(), buffer.as<float>() + 8);
  ASSERT_TRUE(emulation::SetFaults("").ok());
  const absl::Status status = Sync(*stream);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cudaMallocAsync"));
  EXPECT_TRUE(Sync(*stream).ok()) << "reported once";
}

TEST(CudaDevice, ScratchGrowsBehindTheWorkThatUsesIt) {
  const std::unique_ptr<Stream> stream = Gpu().NewStream();
  const int64_t n = 1000;
  const Buffer out = MustAllocate(n * 4);
  Floats host(n);
  {
    Gate gate(*stream);
    float* const small = CudaScratch(*stream, n * 4);
    Fill(*stream, n, 3.0f, small);
    CopyFloat(*stream, n, small, out.as<float>());
    float* const large = CudaScratch(*stream, int64_t{8} << 20);
    Fill(*stream, n, 4.0f, large);
    EXPECT_EQ(CudaScratch(*stream, 10), large) << "what is there is used again";
  }
  Gpu().Copy(*stream, host.data(), out.data(), n * 4);
  ASSERT_TRUE(Sync(*stream).ok());
  EXPECT_EQ(host, Floats(n, 3.0f));
}

TEST(CudaDevice, PinnedCopiesDoNotStopTheCaller) {
  const std::unique_ptr<Stream> stream = Gpu().NewStream();
  const Buffer device = MustAllocate(4), from = MustPin(4), to = MustPin(4);
  *from.as<int32_t>() = 5;
  *to.as<int32_t>() = 0;
  Event copied;
  {
    Gate gate(*stream);
    Gpu().Copy(*stream, device.data(), from.data(), 4);
    Gpu().Copy(*stream, to.data(), device.data(), 4);
    copied = stream->Record();
    EXPECT_FALSE(copied.done());
    EXPECT_EQ(*to.as<int32_t>(), 0);
    gate.Open();
  }
  ASSERT_TRUE(copied.Synchronize(Deadline::After(kWaitMs)).ok());
  EXPECT_TRUE(copied.done());
  EXPECT_EQ(*to.as<int32_t>(), 5);
}

TEST(CudaDevice, ZeroIsInStreamOrder) {
  const std::unique_ptr<Stream> stream = Gpu().NewStream();
  const Buffer device = MustAllocate(40);
  Floats host(10);
  Fill(*stream, 10, 1.0f, device.as<float>());
  Gpu().Zero(*stream, device.as<float>() + 2, 5 * 4);
  Gpu().Zero(*stream, device.data(), 0);
  Gpu().Copy(*stream, host.data(), device.data(), 40);
  ASSERT_TRUE(Sync(*stream).ok());
  EXPECT_EQ(host, (Floats{1, 1, 0, 0, 0, 0, 0, 1, 1, 1}));
}

// A stream that forgets to wait reads what was there before; the emulation shows it.
TEST(CudaStream, OnlyAWaitOrdersTwoStreams) {
  const std::unique_ptr<Stream> writer = Gpu().NewStream(), reader = Gpu().NewStream();
  const Buffer data = MustAllocate(4), forgot = MustPin(4), waited = MustPin(4);
  Fill(*writer, 1, 1.0f, data.as<float>());
  ASSERT_TRUE(Sync(*writer).ok());
  {
    Gate gate(*writer);
    Fill(*writer, 1, 2.0f, data.as<float>());
    const Event written = writer->Record();
    Gpu().Copy(*reader, forgot.data(), data.data(), 4);
    ASSERT_TRUE(Sync(*reader).ok());
    EXPECT_EQ(*forgot.as<float>(), 1.0f);
    reader->Wait(written);
    Gpu().Copy(*reader, waited.data(), data.data(), 4);
    EXPECT_EQ(reader->Synchronize(Deadline::After(30)).code(), absl::StatusCode::kDeadlineExceeded);
    gate.Open();
  }
  ASSERT_TRUE(Sync(*reader).ok());
  EXPECT_EQ(*waited.as<float>(), 2.0f);
}

TEST(CudaStream, SynchronizeKeepsItsDeadline) {
  const std::unique_ptr<Stream> stream = Gpu().NewStream();
  Event event;
  {
    Gate gate(*stream);
    event = stream->Record();
    const absl::Status status = stream->Synchronize(Deadline::After(20));
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()), HasSubstr(Gpu().Name()));
    EXPECT_EQ(event.Synchronize(Deadline::After(20)).code(), absl::StatusCode::kDeadlineExceeded);
    gate.Open();
  }
  EXPECT_TRUE(Sync(*stream).ok());
  EXPECT_TRUE(event.Synchronize(Deadline::After(0)).ok());
}

// CUDA keeps "not ready" as the thread's last error.
TEST(CudaStream, PollingLeavesNoErrorBehind) {
  const std::unique_ptr<Stream> stream = Gpu().NewStream();
  {
    Gate gate(*stream);
    const Event event = stream->Record();
    EXPECT_FALSE(event.done());
    EXPECT_FALSE(event.Synchronize(Deadline::After(1)).ok());
    EXPECT_FALSE(stream->Synchronize(Deadline::After(1)).ok());
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    gate.Open();
    EXPECT_TRUE(Sync(*stream).ok());
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }
}

TEST(CudaStream, EventsPassBetweenCpuAndGpu) {
  const std::unique_ptr<Stream> gpu = Gpu().NewStream(), cpu = CpuDevice().NewAsyncStream();
  const Buffer data = MustAllocate(4), host = MustPin(4);
  float seen = 0;
  {
    Gate gate(*gpu);
    Fill(*gpu, 1, 7.0f, data.as<float>());
    Gpu().Copy(*gpu, host.data(), data.data(), 4);
    cpu->Wait(gpu->Record());
    cpu->Launch([&] { seen = *host.as<float>() + 1; });
    gate.Open();
  }
  gpu->Wait(cpu->Record());
  ASSERT_TRUE(Sync(*gpu).ok());
  ASSERT_TRUE(Sync(*cpu).ok());
  EXPECT_EQ(seen, 8.0f);
}

TEST(CudaStream, KeepsTheFirstErrorOfItsWork) {
  const std::unique_ptr<Stream> stream = Gpu().NewStream();
  const Buffer data = MustAllocate(64);
  ASSERT_TRUE(emulation::SetFaults("cuda.launch.error").ok());
  Fill(*stream, 16, 1.0f, data.as<float>());
  stream->Fail(absl::AbortedError("a later one"));
  ASSERT_TRUE(emulation::SetFaults("").ok());
  const absl::Status status = Sync(*stream);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("elementwise.cu"));
  EXPECT_TRUE(Gpu().Health().ok()) << "the device goes on";
  EXPECT_TRUE(Sync(*stream).ok());
}

// ---- In a process of its own: what leaves a process without its device, and what keeps it from
// one.

class CudaProcess : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Exits with 0 when `status` has this code and says this.
[[noreturn]] void Judge(const absl::Status& status, absl::StatusCode code, const char* says) {
  const bool good = status.code() == code && absl::StrContains(status.message(), says);
  if (!good) std::cerr << "instead: " << status << "\n";
  _exit(good ? 0 : 1);
}

TEST_F(CudaProcess, AStickyErrorEndsTheDevice) {
  // `ask` is asked once a kernel has lost the device.
  const auto lose = [](const std::function<absl::Status(Device&, Stream&)>& ask) {
    Device& device = Gpu();
    const std::unique_ptr<Stream> stream = device.NewStream();
    const Buffer data = MustAllocate(64);
    (void)emulation::SetFaults("cuda.launch.sticky");
    Fill(*stream, 16, 1.0f, data.as<float>());
    const Event event = stream->Record();
    (void)event.Synchronize(Deadline::After(kWaitMs));
    Judge(ask(device, *stream), absl::StatusCode::kInternal, "cudaErrorIllegalAddress");
  };
  const auto ends = ::testing::ExitedWithCode(0);
  EXPECT_EXIT(lose([](Device&, Stream& s) { return Sync(s); }), ends, "");
  EXPECT_EXIT(lose([](Device& d, Stream&) { return d.Health(); }), ends, "");
  EXPECT_EXIT(lose([](Device& d, Stream&) { return Sync(*d.NewStream()); }), ends, "");
  EXPECT_EXIT(lose([](Device& d, Stream&) { return d.Allocate(8).status(); }), ends, "");
  EXPECT_EXIT(lose([](Device& d, Stream&) { return d.AllocateHost(8).status(); }), ends, "");
  EXPECT_EXIT(lose([](Device& d, Stream&) { return d.BindThread(); }), ends, "");
  EXPECT_EXIT(lose([](Device&, Stream& s) {
                (void)Sync(s);
                return Sync(s);  // for good
              }),
              ends, "");
}

TEST_F(CudaProcess, RefusalsSayWhatIsMissing) {
  const auto open = [](const char* name, const char* value, absl::StatusCode code,
                       const char* says) {
    setenv(name, value, 1);
    Judge(FindCudaBackend().Open({}, 0).status(), code, says);
  };
  const auto ends = ::testing::ExitedWithCode(0);
  EXPECT_EXIT(open("HOLDFAST_EMU_DRIVER", "0", absl::StatusCode::kUnavailable,
                   "no NVIDIA driver on this machine"),
              ends, "");
  EXPECT_EXIT(open("HOLDFAST_EMU_DRIVER", "12040", absl::StatusCode::kFailedPrecondition,
                   "is for CUDA 12.4, this program for CUDA 13.0"),
              ends, "");
  EXPECT_EXIT(open("HOLDFAST_EMU_GPUS", "0", absl::StatusCode::kUnavailable,
                   "no GPU that this process may use"),
              ends, "");
}

}  // namespace
}  // namespace holdfast::kernels
