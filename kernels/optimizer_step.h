// The constants of one update, from its options: made once on the host, in double, for every
// backend alike.
#pragma once

#include "kernels/math/optimizer.h"
#include "kernels/ops.h"

namespace holdfast::kernels {

inline AdamWStep StepOf(const AdamWOptions& o) {
  const double correction1 = 1 - IntegerPower(o.beta1, o.step);
  const double correction2 = 1 - IntegerPower(o.beta2, o.step);
  AdamWStep step;
  step.beta1 = static_cast<float>(o.beta1);
  step.one_minus_beta1 = static_cast<float>(1 - o.beta1);
  step.beta2 = static_cast<float>(o.beta2);
  step.one_minus_beta2 = static_cast<float>(1 - o.beta2);
  step.step_size = static_cast<float>(o.learning_rate / correction1);
  step.root_correction = static_cast<float>(1 / std::sqrt(correction2));
  step.epsilon = static_cast<float>(o.epsilon);
  step.keep = static_cast<float>(1 - o.learning_rate * o.weight_decay);
  step.gradient_scale = o.gradient_scale;
  return step;
}

inline SgdStep StepOf(const SgdOptions& o) {
  return {static_cast<float>(o.learning_rate), static_cast<float>(o.weight_decay),
          o.gradient_scale};
}

}  // namespace holdfast::kernels
