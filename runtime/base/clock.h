// Time for deadlines and durations. One clock only: CLOCK_BOOTTIME, which also counts suspended
// time, so that an own deadline never comes late. The wall clock appears in log lines and nowhere
// else; no decision reads it. All functions may be called from any thread.
#pragma once

#include <cstdint>
#include <string>

namespace holdfast {

// Milliseconds (microseconds) since boot. Equal for all processes of one machine.
int64_t BootMs();
int64_t BootUs();

// Wall-clock text for people: "2026-12-01T04:30:12.345Z". Never parsed, never compared.
std::string WallTimeText();

// A point on CLOCK_BOOTTIME by which something must be over.
class Deadline {
 public:
  static Deadline After(int64_t ms) { return Deadline(BootMs() + ms); }
  static Deadline At(int64_t boot_ms) { return Deadline(boot_ms); }
  // Milliseconds left, never below 0.
  int64_t left_ms() const {
    const int64_t left = at_ms_ - BootMs();
    return left > 0 ? left : 0;
  }
  bool passed() const { return BootMs() >= at_ms_; }
  int64_t at_ms() const { return at_ms_; }
  // The earlier of the two.
  Deadline Capped(Deadline other) const { return at_ms_ < other.at_ms_ ? *this : other; }

 private:
  explicit Deadline(int64_t at_ms) : at_ms_(at_ms) {}
  int64_t at_ms_;
};

}  // namespace holdfast
