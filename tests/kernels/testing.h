// What the kernels' tests share: seeded data, the norm-wise error, and the check that an operation
// gives the same bits wherever it runs.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "kernels/math/philox.h"
#include "kernels/ops.h"

namespace holdfast::kernels::testing {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline constexpr int64_t kWaitMs = 60'000;

// N(0, deviation), a pure function of the seed.
inline Floats Normal(uint64_t seed, int64_t n, float deviation = 1.0f) {
  Floats x(n);
  for (int64_t i = 0; i < n; ++i) {
    const Philox4 words = PhiloxBlock(seed, i);
    float other;
    NormalPair(words.lane[0], words.lane[1], &x[i], &other);
    x[i] *= deviation;
  }
  return x;
}

inline std::vector<int32_t> Integers(uint64_t seed, int64_t n, int32_t bound) {
  std::vector<int32_t> x(n);
  for (int64_t i = 0; i < n; ++i) {
    x[i] = static_cast<int32_t>(PhiloxBlock(seed, i).lane[0] % static_cast<uint32_t>(bound));
  }
  return x;
}

inline Doubles Widen(const Floats& x) { return Doubles(x.begin(), x.end()); }

// |got - want| / |want| in the Euclidean norm (absolute where `want` is zero).
template <typename T>
double NormError(const std::vector<T>& got, const Doubles& want) {
  EXPECT_EQ(got.size(), want.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return size > 0 ? std::sqrt(error / size) : std::sqrt(error);
}

// Runs the operations of `work` on an inline stream in this thread, which must be a compute thread.
inline void Compute(const std::function<void(Stream&)>& work) {
  SetComputeThread();
  const std::unique_ptr<Stream> stream = CpuDevice().NewStream();
  work(*stream);
  const absl::Status status = stream->Synchronize(Deadline::After(kWaitMs));
  ASSERT_TRUE(status.ok()) << status;
}

// `work` launches operations that write to `out` (given the size of the output; filled with a
// pattern before). Returns the output, after checking that it has the same bits when run again, in
// two threads at once, on a threaded stream, and with the output shifted off its alignment.
inline Floats SameBits(int64_t size, const std::function<void(Stream&, float* out)>& work,
                       float fill = -7.5f) {
  SetComputeThread();
  const auto run = [&](Stream& stream, int64_t shift) {
    Floats memory(size + shift, fill);
    work(stream, memory.data() + shift);
    const absl::Status status = stream.Synchronize(Deadline::After(kWaitMs));
    EXPECT_TRUE(status.ok()) << status;
    return Floats(memory.begin() + shift, memory.end());
  };
  const auto inline_run = [&](int64_t shift) {
    SetComputeThread();
    return run(*CpuDevice().NewStream(), shift);
  };
  const Floats first = inline_run(0);
  const auto expect_same = [&](const Floats& other, const char* where) {
    EXPECT_EQ(0, std::memcmp(first.data(), other.data(), first.size() * sizeof(float))) << where;
  };
  expect_same(inline_run(0), "again");
  for (const int64_t shift : {1, 3, 8}) expect_same(inline_run(shift), "output shifted");
  Floats in_thread[2];
  std::thread a([&] { in_thread[0] = inline_run(0); });
  std::thread b([&] { in_thread[1] = inline_run(0); });
  a.join();
  b.join();
  expect_same(in_thread[0], "in a thread");
  expect_same(in_thread[1], "in another thread at the same time");
  expect_same(run(*CpuDevice().NewAsyncStream(), 0), "on a threaded stream");
  return first;
}

}  // namespace holdfast::kernels::testing
