// steps.jsonl: one line for each committed step, in order, once, whoever reports it and however
// often. Every further report of a step, from another worker or a later life of the run, must carry
// the same digest. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/supervisor/line_file.h"

namespace holdfast {

class StepLog {
 public:
  // Reads the lines of earlier lives, of which the newest kWindow can be compared with.
  // `take`, where given, hears the step and loss of each.
  static absl::StatusOr<std::unique_ptr<StepLog>> Open(
      const std::string& path, const std::function<void(int64_t step, double loss)>& take = {});

  enum class Outcome { kWritten, kKnown, kHeld, kDiffers };
  // `line`: the JSON to write. kHeld: an earlier step is missing and may come from another worker.
  Outcome Add(int64_t step, const std::string& digest, std::string line, int64_t now_ms);
  // This machine joins a run that has reached `step` elsewhere: the next line is step + 1. Nothing
  // when the log goes on from lines that it has.
  void StartAfter(int64_t step) {
    if (last_step_ == 0 && held_.empty()) last_step_ = step;
  }
  // Writes what was held too long (the missing step will not come), or all of it.
  void Flush(int64_t now_ms, bool all);
  // The branches of the history that is followed from now on, oldest first: number, and the step at
  // which it forked off the one before (rendezvous/lineage.h). Lines of steps that are not of this
  // history (a line without "branch" is of branch 0) move to a file of their own,
  // steps.branch-B.jsonl, so that steps.jsonl is always one history. An error leaves all as it was.
  [[nodiscard]] absl::Status Follow(const std::vector<std::pair<uint32_t, int64_t>>& forks);
  // The digest on record of a step, "" when it is not in the window.
  std::string DigestOf(int64_t step) const;

  int64_t last_step() const { return last_step_; }
  int64_t missing() const {
    return missing_;
  }  // steps between the first and the last that have no line
  int64_t lost_lines() const { return file_->lost(); }

 private:
  static constexpr size_t kWindow = 262'144;
  static constexpr size_t kHeldMax = 1024;
  static constexpr int64_t kHeldMs = 2000;
  struct Held {
    std::string digest, line;
    int64_t since_ms;
  };
  StepLog(std::string path, std::unique_ptr<LineFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}
  void ReadLines(const std::function<void(int64_t step, double loss)>& take);
  void Remember(int64_t step, const std::string& digest);
  void Write(int64_t step, const std::string& digest, const std::string& line);

  const std::string path_;
  std::unique_ptr<LineFile> file_;
  std::vector<std::pair<uint32_t, int64_t>> forks_;
  std::deque<std::pair<int64_t, uint64_t>> window_;  // step and digest, ascending
  std::map<int64_t, Held> held_;
  int64_t last_step_ = 0;
  int64_t missing_ = 0;
};

}  // namespace holdfast
