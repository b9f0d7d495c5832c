// Floats of 16 bits, as bit patterns: bf16 (the upper half of a float) and IEEE half precision.
// Rounding is to nearest even; a NaN keeps its sign and becomes quiet. The same bits on host and
// device: integer operations and exact float ones only.
#pragma once

#include "kernels/math/scalar.h"

namespace holdfast::kernels {

HOLDFAST_HD inline uint16_t Bf16Of(float x) {
  const uint32_t bits = BitsOf(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
HOLDFAST_HD inline float FloatOfBf16(uint16_t half) {
  return FloatOf(static_cast<uint32_t>(half) << 16);
}

// Five bits of exponent, ten of fraction; 65,520 and more become infinite; subnormals are kept.
HOLDFAST_HD inline uint16_t F16Of(float x) {
  const uint32_t bits = BitsOf(x), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
  // Normal results: the exponent is moved, the fraction cut at bit 13; a carry out of the fraction
  // raises the exponent, up to infinity.
  const uint32_t normal = (size + 0xfffu + ((size >> 13) & 1u) - (112u << 23)) >> 13;
  // Subnormal results: adding 1/2 puts the unit of the last place at 2^-24, which is theirs.
  const uint32_t small = BitsOf(FloatOf(size) + 0.5f) - BitsOf(0.5f);
  const uint32_t special = size > 0x7f800000u ? 0x7e00u | ((size >> 13) & 0x1ffu) : 0x7c00u;
  const uint32_t finite = size < 0x38800000u ? small : normal;
  return static_cast<uint16_t>(sign | (size >= 0x477ff000u ? special : finite));
}
HOLDFAST_HD inline float FloatOfF16(uint16_t half) {
  const uint32_t sign = (static_cast<uint32_t>(half) & 0x8000u) << 16, size = half & 0x7fffu;
  const uint32_t normal = (size << 13) + (112u << 23);
  const uint32_t small = BitsOf(static_cast<float>(size) * 0x1p-24f);
  const uint32_t special = 0x7f800000u | (size << 13);
  return FloatOf(sign | (size >= 0x7c00u ? special : (size < 0x400u ? small : normal)));
}

}  // namespace holdfast::kernels
