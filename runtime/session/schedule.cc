#include "runtime/session/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/base/status.h"
#include "runtime/config/keys.h"

namespace holdfast {

double LearningRate(const Config& config, int64_t step) {
  const double top = config.learning_rate;
  if (config.warmup_steps > 0 && step <= config.warmup_steps) {
    return top * static_cast<double>(step) / static_cast<double>(config.warmup_steps);
  }
  if (config.lr_schedule == "constant") return top;
  const int64_t last = config.decay_steps > 0 ? config.decay_steps : config.steps;
  const double rest = static_cast<double>(std::max<int64_t>(1, last - config.warmup_steps));
  const double done = std::clamp(static_cast<double>(step - config.warmup_steps) / rest, 0.0, 1.0);
  const double low = config.min_learning_rate;
  if (config.lr_schedule == "linear") return top + (low - top) * done;
  return low + 0.5 * (top - low) * (1 + std::cos(std::numbers::pi * done));
}

absl::StatusOr<Schedules> Schedules::Of(const Config& config, const rendezvous::Lineage& lineage) {
  Schedules schedules(config);
  if (lineage.empty()) return schedules;
  schedules.lineage_ = lineage;
  schedules.configs_.clear();
  for (const rendezvous::Fork& fork : lineage) {
    Config of = config;
    const std::string name = Cat("the schedule of branch ", fork.branch);
    const absl::Status read = MergeToml(fork.schedule, name, &of);
    if (!read.ok()) return absl::DataLossError(read.message());
    schedules.configs_.push_back(std::move(of));
  }
  return schedules;
}

double Schedules::LearningRate(int64_t step) const {
  return holdfast::LearningRate(configs_[rendezvous::RulerOf(lineage_, step)], step);
}

}  // namespace holdfast
