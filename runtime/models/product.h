// The matrix products of the built-in models, at their precision (--precision). fp32: as they are.
// bf16: both inputs are rounded to bf16 first, the sums and the result are fp32; parameters,
// optimizer and everything that is no product stay fp32. bf16 pays where the CPU multiplies it
// faster (AMX, some AVX-512 BF16), and moves the bits of a run.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops.h"

namespace holdfast {

class Products {
 public:
  Products() = default;
  // scratch: room for two operands of `operand_elements` each (BytesFor); null: fp32.
  Products(void* scratch, int64_t operand_elements)
      : a_(static_cast<uint16_t*>(scratch)),
        b_(scratch == nullptr ? nullptr : a_ + operand_elements) {}
  static int64_t BytesFor(int64_t operand_elements) { return 2 * 2 * operand_elements; }

  // alpha is 1, beta 0 or 1, and the operands are dense.
  void operator()(kernels::Stream& stream, const kernels::MatMulShape& shape, const float* a,
                  const float* b, float* c) const;

 private:
  uint16_t *a_ = nullptr, *b_ = nullptr;
};

// Times a product of a model of this size, rounding included, in both precisions. *why: for people.
bool Bf16IsFaster(int64_t rows, int64_t width, std::string* why);

}  // namespace holdfast
