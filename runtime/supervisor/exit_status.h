// A status that knows with which exit code the program shall end. The code travels as a payload of
// absl::Status, so that errors pass through ordinary interfaces.
#pragma once

#include <string_view>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "runtime/base/exit_code.h"
#include "runtime/base/status.h"

namespace holdfast {

inline constexpr char kExitPayload[] = "holdfast/exit";

[[nodiscard]] inline absl::Status WithExit(absl::Status status, ExitCode code) {
  if (!status.ok()) status.SetPayload(kExitPayload, absl::Cord(Cat(static_cast<int>(code))));
  return status;
}

template <typename... Args>
[[nodiscard]] absl::Status ExitError(ExitCode code, const Args&... text) {
  return WithExit(absl::FailedPreconditionError(Cat(text...)), code);
}

[[nodiscard]] inline ExitCode ExitCodeOf(const absl::Status& status,
                                         ExitCode fallback = ExitCode::kFailed) {
  const auto payload = status.GetPayload(kExitPayload);
  int code = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &code)) return fallback;
  return static_cast<ExitCode>(code);
}

}  // namespace holdfast
