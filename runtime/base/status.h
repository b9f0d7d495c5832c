// Helpers around absl::Status. A code is chosen by what the caller must do, not by what went wrong:
//   kUnavailable         retry just this call, after a back-off
//   kAborted             retry at a higher level (leave the generation, regroup, retry the step)
//   kDeadlineExceeded    the wait was bounded and the bound was reached; the outcome is unknown
//   kCancelled           somebody asked for the end of this work
//   kFailedPrecondition  do not retry before a person (or another component) has changed something
//   kInvalidArgument     bad input: say what, where, and what would be right
//   kDataLoss            stored or received bytes are damaged: use another copy
//   kNotFound, kResourceExhausted, kUnimplemented, kInternal as usual
#pragma once

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/text.h"

namespace holdfast {

// The same code, with `where` in front of the message: "where: message". OK stays OK.
[[nodiscard]] inline absl::Status Annotate(const absl::Status& status, std::string_view where) {
  if (status.ok()) return status;
  return absl::Status(status.code(), Cat(where, ": ", status.message()));
}

}  // namespace holdfast

#define HF_CONCAT_INNER(a, b) a##b
#define HF_CONCAT(a, b) HF_CONCAT_INNER(a, b)

// Evaluates an absl::Status; returns it from the enclosing function unless OK.
#define HF_RETURN_IF_ERROR(expr)           \
  do {                                     \
    absl::Status hf_status = (expr);       \
    if (!hf_status.ok()) return hf_status; \
  } while (false)

// HF_ASSIGN_OR_RETURN(auto x, F()): x gets the value, or the enclosing function returns the status.
#define HF_ASSIGN_OR_RETURN(lhs, expr) HF_ASSIGN_IMPL(HF_CONCAT(hf_or_, __LINE__), lhs, expr)
#define HF_ASSIGN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                   \
  if (!tmp.ok()) return tmp.status();  \
  lhs = std::move(tmp).value()
