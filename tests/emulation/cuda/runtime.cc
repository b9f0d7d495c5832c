#include "tests/emulation/cuda/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "runtime/base/text.h"

namespace holdfast::emulation {
namespace {

thread_local int current_device = 0;
thread_local bool in_host_function = false;
thread_local cudaError_t last_error = cudaSuccess;

constexpr int kOldestDriver = 13000;

}  // namespace

int64_t EnvironmentNumber(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 0) return number;
  std::fprintf(stderr, "%s='%s' is no number: see tests/emulation/faults.h\n", name, text);
  std::abort();
}

std::string GpuName(int physical) {
  char name[48];
  std::snprintf(name, sizeof name, "GPU-%08x-484f-4c44-4641-53545f454d55",
                static_cast<unsigned>(physical));
  return name;
}

// As the driver: the list ends at the first entry that names no GPU; a GPU named twice makes the
// whole list void.
std::vector<int> VisibleGpus(int count, const char* visible) {
  std::vector<int> gpus;
  if (visible == nullptr) {
    for (int i = 0; i < count; ++i) gpus.push_back(i);
    return gpus;
  }
  for (const auto& part : absl::StrSplit(visible, ',')) {
    int found = -1;
    int number = 0;
    if (absl::SimpleAtoi(part, &number)) {
      found = number;
    } else if (part.size() > 4 && part.substr(0, 4) == "GPU-") {
      for (int i = 0; i < count; ++i) {
        if (View(GpuName(i)).substr(0, part.size()) == part) found = i;
      }
    }
    if (found < 0 || found >= count) break;
    if (std::count(gpus.begin(), gpus.end(), found) > 0) return {};
    gpus.push_back(found);
  }
  return gpus;
}

int CurrentDevice() { return current_device; }

void InHostFunction(bool inside) { in_host_function = inside; }

cudaError_t Returned(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

bool DeviceLost(int device) { return Runtime::Instance().gpu(device).lost.load() != 0; }

Runtime& Runtime::Instance() {
  static auto* runtime = new Runtime;
  return *runtime;
}

Runtime::Runtime() : process_(static_cast<int>(getpid())) {
  driver_version_ = static_cast<int>(EnvironmentNumber("HOLDFAST_EMU_DRIVER", CUDART_VERSION));
  memory_bytes_ = static_cast<size_t>(EnvironmentNumber("HOLDFAST_EMU_MEMORY_MIB", 8192)) << 20;
  if (const char* delays = std::getenv("HOLDFAST_EMU_DELAYS")) {
    const std::vector<std::string> parts = absl::StrSplit(delays, ':');
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &delay_seed_) ||
        !absl::SimpleAtoi(parts[1], &delay_us_max_) || delay_us_max_ < 0) {
      std::fprintf(stderr, "HOLDFAST_EMU_DELAYS='%s' is not SEED:MAX_US\n", delays);
      std::abort();
    }
  }
  const int count = static_cast<int>(EnvironmentNumber("HOLDFAST_EMU_GPUS", 1));
  if (driver_version_ >= kOldestDriver) {
    for (const int physical : VisibleGpus(count, std::getenv("CUDA_VISIBLE_DEVICES"))) {
      pools_.push_back({static_cast<int>(gpus_.size())});
      gpus_.push_back(std::make_unique<Gpu>());
      gpus_.back()->physical = physical;
    }
  }
  defaults_.resize(gpus_.size());
}

cudaError_t Runtime::Enter() {
  if (in_host_function) return cudaErrorNotPermitted;
  if (driver_version_ < kOldestDriver) return cudaErrorInsufficientDriver;
  if (gpus_.empty()) return cudaErrorNoDevice;
  if (process_ != static_cast<int>(getpid())) return cudaErrorInitializationError;
  return static_cast<cudaError_t>(gpu(current_device).lost.load());
}

void Runtime::LoseDevice(int device, int error) {
  int none = 0;
  gpu(device).lost.compare_exchange_strong(none, error);
}

// ---- Streams

StreamPointer Runtime::NewStream(int device, unsigned flags, int priority) {
  std::lock_guard lock(mutex_);
  auto stream = std::make_shared<CUstream_st>(device, flags, priority, ++serial_);
  stream->Start();
  streams_[stream.get()] = stream;
  std::erase_if(running_, [](const auto& old) { return old.expired(); });
  running_.push_back(stream);
  return stream;
}

