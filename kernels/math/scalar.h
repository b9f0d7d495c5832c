// Elementary functions of one float, for host and device, with the same bits on both: only IEEE
// operations, explicit fmaf() where a product and a sum are to be fused, no library call. They have
// no branches, so that a loop over them becomes vector code. NaN in, NaN out. Coefficients: own
// minimax fits (Chebyshev nodes, 160-bit arithmetic).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "runtime/base/hd.h"

namespace holdfast::kernels {

HOLDFAST_HD inline uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
HOLDFAST_HD inline uint64_t BitsOf(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
HOLDFAST_HD inline float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
HOLDFAST_HD inline double DoubleOf(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

inline constexpr float kInfinity = __builtin_huge_valf();

// e^x, error below 1.2 units in the last place; 0 below -86.5 (results are never subnormal),
// infinite above 88.72.
HOLDFAST_HD inline float Exp(float x) {
  constexpr float kMagic =
      0x1.8p23f;  // adding it rounds to an integer, which then sits in the low bits
  const float t = fmaf(x, 0x1.715476p+0f, kMagic);
  const float top = kMagic + 128.0f, bottom = kMagic - 125.0f;
  float shifted = t > top ? top : t;
  shifted = shifted < bottom ? bottom : shifted;
  const float n = shifted - kMagic;
  float r = fmaf(n, -0x1.62e430p-1f, x);
  r = fmaf(n, 0x1.05c610p-29f, r);
  float q = 0x1.6d117cp-10f;
  q = fmaf(q, r, 0x1.120be2p-7f);
  q = fmaf(q, r, 0x1.555518p-5f);
  q = fmaf(q, r, 0x1.5554dcp-3f);
  q = fmaf(q, r, 0.5f);
  const float p = fmaf(r * r, q, r) + 1.0f;
  const float half_power = FloatOf((BitsOf(shifted) + 126u) << 23);  // 2^(n-1): 2^128 has no float
  const float y = x > 88.75f ? kInfinity : (p + p) * half_power;
  return x < -86.5f ? 0.0f : y;
}

// Natural logarithm, error below 1.5 units in the last place for positive normal numbers; -infinity
// at 0, NaN below.
HOLDFAST_HD inline float Log(float x) {
  const uint32_t bits = BitsOf(x);
  const uint32_t shifted = bits - 0x3f3504f3u;  // so that the fraction lies in [sqrt(1/2), sqrt(2))
  const auto exponent = static_cast<int32_t>(shifted) >> 23;
  const float m = FloatOf(bits - (static_cast<uint32_t>(exponent) << 23));
  const float f = m - 1.0f;
  const auto e = static_cast<float>(exponent);
  float p = -0x1.43b246p-4f;
  p = fmaf(p, f, 0x1.02814ep-3f);
  p = fmaf(p, f, -0x1.0a33eap-3f);
  p = fmaf(p, f, 0x1.231ce6p-3f);
  p = fmaf(p, f, -0x1.54d03ep-3f);
  p = fmaf(p, f, 0x1.999f14p-3f);
  p = fmaf(p, f, -0x1.0000cep-2f);
  p = fmaf(p, f, 0x1.555554p-2f);
  const float square = f * f;
  float tail = fmaf(f * square, p, e * 0x1.0bfbe8p-15f);
  tail = fmaf(-0.5f, square, tail);
  const float y = fmaf(e, 0x1.62e000p-1f, f + tail);
  const float positive = x < kInfinity ? y : x;
  return x > 0.0f ? positive : (x == 0.0f ? -kInfinity : FloatOf(0x7fc00000u));
}

// Hyperbolic tangent, error below 2 units in the last place.
HOLDFAST_HD inline float Tanh(float x) {
  const float s = x * x;
  float p = -0x1.8c2d0ap-8f;
  p = fmaf(p, s, 0x1.576e30p-6f);
  p = fmaf(p, s, -0x1.b91582p-5f);
  p = fmaf(p, s, 0x1.110dd8p-3f);
  p = fmaf(p, s, -0x1.555552p-2f);
  const float small = fmaf(x * s, p, x);
  const float size = fabsf(x);
  const float capped = size > 10.0f ? 10.0f : size;
  const float big = 1.0f - 2.0f / (Exp(2.0f * capped) + 1.0f);
  return size < 0.625f ? small : copysignf(big, x);
}

// sin and cos of 2 pi u, 0 <= u < 1, error below 1e-7.
HOLDFAST_HD inline void SinCosTurn(float u, float* sine, float* cosine) {
  constexpr float kMagic = 0x1.8p23f;
  const float shifted = u * 4.0f + kMagic;
  const uint32_t quadrant = BitsOf(shifted);
  const float t = fmaf(shifted - kMagic, -0.25f, u);
  const float s = t * t;
  float a = 0x1.4bc85cp+5f;
  a = fmaf(a, s, -0x1.32ca9ep+6f);
  a = fmaf(a, s, 0x1.466bbap+6f);
  a = fmaf(a, s, -0x1.4abbcep+5f);
  a = fmaf(a, s, 0x1.921fb6p+2f);
  const float sin_t = a * t;
  float b = 0x1.db6492p+5f;
  b = fmaf(b, s, -0x1.55cb98p+6f);
  b = fmaf(b, s, 0x1.03c1eap+6f);
  b = fmaf(b, s, -0x1.3bd3ccp+4f);
  const float cos_t = fmaf(b, s, 1.0f);
  const bool odd = (quadrant & 1u) != 0;
  const float first = odd ? cos_t : sin_t, second = odd ? sin_t : cos_t;
  *sine = (quadrant & 2u) != 0 ? -first : first;
  *cosine = ((quadrant + 1u) & 2u) != 0 ? -second : second;
}

}  // namespace holdfast::kernels
