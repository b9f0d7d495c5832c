// Failpoints: named places in the product where a drill makes something fail. Off, one costs a
// relaxed load. Set by the environment variable HOLDFAST_FAILPOINTS or by SetFailpoints, grammar
// (after FreeBSD's fail(9)):
//   name=task[;name=task...]      task: [COUNT*]kind[(argument)][@STEP]
//   kinds: off | kill (SIGKILL to itself) | abort | exit(code) | sleep(ms) | pause (until killed) |
//   return(text)
// "@STEP" arms the task only when the site passes that step number. COUNT: fires so many times,
// then is off. Every firing is logged and counted, so that a drill can prove that its fault
// happened. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace holdfast {

// Replaces all settings. An error names the part that could not be read; nothing is changed then.
[[nodiscard]] absl::Status SetFailpoints(std::string_view settings);
// How often `name` has fired in this process.
int64_t FailpointFired(std::string_view name);

namespace internal {
extern std::atomic<bool> failpoints_on;
std::optional<std::string> FailpointHit(std::string_view name, int64_t step);
}  // namespace internal

// Runs the site's task. Gives the argument of return(text) when that task fired, else nothing.
inline std::optional<std::string> Failpoint(std::string_view name, int64_t step = -1) {
  if (!internal::failpoints_on.load(std::memory_order_relaxed)) return std::nullopt;
  return internal::FailpointHit(name, step);
}

}  // namespace holdfast
