#include "tests/emulation/simt.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "runtime/base/text.h"
#include "tests/emulation/executor.h"

namespace holdfast::emulation {
namespace {

constexpr int64_t kSharedBytesMax = 227 * 1024;  // of a block, on an H200

std::atomic<uint64_t> shuffle_seed{0};

std::string Where(const char* file, int line) { return Cat(file, ":", line); }
std::string Text(uint3 i) { return Cat("(", i.x, ",", i.y, ",", i.z, ")"); }

absl::Status At(absl::Status status, const char* file, int line) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      Cat("kernel launched at ", Where(file, line), ": ", status.message()));
}

// The order in which `n` things start. Whole groups of `group` stay together.
std::vector<int> Order(int64_t n, int group, uint64_t seed) {
  std::vector<int> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  if (seed == 0) return order;
  std::mt19937_64 random(seed);
  for (int64_t begin = 0; begin < n; begin += group) {
    const int64_t end = std::min<int64_t>(n, begin + group);
    for (int64_t i = end - 1; i > begin; --i)
      std::swap(order[i], order[begin + static_cast<int64_t>(random() % (i - begin + 1))]);
  }
  return order;
}

// Round to nearest, subnormals kept, exceptions masked: the arithmetic of the device, whatever the
// thread has.
class DeviceArithmetic {
 public:
  DeviceArithmetic() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DeviceArithmetic() { _mm_setcsr(before_); }

 private:
  const unsigned before_;
};

absl::Status RunBlocks(dim3 grid, dim3 block, int64_t shared_bytes,
                       const std::function<void()>& thread) {
  Executor& executor = Executor::Mine();
  if (executor.running()) return absl::InternalError("a kernel cannot launch a kernel here");
  const DeviceArithmetic arithmetic;
  const uint64_t seed = shuffle_seed.load();
  const int threads = static_cast<int>(block.x * block.y * block.z);
  const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
  const std::vector<int> order = Order(threads, kLanes, seed);
  const std::vector<int> block_order =
      seed == 0 ? std::vector<int>() : Order(blocks, 1 << 30, seed);
  blockDim = block;
  gridDim = grid;
  executor.Begin(order, thread, shared_bytes);
  for (int64_t i = 0; i < blocks; ++i) {
    const uint64_t b = static_cast<uint64_t>(block_order.empty() ? i : block_order[i]);
    blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                static_cast<unsigned>(b / grid.x / grid.y)};
    const absl::Status status = executor.RunBlock();
    if (!status.ok())
      return absl::InternalError(Cat("block ", Text(blockIdx), ": ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSizes(dim3 grid, dim3 block, int64_t shared_bytes) {
  const auto text = [](dim3 d) { return Cat(d.x, " x ", d.y, " x ", d.z); };
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads < 1 || threads > 1024 || block.x > 1024 || block.y > 1024 || block.z > 64)
    return absl::InvalidArgumentError(Cat("a block of ", text(block), " threads"));
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffffu || grid.y > 65535 ||
      grid.z > 65535)
    return absl::InvalidArgumentError(Cat("a grid of ", text(grid), " blocks"));
  if (shared_bytes < 0 || shared_bytes > kSharedBytesMax)
    return absl::InvalidArgumentError(Cat(shared_bytes, " bytes of dynamic shared memory"));
  return absl::OkStatus();
}

absl::Status RunGrid(dim3 grid, dim3 block, int64_t shared_bytes,
                     const std::function<void()>& thread, const char* file, int line) {
  absl::Status status = CheckSizes(grid, block, shared_bytes);
  if (status.ok()) status = RunBlocks(grid, block, shared_bytes, thread);
  return At(status, file, line);
}

void ShuffleBlocks(uint64_t seed) { shuffle_seed = seed; }

}  // namespace holdfast::emulation
