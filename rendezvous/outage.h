// Tells people about a store that goes away and comes back: one warning per outage, one line when
// it is over. Keeps the age of the last answer. Shared by the two threads of a membership;
// thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"

namespace holdfast::rendezvous {

class Outage {
 public:
  explicit Outage(int64_t lease_ms) : lease_ms_(lease_ms) { Answered(); }

  void Answered() {
    std::lock_guard lock(mutex_);
    const int64_t now_ms = BootMs();
    // Others may have had no chance to renew: their leases count again after one lease.
    if (last_answer_ms_ < 0 || now_ms - last_answer_ms_ > lease_ms_) {
      lapses_count_from_ms_ = now_ms + lease_ms_;
    }
    last_answer_ms_ = now_ms;
    if (said_) {
      LogInfo("reconnected to Redis after ", (now_ms - away_since_ms_) / 1000, ".",
              (now_ms - away_since_ms_) / 100 % 10, " s");
    }
    away_ = said_ = false;
    error_.clear();
  }

  // A connection that is cut and made anew at once is no outage: only what lasts is told, and one
  // line a second at most.
  void Failed(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    error_ = std::string(status.message().data(), status.message().size());
    const int64_t now_ms = BootMs();
    if (!away_) away_since_ms_ = now_ms;
    away_ = true;
    if (said_ || now_ms - last_answer_ms_ < kWorthSayingMs || now_ms - said_ms_ < 1000) return;
    said_ = true;
    said_ms_ = now_ms;
    LogWarning(error_, "; training goes on, changes of the membership wait");
  }

  int64_t age_ms() const {
    std::lock_guard lock(mutex_);
    return BootMs() - last_answer_ms_;
  }
  int64_t lapses_count_from_ms() const {
    std::lock_guard lock(mutex_);
    return lapses_count_from_ms_;
  }
  std::string error() const {
    std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  static constexpr int64_t kWorthSayingMs = 300;
  const int64_t lease_ms_;
  mutable std::mutex mutex_;
  bool away_ = false, said_ = false;
  int64_t away_since_ms_ = 0, said_ms_ = -1000, last_answer_ms_ = -1, lapses_count_from_ms_ = 0;
  std::string error_;
};

// Delays between attempts: doubling from `first_ms` to `max_ms`, each drawn from [half, whole] by a
// seeded generator, so that many processes do not come back at one instant. Not thread-safe.
class BackOff {
 public:
  BackOff(uint64_t seed, int64_t first_ms, int64_t max_ms)
      : state_(seed), first_ms_(first_ms), max_ms_(max_ms), next_ms_(first_ms) {}
  void Reset() { next_ms_ = first_ms_; }
  int64_t NextMs() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    const int64_t half = next_ms_ / 2;
    const int64_t delay =
        half + static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(half + 1));
    next_ms_ = std::min(next_ms_ * 2, max_ms_);
    return delay;
  }

 private:
  uint64_t state_;
  const int64_t first_ms_, max_ms_;
  int64_t next_ms_;
};

}  // namespace holdfast::rendezvous
