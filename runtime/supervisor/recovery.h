// From the moment a generation is lost to the first step of the next: where the time went. Fed with
// what the supervisor sees (a child reaped or stopped) and what the workers report; pure, one
// thread. All times are CLOCK_BOOTTIME ms.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace holdfast {

struct Recovery {
  std::string cause;       // the first one; "(+2)" for further ones while it lasted
  int64_t generation = 0;  // the one that was lost
  int64_t at_ms = 0;       // the fault, as first seen by anybody
  int64_t detect_ms =
      0;  // until the first survivor gave the generation up (or the last member was reaped)
  int64_t regroup_ms = 0;     // until the last member of the next generation had joined
  int64_t first_step_ms = 0;  // until its first step was applied
  int64_t total_ms() const { return detect_ms + regroup_ms + first_step_ms; }
};

class RecoveryTracker {
 public:
  // A member of `generation` died or was stopped.
  void Fault(int64_t generation, const std::string& cause, int64_t ms);
  // A worker reported the unplanned end of `generation`.
  void Lost(int64_t generation, const std::string& cause, int64_t ms);
  void Joined(int64_t generation, int64_t ms);
  // The recovery that this step completes, if one is open and this is a later generation.
  std::optional<Recovery> FirstStep(int64_t generation, int64_t ms);

  const std::vector<Recovery>& done() const { return done_; }  // at most kMax; the newest are kept
  bool open() const { return open_.has_value(); }

 private:
  static constexpr size_t kMax = 10'000;
  struct Open {
    Recovery recovery;
    int64_t lost_ms = -1, joined_ms = -1;
    int further = 0;
  };
  std::optional<Open> open_;
  std::vector<Recovery> done_;
  int64_t closed_generation_ = 0;  // reports about generations before this one come late
};

}  // namespace holdfast
