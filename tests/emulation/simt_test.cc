// The executor of emulated kernels: that the device language means what it means on a GPU, and that
// a kernel which would not be well defined there is refused here, by name and line.
#include "tests/emulation/simt.h"

#include <chrono>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/math/half.h"
#include "kernels/math/philox.h"
#include "runtime/base/text.h"

namespace holdfast::emulation {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void ExpectOk(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }
std::string Failure(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  return std::string(StdView(status.message()));
}

__global__ void SumRows(int cols, const float* x, float* sums) {
  __shared__ float parts[32];
  const int lane = static_cast<int>(threadIdx.x) % warpSize;
  const int warp = static_cast<int>(threadIdx.x) / warpSize;
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += static_cast<int>(blockDim.x))
    sum += x[blockIdx.x * cols + c];
  for (int bits = 16; bits > 0; bits /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, bits);
  if (lane == 0) parts[warp] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (int w = 0; w < static_cast<int>(blockDim.x) / warpSize; ++w) total += parts[w];
    sums[blockIdx.x] = total;
  }
}

TEST(Simt, AReductionBySharedMemoryAndShuffles) {
  constexpr int kRows = 40, kCols = 1000;
  std::vector<float> x(kRows * kCols), sums(kRows);
  for (int i = 0; i < kRows * kCols; ++i) x[i] = static_cast<float>(i % 17);  // exact sums
  for (const uint64_t seed : {0, 1, 2}) {
    ShuffleBlocks(seed);
    for (const int threads : {32, 128, 1024}) {
      std::fill(sums.begin(), sums.end(), -1.0f);
      ExpectOk(RunGrid(kRows, threads, 0, [&] { SumRows(kCols, x.data(), sums.data()); }));
      for (int r = 0; r < kRows; ++r) {
        float want = 0;
        for (int c = 0; c < kCols; ++c) want += x[r * kCols + c];
        EXPECT_EQ(sums[r], want) << "row " << r << ", " << threads << " threads";
      }
    }
  }
  ShuffleBlocks(0);
}

TEST(Simt, EveryThreadOfEveryBlockRunsOnce) {
  const dim3 grid(3, 4, 2), block(5, 2, 3);
  std::vector<int> seen(24 * 30);
  ExpectOk(RunGrid(grid, block, 0, [&] {
    const unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned before = threadIdx.z;
    __syncthreads();
    EXPECT_EQ(before, threadIdx.z);
    atomicAdd(&seen[b * 30 + t], 1);
  }));
  EXPECT_EQ(seen, std::vector<int>(24 * 30, 1));
}

TEST(Simt, ShufflesAndVotes) {
  ExpectOk(RunGrid(1, 64, 0, [] {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    constexpr unsigned kAll = 0xffffffffu;
    EXPECT_EQ(__shfl_sync(kAll, lane * 2.5, 7), 17.5);
    EXPECT_EQ(__shfl_sync(kAll, lane, 3, 8), lane / 8 * 8 + 3);
    EXPECT_EQ(__shfl_down_sync(kAll, lane, 3u, 16), lane % 16 < 13 ? lane + 3 : lane);
    EXPECT_EQ(__shfl_up_sync(kAll, lane, 1u), lane == 0 ? 0 : lane - 1);
    EXPECT_EQ(__shfl_xor_sync(kAll, int64_t{1} << lane, 31), int64_t{1} << (31 - lane));
    EXPECT_EQ(__ballot_sync(kAll, lane % 3 == 0), 0x49249249u);
    EXPECT_NE(__any_sync(kAll, lane == 5), 0);
    EXPECT_EQ(__all_sync(kAll, lane == 5), 0);
    // Two halves of the warp on ways of their own.
    if (lane < 16) {
      EXPECT_EQ(__shfl_xor_sync(0xffffu, lane, 1), lane ^ 1);
      __syncwarp(0xffffu);
    } else {
      EXPECT_EQ(__shfl_xor_sync(0xffff0000u, lane, 2), lane ^ 2);
    }
  }));
}

