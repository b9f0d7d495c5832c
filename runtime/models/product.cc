#include "runtime/models/product.h"

#include <algorithm>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/models/workspace_layout.h"

namespace holdfast {
namespace {

constexpr int kTimings = 7;

struct Slots {
  int64_t weight = 0, gradient = 0, stage = 0, total = 0;
};

Slots SlotsOf(const Rounding& rounding, const Products::Sizes& sizes) {
  Slots s;
  if (!rounding.rounds) return s;
  WorkspaceLayout all;
  s.weight = all.AddBytes(rounding.OperandBytes(sizes.weight));
  s.gradient = all.AddBytes(rounding.OperandBytes(sizes.gradient));
  if (rounding.packed) s.stage = all.AddFloats(sizes.stage);
  s.total = all.total();
  return s;
}

// The shortest of several runs, in microseconds.
int64_t ShortestUs(Precision precision, const kernels::MatMulShape& shape) {
  const auto stream = kernels::CpuDevice().NewStream();
  const Rounding rounding(precision, *stream);
  const int64_t rows = shape.m * shape.k, weights = shape.k * shape.n;
  const Products::Sizes sizes{.weight = weights, .gradient = rows};
  std::vector<float> a(rows, 0.5f), b(weights, 0.25f), c(shape.m * shape.n);
  std::vector<char> scratch(Products::ScratchBytes(rounding, sizes) + 1);
  const Products product(rounding, *stream, scratch.data(), sizes);
  int64_t shortest = INT64_MAX;
  for (int i = 0; i <= kTimings; ++i) {
    const int64_t begin = BootUs();
    product(shape, product.TakeGradient(a.data(), rows), product.TakeWeight(b.data(), weights),
            c.data());
    if (i > 0) shortest = std::min(shortest, BootUs() - begin);  // the first one warms up
  }
  return shortest;
}

}  // namespace

absl::StatusOr<Precision> PrecisionOf(std::string_view name) {
  if (name == "fp32" || name == "default") return Precision::kF32;
  if (name == "tf32") return Precision::kTf32;
  if (name == "bf16") return Precision::kBf16;
  if (name == "fp16") return Precision::kF16;
  return absl::InvalidArgumentError(
      Cat("precision '", name, "' is none of fp32, tf32, bf16, fp16"));
}

Rounding::Rounding(Precision precision, const kernels::Stream& stream)
    : rounds(precision == Precision::kBf16 || precision == Precision::kF16),
      half(precision == Precision::kF16 ? kernels::Half::kF16 : kernels::Half::kBf16),
      packed(rounds && kernels::HalfAvailable(stream, half)),
      tf32(precision == Precision::kTf32) {}

int64_t Products::ScratchBytes(const Rounding& rounding, const Sizes& sizes) {
  return SlotsOf(rounding, sizes).total;
}

Products::Products(const Rounding& rounding, kernels::Stream& stream, void* scratch,
                   const Sizes& sizes)
    : rounding_(rounding), stream_(stream) {
  kernels::AllowTf32(stream, rounding.tf32);
  if (!rounding.rounds) return;
  const Slots slots = SlotsOf(rounding, sizes);
  weight_ = At<char>(scratch, slots.weight);
  gradient_ = At<char>(scratch, slots.gradient);
  stage_ = At<char>(scratch, slots.stage);
}

Operand Products::Round(const float* x, int64_t elements, void* to) const {
  if (rounding_.packed) {
    kernels::FloatToHalf(stream_, rounding_.half, elements, x, static_cast<uint16_t*>(to));
  } else {
    kernels::RoundToHalf(stream_, rounding_.half, elements, x, static_cast<float*>(to));
  }
  return {to};
}

float* Products::Stage(void* kept) const {
  return reinterpret_cast<float*>(rounding_.packed ? stage_ : static_cast<char*>(kept));
}

Operand Products::Keep(int64_t elements, void* kept) const {
  return rounding_.rounds ? Round(Stage(kept), elements, kept) : Operand{kept};
}

Operand Products::Copy(const float* x, int64_t elements, void* kept) const {
  return rounding_.rounds ? Round(x, elements, kept) : Operand{x};
}

Operand Products::TakeWeight(const float* x, int64_t elements) const {
  return rounding_.rounds ? Round(x, elements, weight_) : Operand{x};
}

Operand Products::TakeGradient(const float* x, int64_t elements) const {
  return rounding_.rounds ? Round(x, elements, gradient_) : Operand{x};
}

void Products::operator()(const kernels::MatMulShape& shape, Operand a, Operand b, float* c,
                          const float* bias) const {
  if (rounding_.packed) {
    kernels::MatMulHalf(stream_, rounding_.half, shape, static_cast<const uint16_t*>(a.data),
                        static_cast<const uint16_t*>(b.data), bias, c);
    return;
  }
  const auto *x = static_cast<const float*>(a.data), *y = static_cast<const float*>(b.data);
  if (bias == nullptr) {
    kernels::MatMul(stream_, shape, x, y, c);
  } else {
    kernels::MatMulBias(stream_, shape, x, y, bias, c);
  }
}

bool Bf16IsFaster(int64_t rows, int64_t width, std::string* why) {
  if (!kernels::Bf16Available()) {
    *why = "this CPU has no bf16 products";
    return false;
  }
  kernels::SetComputeThread();
  const kernels::MatMulShape shape{.m = rows, .n = 4 * width, .k = width};
  const int64_t fp32_us = ShortestUs(Precision::kF32, shape);
  const int64_t bf16_us = ShortestUs(Precision::kBf16, shape);
  *why = Cat("a product of this model takes ", bf16_us, " us in bf16 and ", fp32_us, " us in fp32");
  return bf16_us * 10 < fp32_us * 9;  // a tenth at least: else fp32, which is exacter
}

}  // namespace holdfast
