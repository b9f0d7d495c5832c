#include "runtime/session/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace holdfast {

double LearningRate(const Config& config, int64_t step) {
  const double top = config.learning_rate;
  if (config.warmup_steps > 0 && step <= config.warmup_steps) {
    return top * static_cast<double>(step) / static_cast<double>(config.warmup_steps);
  }
  if (config.lr_schedule == "constant") return top;
  const double rest = static_cast<double>(std::max<int64_t>(1, config.steps - config.warmup_steps));
  const double done = std::clamp(static_cast<double>(step - config.warmup_steps) / rest, 0.0, 1.0);
  const double low = config.min_learning_rate;
  if (config.lr_schedule == "linear") return top + (low - top) * done;
  return low + 0.5 * (top - low) * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace holdfast
