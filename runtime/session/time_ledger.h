// Where the time of the main thread goes: exclusive buckets that add up to the wall time by
// construction, since every switch closes one and opens the next. Main thread only.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/base/clock.h"

namespace holdfast {

enum class TimeKind : int { kCompute, kReduce, kWait, kCheckpoint, kLost };

class TimeLedger {
 public:
  TimeLedger() : start_us_(BootUs()), since_us_(start_us_) {}
  // The present stretch ends; a new one of `kind` begins. Returns the former kind.
  TimeKind Switch(TimeKind kind) {
    const int64_t now = BootUs();
    spent_us_[static_cast<int>(kind_)] += now - since_us_;
    since_us_ = now;
    const TimeKind former = kind_;
    kind_ = kind;
    return former;
  }
  // Moves what was booked as `from` since `mark` (a copy of this ledger) to `to`: work that turned
  // out to be lost.
  void Rebook(const TimeLedger& mark, TimeKind from, TimeKind to) {
    const int64_t us = spent_us_[static_cast<int>(from)] - mark.spent_us_[static_cast<int>(from)];
    spent_us_[static_cast<int>(from)] -= us;
    spent_us_[static_cast<int>(to)] += us;
  }
  double seconds(TimeKind kind) const {
    int64_t us = spent_us_[static_cast<int>(kind)];
    if (kind == kind_) us += BootUs() - since_us_;
    return static_cast<double>(us) * 1e-6;
  }
  double wall_s() const { return static_cast<double>(BootUs() - start_us_) * 1e-6; }

 private:
  int64_t start_us_, since_us_;
  TimeKind kind_ = TimeKind::kWait;
  std::array<int64_t, 5> spent_us_{};
};

// Books a stretch as `kind` and goes back to what it was.
class TimeScope {
 public:
  TimeScope(TimeLedger& ledger, TimeKind kind) : ledger_(ledger), former_(ledger.Switch(kind)) {}
  ~TimeScope() { ledger_.Switch(former_); }
  TimeScope(const TimeScope&) = delete;
  TimeScope& operator=(const TimeScope&) = delete;

 private:
  TimeLedger& ledger_;
  TimeKind former_;
};

}  // namespace holdfast
