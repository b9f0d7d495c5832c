// Parameter updates of one element, for host and device: the same bits on both.
#pragma once

#include "kernels/math/scalar.h"

namespace holdfast::kernels {

// x^n by repeated squaring: unlike pow(), the same on every machine.
HOLDFAST_HD inline double IntegerPower(double x, int64_t n) {
  double result = 1;
  for (; n > 0; n >>= 1, x *= x) {
    if (n & 1) result *= x;
  }
  return result;
}

// AdamW (Loshchilov, Hutter: "Decoupled weight decay regularization", 2019), all constants of a
// step in fp32.
struct AdamWStep {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step_size;        // lr / (1 - beta1^step)
  float root_correction;  // 1 / sqrt(1 - beta2^step)
  float epsilon, keep;    // keep = 1 - lr * decay
  float gradient_scale;

  HOLDFAST_HD void Apply(float gradient, float* value, float* m, float* v) const {
    const float g = gradient * gradient_scale;
    const float m1 = fmaf(beta1, *m, one_minus_beta1 * g);
    const float v1 = fmaf(beta2, *v, (one_minus_beta2 * g) * g);
    const float denominator = fmaf(sqrtf(v1), root_correction, epsilon);
    *m = m1;
    *v = v1;
    *value = fmaf(-step_size, m1 / denominator, *value * keep);
  }
};

struct SgdStep {
  float learning_rate, decay, gradient_scale;
  HOLDFAST_HD float Apply(float gradient, float value) const {
    return fmaf(-learning_rate, fmaf(decay, value, gradient * gradient_scale), value);
  }
};

}  // namespace holdfast::kernels
