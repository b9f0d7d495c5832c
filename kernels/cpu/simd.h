// Eight floats side by side: AVX2 where there is, plain arrays with the same bits elsewhere. For
// the kernels whose loops the compiler does not turn into good vector code by itself: blocks held
// in registers, and reductions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define HOLDFAST_AVX2 1
#else
#define HOLDFAST_AVX2 0
#endif

namespace holdfast::kernels {

#if HOLDFAST_AVX2

struct F8 {
  __m256 v;
  static F8 Load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static F8 All(float x) { return {_mm256_set1_ps(x)}; }
  static F8 Broadcast(const float* p) { return {_mm256_broadcast_ss(p)}; }
  static F8 Zero() { return {_mm256_setzero_ps()}; }
  void Store(float* p) const { _mm256_storeu_ps(p, v); }
};
inline F8 operator+(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F8 operator-(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F8 operator*(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
// a * b + c, rounded once.
inline F8 MulAdd(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// a > b ? a : b; b where one is NaN.
inline F8 Larger(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }

#else

struct F8 {
  float v[8];
  static F8 Load(const float* p) {
    F8 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
  }
  static F8 All(float x) { return {{x, x, x, x, x, x, x, x}}; }
  static F8 Broadcast(const float* p) { return All(*p); }
  static F8 Zero() { return All(0.0f); }
  void Store(float* p) const { std::memcpy(p, v, sizeof v); }
};
#define HOLDFAST_F8_EACH(expression)               \
  F8 r;                                            \
  for (int i = 0; i < 8; ++i) r.v[i] = expression; \
  return r
inline F8 operator+(F8 a, F8 b) { HOLDFAST_F8_EACH(a.v[i] + b.v[i]); }
inline F8 operator-(F8 a, F8 b) { HOLDFAST_F8_EACH(a.v[i] - b.v[i]); }
inline F8 operator*(F8 a, F8 b) { HOLDFAST_F8_EACH(a.v[i] * b.v[i]); }
inline F8 MulAdd(F8 a, F8 b, F8 c) { HOLDFAST_F8_EACH(fmaf(a.v[i], b.v[i], c.v[i])); }
inline F8 Larger(F8 a, F8 b) { HOLDFAST_F8_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
#undef HOLDFAST_F8_EACH

#endif

// to[j][i] = from[i][j], 8 x 8.
inline void Transpose8x8(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
#if HOLDFAST_AVX2
  __m256 half[8], quarter[8];
  for (int i = 0; i < 4;
       ++i) {  // rows i and i + 4 share a register: 128-bit lanes need no crossing later
    const float* upper = from + i * from_stride;
    const float* lower = from + (i + 4) * from_stride;
    half[2 * i] =
        _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(upper)), _mm_loadu_ps(lower), 1);
    half[2 * i + 1] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(upper + 4)),
                                           _mm_loadu_ps(lower + 4), 1);
  }
  for (int h = 0; h < 2; ++h) {  // columns 4h .. 4h+3
    quarter[0] = _mm256_unpacklo_ps(half[h], half[2 + h]);
    quarter[1] = _mm256_unpackhi_ps(half[h], half[2 + h]);
    quarter[2] = _mm256_unpacklo_ps(half[4 + h], half[6 + h]);
    quarter[3] = _mm256_unpackhi_ps(half[4 + h], half[6 + h]);
    float* row = to + 4 * h * to_stride;
    _mm256_storeu_ps(row, _mm256_shuffle_ps(quarter[0], quarter[2], 0x44));
    _mm256_storeu_ps(row + to_stride, _mm256_shuffle_ps(quarter[0], quarter[2], 0xee));
    _mm256_storeu_ps(row + 2 * to_stride, _mm256_shuffle_ps(quarter[1], quarter[3], 0x44));
    _mm256_storeu_ps(row + 3 * to_stride, _mm256_shuffle_ps(quarter[1], quarter[3], 0xee));
  }
#else
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) to[j * to_stride + i] = from[i * from_stride + j];
  }
#endif
}

// The sum of the eight lanes: ((0+4) + (2+6)) + ((1+5) + (3+7)).
inline float SumLanes(F8 a) {
  float t[8];
  a.Store(t);
  return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
}

// The largest lane. A NaN in a lane may or may not come through.
inline float MaxLanes(F8 a) {
  float t[8];
  a.Store(t);
  float m = t[0];
  for (int i = 1; i < 8; ++i) m = t[i] > m ? t[i] : m;
  return m;
}

}  // namespace holdfast::kernels
