#include "chaos/sgemm_rate.h"

#include <algorithm>
#include <vector>

#include "kernels/ops.h"
#include "runtime/base/clock.h"

namespace holdfast::chaos {
namespace {

using kernels::MatMulShape;

// FLOP/s of one reading of about `flop` operations.
double Reading(kernels::Stream& stream, const MatMulShape& shape, double flop_wanted,
               const std::vector<float>& a, const std::vector<float>& b, std::vector<float>& c) {
  const double flop = 2.0 * static_cast<double>(shape.m * shape.n * shape.k);
  const int rounds = std::max(1, static_cast<int>(flop_wanted / flop));
  const int64_t start_us = BootUs();
  for (int i = 0; i < rounds; ++i) kernels::MatMul(stream, shape, a.data(), b.data(), c.data());
  const double us = static_cast<double>(std::max<int64_t>(1, BootUs() - start_us));
  return flop * rounds / us * 1e6;
}

}  // namespace

double SgemmSampleFlopsPerSecond() {
  static const auto stream = kernels::CpuDevice().NewStream();
  static const std::vector<float> a(512 * 512, 0.5f), b(512 * 512, 0.25f);
  static std::vector<float> c(512 * 512);
  return Reading(*stream, {.m = 512, .n = 512, .k = 512}, 1e9, a, b, c);
}

double SgemmFlopsPerSecond() {
  kernels::SetComputeThread();
  const auto stream = kernels::CpuDevice().NewStream();
  double best = 0;
  for (const MatMulShape& shape :
       {MatMulShape{.m = 192, .n = 512, .k = 128}, MatMulShape{.m = 192, .n = 128, .k = 512},
        MatMulShape{.m = 512, .n = 512, .k = 512}}) {
    const std::vector<float> a(shape.m * shape.k, 0.5f), b(shape.k * shape.n, 0.25f);
    std::vector<float> c(shape.m * shape.n);
    for (int reading = 0; reading < 12; ++reading)
      best = std::max(best, Reading(*stream, shape, 5e8, a, b, c));
  }
  return best;
}

}  // namespace holdfast::chaos
