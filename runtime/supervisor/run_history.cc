// The earlier lives of a run, from its files: steps.jsonl, events.jsonl, metrics.csv, config.toml,
// summary.json. What cannot be read is left out.
#include <time.h>

#include <cmath>
#include <cstdio>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/config/config.h"
#include "runtime/metrics/row.h"
#include "runtime/supervisor/line_file.h"
#include "runtime/supervisor/report.h"
#include "runtime/supervisor/run_dir.h"
#include "runtime/supervisor/run_view.h"

namespace holdfast {
namespace {

// The age in ms of a wall-clock stamp "2026-12-01T04:30:12.345Z", by the wall clock of now; for
// people only. -1: none.
int64_t AgeMs(const std::string& stamp, double now_s) {
  tm parts = {};
  double seconds = 0;
  if (std::sscanf(stamp.c_str(), "%4d-%2d-%2dT%2d:%2d:%lfZ", &parts.tm_year, &parts.tm_mon,
                  &parts.tm_mday, &parts.tm_hour, &parts.tm_min, &seconds) != 6)
    return -1;
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  const double at_s = static_cast<double>(timegm(&parts)) + seconds;
  return at_s > now_s ? 0 : static_cast<int64_t>((now_s - at_s) * 1000);
}

LogLevel LevelOf(const std::string& kind) {
  if (kind == "death" || kind == "corrupt") return LogLevel::kError;
  if (kind == "skip" || kind == "recheck" || kind == "stopped") return LogLevel::kWarning;
  if (kind == "start" || kind == "lost" || kind == "final" || kind == "end")
    return LogLevel::kDebug;
  return LogLevel::kInfo;
}

// What the workers said as a group is in events.jsonl once for each of them.
class EventReader {
 public:
  EventReader(int64_t now_ms, RunView* view) : now_ms_(now_ms), view_(view) {}
  void Take(std::string_view line) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) return;
    const std::string kind = TextOf(json, "event"), text = TextOf(json, "text");
    const int64_t step = IntegerOf(json, "step", -1);
    const int64_t age_ms = AgeMs(TextOf(json, "time"), now_s_);
    const int64_t at_ms = now_ms_ - std::max<int64_t>(0, age_ms);
    LogLevel level = LevelOf(kind);
    if (kind == "save") {
      const std::string phase = TextOf(json, "phase");
      if (phase == "failed") {
        level = LogLevel::kWarning;
      } else if (phase != "saved" || step <= view_->saved_step()) {
        level = LogLevel::kDebug;
      } else {
        view_->OnSaved(step, at_ms);
      }
    }
    const int64_t generation = IntegerOf(json, "generation");
    if (kind == "joined") {
      if (generation <= generation_) level = LogLevel::kDebug;
      generation_ = std::max(generation_, generation);
    }
    // Their processes have ended: no worker, only the event.
    view_->OnEvent(kind == "drain" ? "past" : kind, level, text, Json::object(), at_ms);
  }

 private:
  const int64_t now_ms_;
  const double now_s_ = metrics::WallSeconds();
  RunView* const view_;
  int64_t generation_ = 0;
};

void Rows(const std::string& dir, RunView* view, view::Snapshot* s) {
  std::string last;
  ForEachLine(Cat(dir, "/metrics.csv"), [&](std::string_view line) {
    const double eval_loss = metrics::CsvField(line, "eval_loss");
    if (!std::isnan(eval_loss)) view->OnEval(metrics::CsvStep(line), eval_loss);
    last = line;
  });
  for (const auto& [name, target] :
       {std::pair("gradient_norm", &s->gradient_norm),
        std::pair("learning_rate", &s->learning_rate), std::pair("tokens_per_s", &s->tokens_per_s),
        std::pair("flops_per_s", &s->flops_per_s), std::pair("step_s", &s->step_s)}) {
    if (const double value = metrics::CsvField(last, name); std::isfinite(value)) *target = value;
  }
}

}  // namespace

void LoadEvents(const std::string& dir, int64_t now_ms, RunView* view) {
  EventReader reader(now_ms, view);
  ForEachLine(Cat(dir, "/events.jsonl"), [&](std::string_view line) { reader.Take(line); });
}

absl::StatusOr<view::Snapshot> SnapshotFromFiles(const std::string& dir) {
  const auto text = ReadSmallFile(Cat(dir, "/config.toml"));
  if (!text.ok()) return absl::NotFoundError(Cat(dir, " holds no run (no config.toml)"));
  view::Snapshot s;
  if (const auto config = ConfigFromToml(*text, "config.toml"); config.ok()) {
    s.run = config->run;
    s.steps = config->steps;
  }
  const int64_t now_ms = BootMs();
  RunView view(now_ms);
  LoadEvents(dir, now_ms, &view);
  ForEachLine(Cat(dir, "/steps.jsonl"), [&](std::string_view line) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) return;
    view.OnStep(IntegerOf(json, "step", -1), NumberOf(json, "loss", NAN));
    s.world_size = IntegerOf(json, "world_size");
    s.generation = IntegerOf(json, "generation");
  });
  s.ended = true;
  s.phase = "not running";
  Rows(dir, &view, &s);
  view.Fill(now_ms, &s);
  const RecordedRun record = ReadRecord(dir);
  s.step = record.last_step;
  if (!s.recent.empty()) s.loss = s.recent.back().value;
  if (!s.evals.empty()) {
    s.eval_loss = s.evals.back().value;
    s.eval_step = s.evals.back().step;
  }
  const Json summary = Json::parse(record.summary_json, nullptr, false);
  if (!summary.is_object()) {
    s.tone = view::Tone::kBad;
    s.end_text =
        "its last supervisor ended without a summary (it was killed); the same command resumes the "
        "run";
    return s;
  }
  s.step = std::max(s.step, record.final_step);
  s.phase = record.finished ? "finished" : "not running";
  s.tone = record.finished ? view::Tone::kGood : view::Tone::kWarn;
  s.end_text = Cat("last end: ", TextOf(summary, "exit_text"), ": ", TextOf(summary, "text"));
  s.workers_lost = IntegerOf(summary, "workers_lost");
  s.generation = IntegerOf(summary, "generations");
  if (const auto time = summary.find("time"); time != summary.end() && time->is_object()) {
    for (size_t i = 0; i < s.time_s.size(); ++i)
      s.time_s[i] = NumberOf(*time, view::kActivities[i]);
  }
  return s;
}

}  // namespace holdfast
