// Whether and when a dead worker is started again. Pure; one thread. The rules (README,
// "Restarts"):
//   - The first restart of a slot is immediate; further ones without a new committed step wait 0.25
//   s, 0.5 s, ... 10 s.
//   - `budget` deaths are tolerated; every committed step makes the budget whole again.
//   - Three losses at the same step, in three generations, end the run: the step kills every world.
//   A plain SIGKILL comes
//     from outside (preemption, a person, the memory limit) and may hit thrice: there it takes six.
//   - A slot that fails three times before it ever joined is set aside while others train, and ends
//   the run otherwise.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace holdfast {

struct Death {
  int slot = 0;
  bool ever_joined = false;  // this process was a member of some generation
  int64_t generation = 0;    // its last one
  bool plain_kill = false;   // SIGKILL without a sign of the memory limit
  int64_t ms = 0;
};

struct Verdict {
  enum class Kind { kRestart, kSetAside, kGiveUp };
  Kind kind = Kind::kRestart;
  int64_t at_ms = 0;  // kRestart: when
  std::string why;    // kSetAside and kGiveUp
};

class RestartPolicy {
 public:
  explicit RestartPolicy(int budget) : budget_(budget) {}
  // `others_train`: some other worker of the run is a member now.
  Verdict OnDeath(const Death& death, bool others_train);
  // The highest committed step so far.
  void OnProgress(int64_t step);
  int deaths_without_progress() const { return deaths_; }

 private:
  int budget_;
  int64_t step_ = 0;
  int deaths_ = 0;
  int losses_here_ = 0;  // generations lost at step_
  bool all_plain_kills_ = true;
  int64_t last_generation_ = -1;
  std::map<int, int> slot_deaths_, start_failures_;
};

}  // namespace holdfast
