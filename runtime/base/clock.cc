#include "runtime/base/clock.h"

#include <time.h>

#include <cstdio>

namespace holdfast {

int64_t BootUs() {
  timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000;
}

int64_t BootMs() { return BootUs() / 1000; }

std::string WallTimeText() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  tm parts;
  gmtime_r(&t.tv_sec, &parts);
  char text[64];
  const size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + n, sizeof text - n, ".%03ldZ", t.tv_nsec / 1'000'000);
  return text;
}

}  // namespace holdfast