StreamPointer Runtime::Default(int device) {
  {
    std::lock_guard lock(mutex_);
    if (const StreamPointer& stream = defaults_[static_cast<size_t>(device)]) return stream;
  }
  StreamPointer made = NewStream(device, cudaStreamDefault, 0);
  std::lock_guard lock(mutex_);
  StreamPointer& stream = defaults_[static_cast<size_t>(device)];
  if (stream == nullptr) {
    stream = made;
  } else {
    made->Close();
  }
  streams_.erase(made.get());  // nobody has its handle
  return stream;
}

StreamPointer Runtime::FindStream(cudaStream_t handle) {
  if (handle == nullptr) return Default(current_device);
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(handle);
  return found == streams_.end() ? nullptr : found->second;
}

bool Runtime::ForgetStream(cudaStream_t handle) {
  std::lock_guard lock(mutex_);
  return streams_.erase(handle) > 0;
}

std::vector<StreamPointer> Runtime::StreamsOf(int device) {
  std::lock_guard lock(mutex_);
  std::vector<StreamPointer> streams;
  for (const auto& weak : running_) {
    if (StreamPointer stream = weak.lock(); stream != nullptr && stream->device == device)
      streams.push_back(std::move(stream));
  }
  return streams;
}

void Runtime::DrainDevice(int device) {
  for (const StreamPointer& stream : StreamsOf(device)) stream->Drain();
}

void Runtime::AwaitNeighbours(const StreamPointer& stream) {
  StreamPointer standard;
  {
    std::lock_guard lock(mutex_);
    standard = defaults_[static_cast<size_t>(stream->device)];
  }
  const auto after = [&](const StreamPointer& other) {
    if (other->idle()) return;
    auto end = std::make_shared<Point>();
    other->Push(end);
    stream->Push([end] { end->Wait(); });
  };
  if (stream == standard) {
    for (const StreamPointer& other : StreamsOf(stream->device)) {
      if (other != stream && (other->flags & cudaStreamNonBlocking) == 0) after(other);
    }
  } else if (standard != nullptr && (stream->flags & cudaStreamNonBlocking) == 0) {
    after(standard);
  }
}

// ---- Memory

void Runtime::AddBlock(void* data, const Block& block) {
  std::lock_guard lock(mutex_);
  blocks_[static_cast<char*>(data)] = block;
}

std::pair<char*, Block> Runtime::FindBlock(const void* data) {
  auto* const at = static_cast<char*>(const_cast<void*>(data));
  std::lock_guard lock(mutex_);
  auto found = blocks_.upper_bound(at);
  if (found == blocks_.begin()) return {at, Block{}};
  --found;
  if (at >= found->first + std::max<size_t>(found->second.bytes, 1)) return {at, Block{}};
  return {found->first, found->second};
}

std::optional<Block> Runtime::TakeBlock(void* data) {
  const Unseen unseen;  // a stream's thread comes here
  std::lock_guard lock(mutex_);
  const auto found = blocks_.find(static_cast<char*>(data));
  if (found == blocks_.end()) return std::nullopt;
  const Block block = found->second;
  blocks_.erase(found);
  return block;
}

bool Runtime::BeginFree(void* data, Block& block) {
  std::lock_guard lock(mutex_);
  const auto found = blocks_.find(static_cast<char*>(data));
  if (found == blocks_.end() || found->second.freeing) return false;
  found->second.freeing = true;
  block = found->second;
  return true;
}

}  // namespace holdfast::emulation

// ---- The calls that need no more than this thread and the list of GPUs

using holdfast::emulation::last_error;
using holdfast::emulation::Runtime;

cudaError_t cudaGetLastError() {
  const cudaError_t lost = Runtime::Instance().Enter();
  if (lost != cudaSuccess && lost != cudaErrorNotPermitted) return lost;
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  const cudaError_t lost = Runtime::Instance().Enter();
  if (lost != cudaSuccess && lost != cudaErrorNotPermitted) return lost;
  return last_error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return holdfast::emulation::Returned(cudaErrorInvalidValue);
  *count = Runtime::Instance().device_count();
  const cudaError_t error = Runtime::Instance().Enter();
  const bool none = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                    error == cudaErrorNotPermitted;
  return none ? holdfast::emulation::Returned(error) : cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  Runtime& runtime = Runtime::Instance();
  if (device < 0 || device >= runtime.device_count()) {
    const cudaError_t entered = runtime.Enter();
    const bool none = entered == cudaErrorNoDevice || entered == cudaErrorInsufficientDriver;
    return holdfast::emulation::Returned(none ? entered : cudaErrorInvalidDevice);
  }
  holdfast::emulation::current_device = device;
  HF_ENTER();
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  HF_ENTER();
  *device = holdfast::emulation::CurrentDevice();
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = Runtime::Instance().driver_version();
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
