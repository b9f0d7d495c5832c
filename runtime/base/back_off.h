// The pauses of a loop that polls a GPU and a network: a sixteenth of the time waited so far, from
// 10 microseconds to one millisecond (and what the kernel's timers add, about 50 microseconds). So
// a short operation is seen within 100 microseconds, a long one costs one core's percent.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

#include "runtime/base/clock.h"

namespace holdfast {

class BackOff {
 public:
  void Pause() const {
    const int64_t us = std::clamp<int64_t>((BootUs() - start_us_) / 16, 10, 1000);
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  }

 private:
  const int64_t start_us_ = BootUs();
};

}  // namespace holdfast
