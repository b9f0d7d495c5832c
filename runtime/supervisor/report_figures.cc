// The books' figures: rates, the rows of metrics.csv, the snapshot behind the view, the counters.
#include <algorithm>
#include <cmath>

#include "runtime/base/clock.h"
#include "runtime/supervisor/report.h"

namespace holdfast {
namespace {

// Weights of the newest step in the moving means: of the rates, and of the time left (which shall
// not jump at every evaluation and save, but holds them in).
constexpr double kRateWeight = 0.1, kEtaWeight = 0.01;

}  // namespace

// Rates as moving means over steps, from the moment at which each became known here.
void Report::Pace(const Json& m, int64_t now_ms) {
  // The first step of a generation has no predecessor to count from: its own length is reported.
  const double seconds =
      (last_step_ms_ >= 0 ? static_cast<double>(now_ms - last_step_ms_) : NumberOf(m, "step_ms")) /
      1000;
  last_step_ms_ = step_seen_ms_ = now_ms;
  ++paced_steps_;
  const double newest = 1.0 / static_cast<double>(paced_steps_);
  live_.step_s += std::max(newest, kRateWeight) * (seconds - live_.step_s);
  eta_step_s_ += std::max(newest, kEtaWeight) * (seconds - eta_step_s_);
  const double tokens = NumberOf(m, "tokens"), flops = NumberOf(m, "flops");
  live_.tokens_per_s = live_.step_s > 0 ? tokens / live_.step_s : 0;
  live_.flops_per_s = live_.step_s > 0 ? flops / live_.step_s : 0;
  live_.gradient_norm = NumberOf(m, "gradient_norm", NAN);
  live_.learning_rate = NumberOf(m, "learning_rate", NAN);
  const double left = eta_step_s_ * static_cast<double>(config_.steps - live_.step);
  live_.seconds_left = eta_step_s_ > 0 && left < 1e15 ? static_cast<int64_t>(std::ceil(left)) : -1;
  ++counters_.steps;
  counters_.tokens += static_cast<int64_t>(tokens);
  counters_.flops += flops;
  if (FlagOf(m, "skipped")) ++counters_.skipped;
}

// A row for each logged and each evaluated step; evaluations come before the step's own report.
void Report::Record(const Json& m) {
  const int64_t step = live_.step;
  const bool evaluated = eval_step_ == step, last = step == config_.steps;
  const bool logged = step % config_.log_every == 0 && metrics::KeepsRow(step / config_.log_every);
  const bool kept =
      evaluated && (config_.eval_every == 0 || metrics::KeepsRow(step / config_.eval_every));
  if (!logged && !kept && !last) return;
  metrics::Row row;
  row.step = step;
  row.wall_s = metrics::WallSeconds();
  row.loss = train_loss_;
  if (evaluated) row.eval_loss = *eval_loss_;
  row.gradient_norm = live_.gradient_norm;
  row.learning_rate = live_.learning_rate;
  row.tokens = IntegerOf(m, "tokens");
  row.tokens_per_s = live_.tokens_per_s;
  row.flops_per_s = live_.flops_per_s;
  row.step_s = live_.step_s;
  row.world_size = IntegerOf(m, "world_size");
  row.generation = IntegerOf(m, "generation");
  row.saved_step = view_.saved_step();
  row.skipped = FlagOf(m, "skipped");
  metrics_->Append(row);
  if (const std::string warning = metrics_->TakeWarning(); !warning.empty())
    Event("notice", LogLevel::kWarning, warning);
}

void Report::Ended(ExitCode code, const std::string& text) {
  live_.ended = true;
  live_.phase = ExitCodeText(code);
  live_.end_text = text;
  live_.tone =
      code == ExitCode::kOk ? view::Tone::kGood
      : code == ExitCode::kInterrupted || code == ExitCode::kStopped || code == ExitCode::kLeft
          ? view::Tone::kWarn
          : view::Tone::kBad;
}

view::Snapshot Report::Snapshot(int64_t now_ms) const {
  view::Snapshot s = live_;
  s.step_age_s = step_seen_ms_ < 0 ? -1 : (now_ms - step_seen_ms_) / 1000;
  s.workers_lost = workers_lost_;
  s.recoveries = counters_.recoveries;
  s.steps_lost = steps_lost_;
  double efficiency = 0;
  const Json time = MeanTimes(static_cast<double>(now_ms - started_ms_) / 1000, &efficiency);
  for (size_t i = 0; i < s.time_s.size(); ++i) s.time_s[i] = NumberOf(time, view::kActivities[i]);
  view_.Fill(now_ms, &s);
  return s;
}

std::string Report::Metrics(const view::Snapshot& snapshot) {
  std::array<double, view::kActivities.size()> sum = {};
  for (const auto& [slot, t] : times_) {
    for (size_t i = 0; i < sum.size(); ++i) {
      const auto ended = t.ended.find(view::kActivities[i]);
      if (ended != t.ended.end()) sum[i] += ended->second;
      if (t.current.is_object()) sum[i] += NumberOf(t.current, view::kActivities[i]);
    }
  }
  // A worker may book time anew, as lost: a counter never falls for that.
  for (size_t i = 0; i < sum.size(); ++i)
    counters_.worker_s[i] = std::max(counters_.worker_s[i], sum[i]);
  return MetricsPage(snapshot, counters_, view_.States());
}

}  // namespace holdfast
