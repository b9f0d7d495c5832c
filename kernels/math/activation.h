// Activations and other elementwise pieces of a model, for host and device.
#pragma once

#include "kernels/math/scalar.h"

namespace holdfast::kernels {

// GELU in its tanh form (Hendrycks, Gimpel 2016). With z = sqrt(2/pi) (u + 0.044715 u^3), (1 + tanh
// z) / 2 is 1 / (1 + e^-2z), which loses no digits for negative z.
struct Gelu {
  float value = 0, derivative = 0;

  HOLDFAST_HD static Gelu Of(float u) {
    constexpr float kA = 1.5957691216057308f;  // 2 sqrt(2/pi)
    constexpr float kB = 1.5957691216057308f * 0.044715f;
    const float square = u * u;
    const float twice_z = u * fmaf(kB, square, kA);
    const float argument =
        -twice_z > 80.0f ? 80.0f : -twice_z;  // keeps e finite; s is 0 to all digits there
    const float e = Exp(argument);
    const float s = 1.0f / (1.0f + e);
    const float slope = fmaf(3.0f * kB, square, kA);  // d(2z)/du
    Gelu out;
    out.value = u * s;
    out.derivative =
        fmaf(out.value * (e * s), slope, s);  // s + u s (1 - s) d(2z)/du, and 1 - s = e s
    return out;
  }
};

// NaN stays NaN.
HOLDFAST_HD inline float Relu(float u) { return u < 0.0f ? 0.0f : u; }

// Layer norm, elementwise parts. x_hat = (x - mean) rstd.
HOLDFAST_HD inline float Normalise(float x, float mean, float rstd) { return (x - mean) * rstd; }
HOLDFAST_HD inline float LayerNormValue(float x_hat, float gain, float bias) {
  return fmaf(x_hat, gain, bias);
}
// dx = rstd (g - mean(g) - x_hat mean(g x_hat)), g = d_out gain.
HOLDFAST_HD inline float LayerNormSlope(float g, float x_hat, float mean_g, float mean_gx,
                                        float rstd) {
  return rstd * fmaf(-x_hat, mean_gx, g - mean_g);
}

// softmax from the logarithm of the sum: e^(x - log_sum_exp).
HOLDFAST_HD inline float SoftmaxValue(float x, float log_sum_exp) { return Exp(x - log_sum_exp); }

}  // namespace holdfast::kernels
