#include "runtime/supervisor/step_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/digest.h"
#include "runtime/base/status.h"

namespace holdfast {

absl::StatusOr<std::unique_ptr<StepLog>> StepLog::Open(
    const std::string& path, const std::function<void(int64_t step, double loss)>& take) {
  HF_ASSIGN_OR_RETURN(auto file, LineFile::Open(path));
  std::unique_ptr<StepLog> log(new StepLog(path, std::move(file)));
  log->ReadLines(take);
  return log;
}

void StepLog::ReadLines(const std::function<void(int64_t step, double loss)>& take) {
  window_.clear();
  last_step_ = 0;
  ForEachLine(path_, [&](std::string_view line) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return;
    const auto digest = json.find("state_digest");
    const int64_t step = json["step"];
    if (digest == json.end() || !digest->is_string() || step <= last_step_) return;
    Remember(step, *digest);
    const auto loss = json.find("loss");
    if (take && loss != json.end() && loss->is_number()) take(step, loss->get<double>());
  });
  missing_ = 0;
}

absl::Status StepLog::Follow(const std::vector<std::pair<uint32_t, int64_t>>& forks) {
  if (forks == forks_ || forks.size() < 2) return absl::OkStatus();
  const auto last_step_of = [&](uint32_t branch) {
    int64_t last = INT64_MAX;
    for (auto fork = forks.rbegin(); fork != forks.rend(); ++fork) {
      if (fork->first == branch) return last;
      last = std::min(last, fork->second);
    }
    return int64_t{-1};
  };
  std::string kept;
  std::map<uint32_t, std::vector<std::string>> left;
  ForEachLine(path_, [&](std::string_view line) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) return;
    const int64_t step = json.value("step", int64_t{-1});
    const auto branch = json.value("branch", uint32_t{0});
    if (step <= last_step_of(branch)) {
      kept += Cat(line, "\n");
    } else {
      left[branch].emplace_back(line);
    }
  });
  if (!left.empty()) {
    const std::string stem = path_.substr(0, path_.rfind(".jsonl"));
    for (const auto& [branch, lines] : left) {
      HF_ASSIGN_OR_RETURN(auto side, LineFile::Open(Cat(stem, ".branch-", branch, ".jsonl")));
      for (const std::string& line : lines) {
        if (!side->Append(line)) return absl::ResourceExhaustedError("the disk is full");
      }
    }
    HF_RETURN_IF_ERROR(WriteFileAtomically(path_, kept));
    HF_ASSIGN_OR_RETURN(file_, LineFile::Open(path_));
    held_.clear();
    ReadLines({});
  }
  forks_ = forks;
  return absl::OkStatus();
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
