#include "kernels/math/half.h"

#include "kernels/device_ops.h"

namespace holdfast::kernels {

void FloatToHalf(Stream& stream, Half half, int64_t n, const float* from, uint16_t* to) {
  if (const DeviceOps* ops = stream.ops()) return ops->FloatToHalf(stream, half, n, from, to);
  stream.Launch([=] {
    if (half == Half::kBf16) {
      for (int64_t i = 0; i < n; ++i) to[i] = Bf16Of(from[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] = F16Of(from[i]);
    }
  });
}

void HalfToFloat(Stream& stream, Half half, int64_t n, const uint16_t* from, float* to) {
  if (const DeviceOps* ops = stream.ops()) return ops->HalfToFloat(stream, half, n, from, to);
  stream.Launch([=] {
    if (half == Half::kBf16) {
      for (int64_t i = 0; i < n; ++i) to[i] = FloatOfBf16(from[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] = FloatOfF16(from[i]);
    }
  });
}

void RoundToHalf(Stream& stream, Half half, int64_t n, const float* x, float* out) {
  if (const DeviceOps* ops = stream.ops()) return ops->RoundToHalf(stream, half, n, x, out);
  stream.Launch([=] {
    if (half == Half::kBf16) {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) out[i] = FloatOfBf16(Bf16Of(x[i]));
    } else {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) out[i] = FloatOfF16(F16Of(x[i]));
    }
  });
}

void AllowTf32(Stream& stream, bool allow) {
  if (const DeviceOps* ops = stream.ops()) return ops->AllowTf32(stream, allow);
  // A CPU multiplies fp32 as it is.
}

}  // namespace holdfast::kernels
