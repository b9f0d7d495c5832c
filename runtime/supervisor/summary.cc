// summary.json: what became of the run, written when the supervisor ends.
#include <algorithm>
#include <cmath>

#include "runtime/base/clock.h"
#include "runtime/supervisor/report.h"

namespace holdfast {
namespace {

constexpr const char* kBuckets[] = {"compute", "reduce", "wait", "checkpoint", "lost"};

Json Finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

}  // namespace

void Report::CloseTime(int slot, Json time, bool died) {
  SlotTime& t = times_[slot];
  t.died |= died;
  t.current = Json();
  if (!time.is_object()) return;
  for (const char* bucket : kBuckets) t.ended[bucket] += NumberOf(time, bucket);
}

// Means over the slots. What no process of a slot accounts for (before its start, after its end,
// between two) was waiting, or was lost where one died.
Json Report::MeanTimes(double wall_s, double* efficiency) const {
  std::map<std::string, double> sum;
  for (const char* bucket : kBuckets) sum[bucket] = 0;
  for (const auto& [slot, t] : times_) {
    double known = 0;
    for (const char* bucket : kBuckets) {
      const auto ended = t.ended.find(bucket);
      double seconds = ended == t.ended.end() ? 0 : ended->second;
      if (t.current.is_object()) seconds += NumberOf(t.current, bucket);
      sum[bucket] += seconds;
      known += seconds;
    }
    sum[t.died ? "lost" : "wait"] += std::max(0.0, wall_s - known);
  }
  const double slots = static_cast<double>(times_.size());
  Json mean = Json::object();
  for (const char* bucket : kBuckets) mean[bucket] = slots > 0 ? sum[bucket] / slots : 0.0;
  *efficiency = slots > 0 && wall_s > 0 ? sum["compute"] / slots / wall_s : NAN;
  return mean;
}

Json Report::SummaryJson(ExitCode code, const std::string& text) const {
  const double wall_s = static_cast<double>(BootMs() - started_ms_) / 1000;
  Json recoveries = Json::array();
  for (const Recovery& r : recoveries_.done()) {
    recoveries.push_back({{"cause", r.cause},
                          {"generation", r.generation},
                          {"detect_ms", r.detect_ms},
                          {"regroup_ms", r.regroup_ms},
                          {"first_step_ms", r.first_step_ms},
                          {"total_ms", r.total_ms()}});
  }
  double efficiency = NAN, train_loss = steps_done_ > 0 ? train_loss_ : NAN;
  std::optional<double> eval_loss = eval_loss_;
  int64_t steps_lost = steps_lost_;
  const Json time = MeanTimes(wall_s, &efficiency);
  for (const Json& final : finals_) {
    steps_lost = std::max(steps_lost, IntegerOf(final, "steps_lost"));
    if (steps_done_ == 0) train_loss = NumberOf(final, "train_loss", train_loss);
    const auto it = final.find("eval_loss");
    if (!eval_loss && it != final.end() && it->is_number()) eval_loss = it->get<double>();
  }
  return {{"run", config_.run},
          {"exit", static_cast<int>(code)},
          {"exit_text", ExitCodeText(code)},
          {"text", text},
          {"finished", finished_ && code == ExitCode::kOk},
          {"steps", config_.steps},
          {"final_step", live_.step},
          {"state_digest", final_digest_.empty() ? steps_->DigestOf(live_.step) : final_digest_},
          {"train_loss", Finite(train_loss)},
          {"eval_loss", eval_loss ? Finite(*eval_loss) : Json(nullptr)},
          {"saved_step", saved_reported_},
          {"generations", generations_},
          {"workers_lost", workers_lost_},
          {"steps_lost", steps_lost},
          {"wall_s", wall_s},
          {"steps_done", steps_done_},
          {"tokens_per_s", wall_s > 0 ? static_cast<double>(tokens_done_) / wall_s : 0.0},
          {"recoveries", recoveries},
          {"time", time},
          {"parallel_efficiency", Finite(efficiency)},
          {"missing_step_lines", steps_->missing()},
          {"lost_log_lines",
           events_->lost() + steps_->lost_lines() + metrics_->lost_rows() + console_->dropped()}};
}

void Report::WriteSummary(ExitCode code, const std::string& text) {
  steps_->Flush(BootMs(), true);
  const Json summary = SummaryJson(code, text);
  const absl::Status status =
      WriteFileAtomically(Cat(dir_, "/summary.json"),
                          Cat(summary.dump(2, ' ', false, Json::error_handler_t::replace), "\n"));
  if (!status.ok())
    console_->Log(LogLevel::kError, Cat("summary.json: ", StdView(status.message())));
}

}  // namespace holdfast
