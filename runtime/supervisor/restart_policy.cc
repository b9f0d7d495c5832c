#include "runtime/supervisor/restart_policy.h"

#include <algorithm>

#include "runtime/base/text.h"

namespace holdfast {
namespace {

constexpr int kSameStepLosses = 3, kSameStepKills = 6, kStartFailures = 3;

int64_t Delay(int earlier_deaths) {
  if (earlier_deaths == 0) return 0;
  return std::min<int64_t>(10'000, int64_t{250} << std::min(earlier_deaths - 1, 10));
}

}  // namespace

void RestartPolicy::OnProgress(int64_t step) {
  if (step <= step_) return;
  step_ = step;
  deaths_ = 0;
  losses_here_ = 0;
  all_plain_kills_ = true;
  slot_deaths_.clear();
}

Verdict RestartPolicy::OnDeath(const Death& death, bool others_train) {
  ++deaths_;
  const int earlier = slot_deaths_[death.slot]++;
  if (!death.ever_joined) {
    const int failures = ++start_failures_[death.slot];
    if (failures >= kStartFailures && deaths_ <= budget_) {
      const std::string why =
          Cat("worker ", death.slot, " failed ", failures, " times before it could join");
      return {others_train ? Verdict::Kind::kSetAside : Verdict::Kind::kGiveUp, 0, why};
    }
  } else {
    start_failures_[death.slot] = 0;
    all_plain_kills_ = all_plain_kills_ && death.plain_kill;
    // Several members of one generation that die together are one loss.
    if (death.generation != last_generation_) ++losses_here_;
    last_generation_ = death.generation;
    if (losses_here_ >= (all_plain_kills_ ? kSameStepKills : kSameStepLosses)) {
      return {Verdict::Kind::kGiveUp, 0,
              Cat("the world was lost ", losses_here_, " times right after step ", step_,
                  ", without getting past it")};
    }
  }
  if (deaths_ > budget_) {
    return {Verdict::Kind::kGiveUp, 0,
            Cat(deaths_, deaths_ == 1 ? " worker death" : " worker deaths",
                " without a new step since step ", step_, "; --restarts allows ", budget_)};
  }
  return {Verdict::Kind::kRestart, death.ms + Delay(earlier), ""};
}

}  // namespace holdfast
