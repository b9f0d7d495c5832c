#include "runtime/supervisor/step_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/digest.h"
#include "runtime/base/status.h"

namespace holdfast {

absl::StatusOr<std::unique_ptr<StepLog>> StepLog::Open(const std::string& path) {
  HF_ASSIGN_OR_RETURN(auto file, LineFile::Open(path));
  std::unique_ptr<StepLog> log(new StepLog(std::move(file)));
  ForEachLine(path, [&](std::string_view line) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return;
    const auto digest = json.find("state_digest");
    const int64_t step = json["step"];
    if (digest == json.end() || !digest->is_string() || step <= log->last_step_) return;
    log->Remember(step, *digest);
  });
  log->missing_ = 0;
  return log;
}

void StepLog::Remember(int64_t step, const std::string& digest) {
  uint64_t value = 0;
  if (!ParseHex64(digest, &value)) value = Hash64(digest);
  missing_ += step - last_step_ - 1;
  last_step_ = step;
  window_.emplace_back(step, value);
  if (window_.size() > kWindow) window_.pop_front();
}

void StepLog::Write(int64_t step, const std::string& digest, const std::string& line) {
  file_->Append(line);
  Remember(step, digest);
}

std::string StepLog::DigestOf(int64_t step) const {
  const auto it =
      std::lower_bound(window_.begin(), window_.end(), std::pair<int64_t, uint64_t>(step, 0));
  return it == window_.end() || it->first != step ? "" : Hex64(it->second);
}

StepLog::Outcome StepLog::Add(int64_t step, const std::string& digest, std::string line,
                              int64_t now_ms) {
  uint64_t value = 0;
  const std::string known = DigestOf(step);
  if (!known.empty()) {
    return known == (ParseHex64(digest, &value) ? digest : Hex64(Hash64(digest)))
               ? Outcome::kKnown
               : Outcome::kDiffers;
  }
  if (step <= last_step_) return Outcome::kKnown;  // older than the window
  if (const auto it = held_.find(step); it != held_.end()) {
    return it->second.digest == digest ? Outcome::kKnown : Outcome::kDiffers;
  }
  if (step > last_step_ + 1) {
    held_.emplace(step, Held{digest, std::move(line), now_ms});
    if (held_.size() > kHeldMax) Flush(now_ms, true);
    return Outcome::kHeld;
  }
  Write(step, digest, line);
  Flush(now_ms, false);
  return Outcome::kWritten;
}

void StepLog::Flush(int64_t now_ms, bool all) {
  while (!held_.empty()) {
    const auto it = held_.begin();
    const bool next = it->first == last_step_ + 1;
    if (!next && !all && now_ms - it->second.since_ms < kHeldMs) return;
    if (it->first > last_step_) Write(it->first, it->second.digest, it->second.line);
    held_.erase(it);
  }
}

}  // namespace holdfast
