// What the tests of the CUDA backend share, on a GPU or on the emulated device: an operation is run
// on the same arrays by the CPU and by the device, and the two are compared byte by byte.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda_backend.h"
#include "tests/kernels/testing.h"

namespace holdfast::emulation {
void ShuffleBlocks(uint64_t seed);  // see tests/emulation/simt.h; a GPU takes no orders
}

namespace holdfast::kernels::testing {

// GPU 0; the calling thread is bound.
inline Device& Gpu() {
  auto device = FindCudaBackend().Open({}, 0);
  EXPECT_TRUE(device.ok()) << device.status();
  return **device;
}

// An array's contents.
struct Memory {
  std::vector<unsigned char> bytes;
  int64_t element = 1;
  friend bool operator==(const Memory&, const Memory&) = default;
};
template <typename T>
Memory Of(const std::vector<T>& values) {
  Memory memory{std::vector<unsigned char>(values.size() * sizeof(T)), sizeof(T)};
  if (!values.empty()) std::memcpy(memory.bytes.data(), values.data(), memory.bytes.size());
  return memory;
}
template <typename T>
std::vector<T> As(const Memory& memory) {
  std::vector<T> values(memory.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), memory.bytes.data(), memory.bytes.size());
  return values;
}

// Where the arrays lie.
class Arrays {
 public:
  explicit Arrays(std::vector<void*> pointers) : pointers_(std::move(pointers)) {}
  template <typename T>
  T* at(size_t i) const {
    return static_cast<T*>(pointers_[i]);
  }

 private:
  std::vector<void*> pointers_;
};
using Memories = std::vector<Memory>;
using Work = std::function<void(Stream&, const Arrays&)>;

// All arrays as `work` leaves them.
inline Memories OnCpu(Memories arrays, const Work& work) {
  std::vector<void*> pointers;
  for (Memory& array : arrays) {
    array.bytes.reserve(1);  // not null, as on a device
    pointers.push_back(array.bytes.data());
  }
  Compute([&](Stream& stream) { work(stream, Arrays(pointers)); });
  return arrays;
}

// The same on the device, array i moved off its alignment by shifts[i % size] elements. Its memory
// is as long as the array, so that a sanitizer sees an access beyond.
inline Memories OnDevice(Memories arrays, const Work& work, const std::vector<int64_t>& shifts) {
  Device& device = Gpu();
  const std::unique_ptr<Stream> stream = device.NewStream();
  std::vector<Buffer> buffers;
  std::vector<void*> pointers;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const int64_t shift = shifts[i % shifts.size()] * arrays[i].element;
    const auto bytes = static_cast<int64_t>(arrays[i].bytes.size());
    auto buffer = device.Allocate(bytes + shift);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    pointers.push_back(buffer->as<unsigned char>() + shift);
    buffers.push_back(*std::move(buffer));
    device.Copy(*stream, pointers[i], arrays[i].bytes.data(), bytes);
  }
  work(*stream, Arrays(pointers));
  for (size_t i = 0; i < arrays.size(); ++i) {
    device.Copy(*stream, arrays[i].bytes.data(), pointers[i],
                static_cast<int64_t>(arrays[i].bytes.size()));
  }
  const absl::Status status = stream->Synchronize(Deadline::After(kWaitMs));
  EXPECT_TRUE(status.ok()) << status;
  return arrays;
}

// The device gives the CPU's bytes, whatever the alignment and the order in which blocks run.
inline void ExpectSameAsCpu(const Memories& arrays, const Work& work) {
  const Memories want = OnCpu(arrays, work);
  const auto expect_same = [&](const Memories& got, const char* how) {
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(got[i] == want[i]) << "array " << i << " differs, " << how;
  };
  expect_same(OnDevice(arrays, work, {0}), "aligned");
  expect_same(OnDevice(arrays, work, {1}), "all shifted by 1");
  expect_same(OnDevice(arrays, work, {0, 1, 0, 3}), "some shifted");
  emulation::ShuffleBlocks(11);
  expect_same(OnDevice(arrays, work, {0}), "blocks in another order");
  emulation::ShuffleBlocks(0);
}

}  // namespace holdfast::kernels::testing
