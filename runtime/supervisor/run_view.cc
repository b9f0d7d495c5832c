#include "runtime/supervisor/run_view.h"

#include <cmath>

#include "runtime/base/text.h"
#include "runtime/supervisor/report.h"

namespace holdfast {
namespace {

using view::Tone;

constexpr size_t kTextMax = 300;

Tone ToneOf(const std::string& kind, LogLevel level) {
  if (level == LogLevel::kError) return Tone::kBad;
  if (level == LogLevel::kWarning) return Tone::kWarn;
  return kind == "recovered" || kind == "save" ? Tone::kGood : Tone::kQuiet;
}

}  // namespace

void RunView::OnStep(int64_t step, double loss) {
  losses_.Add(step, loss);
  if (!std::isfinite(loss) || (!recent_.empty() && step <= recent_.back().step)) return;
  recent_.push_back({step, loss});
  if (recent_.size() > kRecentPoints) recent_.pop_front();
}

void RunView::OnWorkerStep(int slot, int64_t step) {
  const auto it = workers_.find(slot);
  if (it == workers_.end()) return;
  Worker& w = it->second;
  w.step = step;
  if (stopping_) return;
  w.state = "training";
  w.tone = Tone::kGood;
}

void RunView::OnEval(int64_t step, double loss) { evals_.Add(step, loss); }

void RunView::OnSaved(int64_t step, int64_t at_ms) {
  if (step < saved_step_) return;
  saved_step_ = step;
  saved_ms_ = at_ms;
  save_failures_ = 0;
}

void RunView::CutAfter(int64_t step) {
  losses_.CutAfter(step);
  evals_.CutAfter(step);
  while (!recent_.empty() && recent_.back().step > step) recent_.pop_back();
  saved_step_ = std::min(saved_step_, step);
}

void RunView::OnWorkerEvent(Worker& w, const std::string& kind, const nlohmann::json& fields) {
  const auto set = [&w](std::string state, Tone tone) {
    w.state = std::move(state);
    w.tone = tone;
  };
  if (kind == "start") {
    set("starting", Tone::kQuiet);
    w.pid = IntegerOf(fields, "pid");
    w.rank = w.step = -1;
  } else if (kind == "joined") {
    set("joined", Tone::kQuiet);
    w.rank = IntegerOf(fields, "rank", -1);
    w.step = IntegerOf(fields, "step", -1);
    w.generation = IntegerOf(fields, "generation");
  } else if (kind == "lost") {
    set("regrouping", Tone::kWarn);
  } else if (kind == "stopped") {
    set("stopped", Tone::kBad);
  } else if (kind == "continued") {
    set("continued", Tone::kQuiet);
  } else if (kind == "death") {
    set("dead", Tone::kBad);
    ++w.deaths;
    w.pid = 0;
    w.rank = -1;
  } else if (kind == "set_aside") {
    set("set aside", Tone::kBad);
  } else if (kind == "left") {
    set("left", Tone::kWarn);
    w.pid = 0;
    w.rank = -1;
  } else if (kind == "final") {
    set(FlagOf(fields, "finished") ? "finished" : "ended", Tone::kQuiet);
    w.pid = 0;
  }
}

void RunView::OnEvent(const std::string& kind, LogLevel level, const std::string& text,
                      const nlohmann::json& fields, int64_t now_ms) {
  const int64_t slot = IntegerOf(fields, "worker", -1);
  if (slot >= 0 && (workers_.size() < kWorkersMax || workers_.count(static_cast<int>(slot)) > 0))
    OnWorkerEvent(workers_[static_cast<int>(slot)], kind, fields);
  if (kind == "drain") {
    stopping_ = true;
    for (auto& [number, w] : workers_) {
      if (w.pid > 0) w.state = "leaving";
    }
  }
  if (kind == "save" && TextOf(fields, "phase") == "failed") ++save_failures_;
  // In events.jsonl only; evaluations have their place in the curve.
  if (level == LogLevel::kDebug || kind == "eval") return;
  // What comes every few minutes shall not push out what came once: the newest stands for all.
  const bool often = level == LogLevel::kInfo && (kind == "save" || kind == "best");
  if (often) std::erase_if(events_, [&](const Past& e) { return e.kind == kind; });
  events_.push_back({now_ms, text.substr(0, text.find('\n')).substr(0, kTextMax),
                     ToneOf(kind, level), often ? kind : ""});
  if (events_.size() > kEventsMax) events_.pop_front();
}

std::map<std::string, int64_t> RunView::States() const {
  std::map<std::string, int64_t> states;
  for (const auto& [number, w] : workers_) ++states[w.state];
  return states;
}

void RunView::Fill(int64_t now_ms, view::Snapshot* out) const {
  out->up_s = (now_ms - started_ms_) / 1000;
  out->losses = losses_.Points();
  out->recent.assign(recent_.begin(), recent_.end());
  out->evals = evals_.Points();
  out->saved_step = saved_step_;
  out->saved_age_s = saved_step_ < 0 ? -1 : std::max<int64_t>(0, now_ms - saved_ms_) / 1000;
  out->save_failures = save_failures_;
  bool training = false, regrouping = false;
  for (const auto& [number, w] : workers_) {
    view::WorkerLine line;
    line.slot = number;
    line.rank = w.rank;
    line.pid = w.pid;
    line.step = w.step;
    line.generation = w.generation;
    line.deaths = w.deaths;
    line.machine = out->machine;
    line.state = w.state;
    line.tone = w.tone;
    out->workers.push_back(std::move(line));
    training |= w.state == "training";
    regrouping |= w.state == "regrouping" || (w.deaths > 0 && w.state == "joined");
  }
  for (const Past& e : events_)
    out->events.push_back({std::max<int64_t>(0, now_ms - e.at_ms) / 1000, e.text, e.tone});
  if (out->ended) return;
  out->phase = stopping_    ? "stopping"
               : regrouping ? "regrouping"
               : training   ? "training"
                            : "starting";
  out->tone = stopping_ || regrouping ? Tone::kWarn : training ? Tone::kGood : Tone::kQuiet;
}

}  // namespace holdfast
