// The matrix products of the built-in models, at their precision (--precision). fp32: inputs as
// they are. bf16 and fp16: inputs are rounded first; sums and results are fp32, and so are
// parameters, optimizer and everything that is no product. Where the hardware multiplies 16-bit
// numbers (a GPU, a CPU with AVX-512 BF16 or AMX) they are handed over as such, else as floats that
// were rounded: the same values, in the time of fp32. tf32: a GPU may cut the inputs of fp32
// products to 10 bits.
//
// An Operand is an input, rounded once and used by as many products as read it: activations are
// kept rounded from the forward to the backward pass (Stage, Keep), weights and gradients are
// rounded into a slot of scratch (Take).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace holdfast {

enum class Precision : uint8_t { kF32, kTf32, kBf16, kF16 };

// Of a resolved config: fp32, tf32, bf16, fp16 ("default" reads as fp32). kInvalidArgument else.
absl::StatusOr<Precision> PrecisionOf(std::string_view name);

// How a precision is done on the hardware behind a stream.
struct Rounding {
  Rounding(Precision precision, const kernels::Stream& stream);
  bool rounds = false;  // inputs are rounded, to
  kernels::Half half = kernels::Half::kBf16;
  bool packed = false;  // 16 bits each; else floats
  bool tf32 = false;
  int64_t OperandBytes(int64_t elements) const { return elements * (packed ? 2 : 4); }
};

struct Operand {
  const void* data = nullptr;
  // The operand that begins `elements` further on.
  Operand After(const Rounding& r, int64_t elements) const {
    return {static_cast<const char*>(data) + r.OperandBytes(elements)};
  }
};

// One micro-batch's products. scratch, of ScratchBytes: one slot for a weight, one for a gradient,
// and a stage.
class Products {
 public:
  struct Sizes {
    int64_t weight = 0, gradient = 0, stage = 0;  // elements, the largest of each
  };
  static int64_t ScratchBytes(const Rounding& rounding, const Sizes& sizes);
  Products(const Rounding& rounding, kernels::Stream& stream, void* scratch, const Sizes& sizes);

  // Where the operation that makes an operand shall write, and the operand that stands in `kept`
  // (OperandBytes) after Keep.
  float* Stage(void* kept) const;
  Operand Keep(int64_t elements, void* kept) const;
  // A copy of x, which stays as it is.
  Operand Copy(const float* x, int64_t elements, void* kept) const;
  Operand TakeWeight(const float* x, int64_t elements) const;
  Operand TakeGradient(const float* x, int64_t elements) const;
  // Where TakeGradient puts it, for an operation that rounds its result itself (null in fp32).
  void* gradient_slot() const { return gradient_; }

  // alpha is 1, beta 0 or 1. bias may be null; with it beta is 0 and the result dense.
  void operator()(const kernels::MatMulShape& shape, Operand a, Operand b, float* c,
                  const float* bias = nullptr) const;

 private:
  Operand Round(const float* x, int64_t elements, void* to) const;

  const Rounding rounding_;
  kernels::Stream& stream_;
  char *weight_ = nullptr, *gradient_ = nullptr, *stage_ = nullptr;
};

// Times a product of a model of this size on this CPU, rounding included, in fp32 and bf16. *why:
// for people.
bool Bf16IsFaster(int64_t rows, int64_t width, std::string* why);

}  // namespace holdfast
