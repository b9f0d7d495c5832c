// The learning rate of a step: a pure function of the config and the step's number (1 = first).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "rendezvous/lineage.h"
#include "runtime/config/config.h"

namespace holdfast {

// Linear warm-up over `warmup_steps`, then by `lr_schedule` from learning_rate to min_learning_rate
// at `decay_steps` (0: `steps`): cosine (Loshchilov, Hutter 2017), linear, or constant.
double LearningRate(const Config& config, int64_t step);

// The same for a run that has changed its schedule on the way: each step has the one of the branch
// that it belongs to. Immutable.
class Schedules {
 public:
  explicit Schedules(const Config& config) : configs_{config} {}  // one for all steps
  // kDataLoss: a schedule in the lineage cannot be read.
  static absl::StatusOr<Schedules> Of(const Config& config, const rendezvous::Lineage& lineage);
  double LearningRate(int64_t step) const;

 private:
  rendezvous::Lineage lineage_;
  std::vector<Config> configs_;  // one for each fork
};

}  // namespace holdfast