TEST(Simt, AtomicsAndDynamicSharedMemory) {
  ExpectOk(RunGrid(2, 256, 64 * 4, [] {
    auto* bins = static_cast<unsigned*>(DynamicShared());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bins) % 16, 0u);
    __shared__ int largest;
    if (threadIdx.x < 64) {
      EXPECT_EQ(bins[threadIdx.x], 0xffffffffu) << "every block starts without values";
      bins[threadIdx.x] = 0;
    }
    if (threadIdx.x == 0) largest = -1;
    __syncthreads();
    atomicAdd(&bins[threadIdx.x % 64], 1u);
    atomicMax(&largest, static_cast<int>(threadIdx.x ^ 5u));
    __syncthreads();
    EXPECT_EQ(bins[threadIdx.x % 64], 4u);
    EXPECT_EQ(largest, 255);
  }));
}

// Against a plain product, through the loads that the kernels use.
TEST(Simt, MatrixInstructions) {
  const auto value = [](uint64_t seed, int i) {
    return kernels::Bf16Of(kernels::UniformOf(kernels::PhiloxBlock(seed, i).lane[0]) - 0.5f);
  };
  alignas(16) uint16_t a[16][16], b_rows[16][8], b_columns[8][16];
  for (int i = 0; i < 256; ++i) a[i / 16][i % 16] = value(1, i);
  for (int i = 0; i < 128; ++i) b_rows[i / 8][i % 8] = b_columns[i % 8][i / 8] = value(2, i);
  float got[2][16][8];
  ExpectOk(RunGrid(1, 32, 0, [&] {
    const int lane = Lane(), matrix = lane / 8, row = lane % 8;
    uint32_t fragment_a[4], columns[4], rows[4];
    LoadMatrices(fragment_a, &a[row + matrix % 2 * 8][matrix / 2 * 8], false);
    LoadMatrices(columns, &b_columns[row][matrix % 2 * 8], false);
    LoadMatrices(rows, &b_rows[matrix % 2 * 8 + row][0], true);
    for (int way = 0; way < 2; ++way) {
      const uint32_t(&from)[4] = way == 0 ? columns : rows;
      const uint32_t fragment_b[2] = {from[0], from[1]};
      float d[4];
      for (int r = 0; r < 4; ++r) d[r] = static_cast<float>(r);
      MmaBf16M16N8K16(d, fragment_a, fragment_b);
      for (int r = 0; r < 4; ++r) got[way][lane / 4 + r / 2 * 8][lane % 4 * 2 + r % 2] = d[r];
    }
  }));
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      double want = i / 8 * 2 + j % 2;  // what d began with
      for (int k = 0; k < 16; ++k)
        want +=
            static_cast<double>(kernels::FloatOfBf16(a[i][k])) * kernels::FloatOfBf16(b_rows[k][j]);
      EXPECT_EQ(got[0][i][j], static_cast<float>(want));
      EXPECT_EQ(got[1][i][j], static_cast<float>(want));
    }
  }
}

TEST(Simt, ABarrierThatNotAllReachIsReported) {
  const std::string returned = Failure(RunGrid(dim3(3), 96, 0, [] {
    if (blockIdx.x == 1 && threadIdx.x == 70) return;
    __syncthreads();
  }));
  EXPECT_THAT(returned, AllOf(HasSubstr("simt_test.cc:"), HasSubstr("block (1,0,0)"),
                              HasSubstr("never come"), HasSubstr("__syncthreads"),
                              HasSubstr("and 91 more"), HasSubstr("1 of 96 have returned")));
  const std::string elsewhere = Failure(RunGrid(1, 64, 0, [] {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  }));
  EXPECT_THAT(elsewhere, HasSubstr("__syncthreads: thread (0,0,0) is at"));
}

