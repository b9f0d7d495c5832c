// The rows of the GPU check. Each part of it is a process of its own, because a GPU that is used
// wrongly may crash it or let it stand: it appends each row to a file the moment it is known, and
// check.sh makes one table of all, in which a part that ended without its rows is a row, too.
//
// One line a row, tab-separated:
//   begin WHAT                          what is done now: named when the process ends here
//   row   WHAT RESULT GOAL VERDICT      VERDICT: ok, missed, measured, FAILED, "skipped: why"
//   part  WHAT TIMES MS                 of the profile: so many in one training step, each so long
//
// Threads: one owner.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace holdfast {

class CheckRows {
 public:
  // Appends to `path`; "" is standard output. `emulated`: figures of speed are marked as those of
  // no GPU.
  CheckRows(const std::string& path, bool emulated);
  ~CheckRows();
  CheckRows(const CheckRows&) = delete;
  CheckRows& operator=(const CheckRows&) = delete;

  void Begin(std::string_view what);
  // Right or wrong; a wrong one fails the whole check.
  void Ok(std::string_view what, std::string_view result);
  void Fail(std::string_view what, std::string_view why);
  // Ok with `result`, or Fail with the status.
  void Judge(std::string_view what, const absl::Status& status, std::string_view result);
  void Skip(std::string_view what, std::string_view why);
  // A figure, with a goal that must be reached or exceeded (0: none). Nothing fails by it.
  void Measure(std::string_view what, double value, std::string_view unit, double goal = 0,
               std::string_view note = "");
  void Part(std::string_view what, double times, double ms);

  bool failed() const { return failed_; }

 private:
  void Row(std::string_view what, std::string_view result, std::string_view goal,
           std::string_view verdict);

  std::FILE* file_;
  const bool emulated_;
  bool failed_ = false;
};

// Three digits of a figure: "412,345", "78.4", "0.52".
std::string FigureText(double value);

}  // namespace holdfast
