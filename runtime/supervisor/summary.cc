// summary.json: what became of the run, written when the supervisor ends.
#include <algorithm>
#include <cmath>

#include "runtime/base/clock.h"
#include "runtime/supervisor/report.h"

namespace holdfast {
namespace {

constexpr const char* kBuckets[] = {"compute", "reduce", "wait", "checkpoint", "lost"};

Json Finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// Means over the workers that ended in order; a killed one takes its times with it.
Json MeanTimes(const std::vector<Json>& finals, double* efficiency) {
  Json mean = Json::object();
  double count = 0, efficiency_sum = 0;
  for (const char* bucket : kBuckets) mean[bucket] = 0.0;
  for (const Json& final : finals) {
    const auto time = final.find("time");
    const double wall_s = NumberOf(final, "wall_s");
    if (time == final.end() || !time->is_object() || !(wall_s > 0)) continue;
    ++count;
    for (const char* bucket : kBuckets)
      mean[bucket] = mean[bucket].get<double>() + NumberOf(*time, bucket);
    efficiency_sum += NumberOf(*time, "compute") / wall_s;
  }
  if (count == 0) {
    *efficiency = NAN;
    return mean;
  }
  for (const char* bucket : kBuckets) mean[bucket] = mean[bucket].get<double>() / count;
  *efficiency = efficiency_sum / count;
  return mean;
}

}  // namespace

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
  const Json time = MeanTimes(finals_, &efficiency);
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
          {"saved_step", live_.saved_step},
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
          {"lost_log_lines", events_->lost() + steps_->lost_lines() + console_->dropped()}};
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