TEST(Simt, DivergentWarpOperationsAreReported) {
  const auto launch = [](void (*body)()) { return Failure(RunGrid(1, 48, 0, body)); };
  EXPECT_THAT(launch([] { __syncwarp(); }), HasSubstr("never come"))  // 16 threads in warp 1
      << "a mask that names threads that the block does not have";
  EXPECT_THAT(launch([] {
                if (threadIdx.x >= 32) return;
                if (threadIdx.x == 3) return;
                __shfl_xor_sync(0xffffffffu, 1, 1);
              }),
              AllOf(HasSubstr("never come"), HasSubstr("17 of 48 have returned")));
  EXPECT_THAT(launch([] {
                if (threadIdx.x >= 32) return;
                if (threadIdx.x == 31) {
                  __ballot_sync(0xffffffffu, 1);
                } else {
                  __syncwarp();
                }
              }),
              AllOf(HasSubstr("thread (31,0,0) is in __ballot_sync"), HasSubstr("in __syncwarp")));
  EXPECT_THAT(launch([] {
                if (threadIdx.x < 8) __shfl_sync(0xffu, 1, 9);
              }),
              HasSubstr("reads a lane that is not in the mask"));
  EXPECT_THAT(launch([] {
                if (threadIdx.x == 0) __syncwarp(2u);
              }),
              HasSubstr("not in its own mask"));
  // The fibers of the blocks that were given up serve again.
  ExpectOk(RunGrid(2, 64, 0, [] { __syncthreads(); }));
}

TEST(Simt, SizesThatAGpuDoesNotLaunch) {
  const auto code = [](dim3 grid, dim3 block, int64_t bytes) {
    return RunGrid(grid, block, bytes, [] { FAIL(); }).code();
  };
  EXPECT_EQ(code(1, 1025, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(1, dim3(32, 64), 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(1, dim3(1, 1, 65), 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(1, dim3(0), 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(dim3(0), 1, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(dim3(1, 65536), 1, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(1, 1, 227 * 1024 + 1), absl::StatusCode::kInvalidArgument);
  ExpectOk(RunGrid(1, 1, 227 * 1024, [] {}));
}

#if !defined(__SANITIZE_ADDRESS__)  // which ends the process at the write itself
TEST(Simt, AWriteBehindDynamicSharedMemoryIsReported) {
  EXPECT_THAT(Failure(RunGrid(1, 1, 12, [] { static_cast<float*>(DynamicShared())[3] = 1; })),
              HasSubstr("behind the end of dynamic shared memory"));
}
#endif

#if defined(__SANITIZE_THREAD__)
// The value of another thread, with and without a wait between.
void RunExchange(bool wait) {
  std::vector<int> out(64);
  ExpectOk(RunGrid(1, 64, 0, [&] {
    __shared__ unsigned mine[64];
    __syncthreads();
    mine[threadIdx.x] = threadIdx.x;
    if (wait) __syncthreads();
    out[threadIdx.x] = static_cast<int>(mine[63 - threadIdx.x]);
    __syncthreads();
  }));
}
TEST(Simt, AMissingBarrierIsARace) {
  RunExchange(true);
  constexpr int kExitCodeOfTsan = 66;
  EXPECT_EXIT(
      {
        RunExchange(false);
        exit(0);
      },
      ::testing::ExitedWithCode(kExitCodeOfTsan), "data race(.|\n)*simt_test.cc");
}
#endif

TEST(Simt, OsThreadsDoNotMeet) {
  std::vector<float> x(64 * 128, 1.0f);
  std::vector<float> sums[4];
  std::vector<std::thread> threads;
  for (auto& mine : sums) {
    mine.resize(64);
    threads.emplace_back([&x, &mine] {
      for (int again = 0; again < 10; ++again)
        ExpectOk(RunGrid(64, 64, 0, [&] { SumRows(128, x.data(), mine.data()); }));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : sums) EXPECT_EQ(mine, std::vector<float>(64, 128.0f));
}

__global__ void Axpy(int64_t n, float a, const float* x, float* y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = fmaf(a, x[i], y[i]);
}

// Threads that wait nowhere share one fiber, one after the other.
TEST(Simt, AKernelWithoutBarriersIsALoop) {
  constexpr int64_t kCount = 3'000'001;
  std::vector<float> x(kCount, 2.0f), y(kCount, 1.0f);
  const void* stack = nullptr;
  int stacks = 0;
  ExpectOk(RunGrid(static_cast<unsigned>((kCount + 255) / 256), 256, 0, [&] {
    Axpy(kCount, 3.0f, x.data(), y.data());
    const char here = 0;
    if (&here != stack) ++stacks;
    stack = &here;
  }));
  EXPECT_EQ(y, std::vector<float>(kCount, 7.0f));
  EXPECT_EQ(stacks, 1);
}

}  // namespace
}  // namespace holdfast::emulation
