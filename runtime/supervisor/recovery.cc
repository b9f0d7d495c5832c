#include "runtime/supervisor/recovery.h"

#include <algorithm>

#include "runtime/base/text.h"

namespace holdfast {

void RecoveryTracker::Fault(int64_t generation, const std::string& cause, int64_t ms) {
  if (generation < closed_generation_) return;
  if (open_) {
    // Survivors see a closed socket before the supervisor reaps: the child's death is the cause,
    // theirs the consequence.
    if (open_->further == 0 && ms - open_->recovery.at_ms < 200 && open_->joined_ms < 0) {
      open_->recovery.cause = cause;
      open_->recovery.at_ms = std::min(open_->recovery.at_ms, ms);
    }
    ++open_->further;
    return;
  }
  open_.emplace();
  open_->recovery.cause = cause;
  open_->recovery.generation = generation;
  open_->recovery.at_ms = ms;
  open_->further = 1;
}

void RecoveryTracker::Lost(int64_t generation, const std::string& cause, int64_t ms) {
  if (generation < closed_generation_) return;
  if (!open_) {
    open_.emplace();
    open_->recovery.cause = cause;
    open_->recovery.generation = generation;
    open_->recovery.at_ms = ms;
  }
  if (open_->lost_ms < 0) open_->lost_ms = ms;
  open_->recovery.generation = std::max(open_->recovery.generation, generation);
}

void RecoveryTracker::Joined(int64_t generation, int64_t ms) {
  if (open_ && generation > open_->recovery.generation)
    open_->joined_ms = std::max(open_->joined_ms, ms);
}

std::optional<Recovery> RecoveryTracker::FirstStep(int64_t generation, int64_t ms) {
  if (!open_ || generation <= open_->recovery.generation) return std::nullopt;
  Recovery recovery = open_->recovery;
  const int64_t start = recovery.at_ms;
  const int64_t lost = std::max(start, open_->lost_ms);
  const int64_t joined = std::min(std::max(lost, open_->joined_ms), std::max(lost, ms));
  recovery.detect_ms = lost - start;
  recovery.regroup_ms = joined - lost;
  recovery.first_step_ms = std::max<int64_t>(0, ms - joined);
  if (open_->further > 1) recovery.cause += Cat(" (+", open_->further - 1, ")");
  open_.reset();
  closed_generation_ = generation;
  if (done_.size() == kMax) done_.erase(done_.begin());
  done_.push_back(recovery);
  return recovery;
}

}  // namespace holdfast
