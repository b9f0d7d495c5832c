// Fixed point in 64-bit integers: what makes sums of gradients independent of their order. The same
// bits on host and device: only exact or singly rounded IEEE operations.
#pragma once

#include "kernels/math/scalar.h"

namespace holdfast::kernels {

// 2^e as a double, -1022 <= e <= 1023.
HOLDFAST_HD inline double PowerOfTwo(int e) {
  return DoubleOf(static_cast<uint64_t>(e + 1023) << 52);
}

// The bound of |x| * 2^k: the magic addition needs 2^51, and the sum of `micro_batches` values must
// stay below 2^62.
HOLDFAST_HD inline double FixedBound(int64_t micro_batches) {
  const double wrap = 0x1p62 / static_cast<double>(micro_batches);
  return wrap < 0x1p51 ? wrap : 0x1p51;
}

// `scaled` = x * 2^k, |scaled| < 2^51: the nearest integer (ties to even). The sum lies in [2^52,
// 2^53), where the unit of the last place is 1; llrint does the same ten times slower.
HOLDFAST_HD inline int64_t FixedOf(double scaled) {
  constexpr double kMagic = 0x1.8p52;
  return static_cast<int64_t>(BitsOf(scaled + kMagic) - BitsOf(kMagic));
}

// double(v), rounded once, equal to the hardware's conversion: high32 * 2^32 + low32, both parts
// exact. (Taking the magic number off again is wrong beyond 2^51, where sums may lie.)
HOLDFAST_HD inline double DoubleOfFixed(int64_t v) {
  const auto bits = static_cast<uint64_t>(v);
  const double high =
      DoubleOf(((bits >> 32) ^ 0x80000000u) | 0x4530000000000000u);  // 2^84 + (high + 2^31) 2^32
  const double low = DoubleOf((bits & 0xffffffffu) | 0x4330000000000000u);  // 2^52 + low
  return (high - 0x1.00000801p84) + low;                                    // 2^84 + 2^63 + 2^52
}

// The fixed-point value of one float; 0 and false when it is not |x| 2^k < bound (NaN fails the
// compare).
HOLDFAST_HD inline bool ToFixed(float x, double scale, double bound, int64_t* fixed) {
  const double scaled = static_cast<double>(x) * scale;
  const bool ok = fabs(scaled) < bound;
  *fixed = ok ? FixedOf(scaled) : 0;
  return ok;
}

}  // namespace holdfast::kernels
