#include "runtime/models/product.h"

#include <algorithm>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/text.h"

namespace holdfast {
namespace {

constexpr int kTimings = 7;

// The shortest of several runs, in microseconds.
int64_t ShortestUs(const Products& product, const kernels::MatMulShape& shape, const float* a,
                   const float* b, float* c) {
  const auto stream = kernels::CpuDevice().NewStream();
  int64_t shortest = INT64_MAX;
  for (int i = 0; i <= kTimings; ++i) {
    const int64_t begin = BootUs();
    product(*stream, shape, a, b, c);
    if (i > 0) shortest = std::min(shortest, BootUs() - begin);  // the first one warms up
  }
  return shortest;
}

}  // namespace

void Products::operator()(kernels::Stream& stream, const kernels::MatMulShape& shape,
                          const float* a, const float* b, float* c) const {
  if (a_ == nullptr) return kernels::MatMul(stream, shape, a, b, c);
  kernels::FloatToHalf(stream, kernels::Half::kBf16, shape.m * shape.k, a, a_);
  kernels::FloatToHalf(stream, kernels::Half::kBf16, shape.k * shape.n, b, b_);
  kernels::MatMulHalf(stream, kernels::Half::kBf16, shape, a_, b_, nullptr, c);
}

bool Bf16IsFaster(int64_t rows, int64_t width, std::string* why) {
  if (!kernels::Bf16Available()) {
    *why = "this CPU has no bf16 products";
    return false;
  }
  kernels::SetComputeThread();
  const kernels::MatMulShape shape{.m = rows, .n = 4 * width, .k = width};
  const int64_t operand = std::max(shape.m * shape.k, shape.k * shape.n);
  std::vector<float> a(shape.m * shape.k, 0.5f), b(shape.k * shape.n, 0.25f), c(shape.m * shape.n);
  std::vector<uint16_t> scratch(2 * operand);
  const int64_t fp32_us = ShortestUs(Products(), shape, a.data(), b.data(), c.data());
  const int64_t bf16_us =
      ShortestUs(Products(scratch.data(), operand), shape, a.data(), b.data(), c.data());
  *why = Cat("a product of this model takes ", bf16_us, " us in bf16 and ", fp32_us, " us in fp32");
  return bf16_us * 10 < fp32_us * 9;  // a tenth at least: else fp32, which is exacter
}

}  // namespace holdfast
