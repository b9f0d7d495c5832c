#include "runtime/supervisor/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/view/text.h"

namespace holdfast {
namespace {

using view::Fixed;
using view::ShortNumber;
using view::ShortTime;

constexpr size_t kFinalsMax = 4096;

// JSON has no NaN: null says that there is no number.
Json Finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false,
                   Json::error_handler_t::replace);  // texts of others may not be UTF-8
}

}  // namespace

int64_t IntegerOf(const Json& json, const char* key, int64_t otherwise) {
  const auto it = json.find(key);
  return it != json.end() && it->is_number_integer() ? it->get<int64_t>() : otherwise;
}

double NumberOf(const Json& json, const char* key, double otherwise) {
  const auto it = json.find(key);
  return it != json.end() && it->is_number() ? it->get<double>() : otherwise;
}

std::string TextOf(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_string() ? it->get<std::string>() : "";
}

bool FlagOf(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_boolean() && it->get<bool>();
}

Report::Report(std::string dir, const Config& config, const std::string& machine, Console* console)
    : dir_(std::move(dir)),
      config_(config),
      console_(console),
      view_(BootMs()),
      started_ms_(BootMs()) {
  live_.run = config.run;
  live_.machine = machine;
  live_.steps = config.steps;
}

absl::StatusOr<std::unique_ptr<Report>> Report::Open(const std::string& dir, const Config& config,
                                                     const std::string& machine, Console* console) {
  std::unique_ptr<Report> report(new Report(dir, config, machine, console));
  LoadEvents(dir, BootMs(), &report->view_);
  HF_ASSIGN_OR_RETURN(report->events_, LineFile::Open(Cat(dir, "/events.jsonl")));
  HF_ASSIGN_OR_RETURN(report->steps_,
                      StepLog::Open(Cat(dir, "/steps.jsonl"), [&](int64_t step, double loss) {
                        report->view_.OnStep(step, loss);
                        report->live_.loss = loss;
                      }));
  HF_ASSIGN_OR_RETURN(report->metrics_, MetricsLog::Open(dir, config.tensorboard == "on",
                                                         [&](int64_t step, double eval_loss) {
                                                           report->view_.OnEval(step, eval_loss);
                                                           report->live_.eval_step = step;
                                                           report->live_.eval_loss = eval_loss;
                                                         }));
  report->live_.step = report->steps_->last_step();
  if (report->events_->cut_bytes() > 0) {
    report->Event("notice", LogLevel::kInfo,
                  "events.jsonl ended in a torn line, as a killed writer leaves it; it was cut");
  }
  return report;
}

void Report::Event(const std::string& kind, LogLevel level, const std::string& text, Json fields) {
  Json json = {{"time", WallTimeText()}, {"ms", BootMs()}, {"event", kind}, {"text", text}};
  json.update(fields);
  events_->Append(Dump(json));
  console_->Log(level, text);
  view_.OnEvent(kind, level, text, json, BootMs());
}

void Report::OnMessage(int slot, const Json& m) {
  const std::string type = TextOf(m, "type");
  if (type == "joined") return OnJoined(slot, m);
  if (type == "lost") return OnLost(slot, m);
  if (type == "first_step") return OnFirstStep(m);
  if (type == "step") return OnStep(slot, m);
  if (type == "eval") return OnEval(m);
  if (type == "save") return OnSave(slot, m);
  if (type == "final") return OnFinal(slot, m);
  if (type != "event") return;
  const std::string kind = TextOf(m, "kind");
  const LogLevel level = kind == "corrupt" ? LogLevel::kError
                         : kind == "notice" || kind == "branch" || kind == "best"
                             ? LogLevel::kInfo
                             : LogLevel::kWarning;
  Event(kind.empty() ? "notice" : kind, level, Cat("worker ", slot, ": ", TextOf(m, "text")),
        {{"worker", slot}, {"step", IntegerOf(m, "step", -1)}});
}

void Report::OnJoined(int slot, const Json& m) {
  const int64_t generation = IntegerOf(m, "generation"), step = IntegerOf(m, "step");
  const int world_size = static_cast<int>(IntegerOf(m, "world_size"));
  recoveries_.Joined(generation, IntegerOf(m, "ms", BootMs()));
  const bool newest = generation > generations_;
  generations_ = std::max(generations_, generation);
  live_.generation = generations_;
  live_.world_size = world_size;
  if (newest) {
    // Restored behind what was committed: those steps are computed again.
    if (step < live_.step && restored_generation_ < generation) steps_lost_ += live_.step - step;
    restored_generation_ = generation;
    FollowBranches(m);
    steps_->StartAfter(step);
    live_.step = step;
    last_step_ms_ = -1;
  }
  const std::string note = TextOf(m, "note"), carrier = TextOf(m, "carrier");
  const std::string over = carrier.empty() || carrier == "local" ? "" : Cat(", over ", carrier);
  Event("joined", newest ? LogLevel::kInfo : LogLevel::kDebug,
        Cat("worker ", slot, " joined generation ", generation, " as rank ", IntegerOf(m, "rank"),
            " of ", world_size, " at step ", step, ", state from ", TextOf(m, "source"), over,
            note.empty() ? "" : ": ", note),
        {{"worker", slot},
         {"generation", generation},
         {"world_size", world_size},
         {"rank", IntegerOf(m, "rank")},
         {"step", step},
         {"source", TextOf(m, "source")},
         {"carrier", carrier},
         {"note", note},
         {"at_ms", IntegerOf(m, "ms")}});
}

// Steps of a history that was left behind leave steps.jsonl.
void Report::FollowBranches(const Json& joined) {
  std::vector<std::pair<uint32_t, int64_t>> forks;
  const auto it = joined.find("forks");
  if (it == joined.end() || !it->is_array()) return;
  for (const Json& fork : *it) {
    if (!fork.is_array() || fork.size() != 2 || !fork[0].is_number_unsigned() ||
        !fork[1].is_number_integer())
      return;
    forks.emplace_back(fork[0].get<uint32_t>(), fork[1].get<int64_t>());
  }
  const absl::Status followed = steps_->Follow(forks);
  if (!followed.ok()) {
    Event("notice", LogLevel::kWarning,
          Cat("steps.jsonl still holds steps of a history that was left behind: ",
              StdView(followed.message())));
    return;
  }
  if (forks.size() < 2) return;
  const int64_t last = steps_->last_step();
  const absl::Status cut = metrics_->CutAfter(last);
  if (!cut.ok()) {
    Event("notice", LogLevel::kWarning,
          Cat("metrics.csv still holds steps of a history that was left behind: ",
              StdView(cut.message())));
  }
  view_.CutAfter(last);
  if (live_.eval_step > last) {
    live_.eval_step = -1;
    live_.eval_loss = NAN;
  }
}

void Report::OnLost(int slot, const Json& m) {
  const int64_t generation = IntegerOf(m, "generation");
  const std::string cause = TextOf(m, "cause");
  recoveries_.Lost(generation, cause, IntegerOf(m, "ms", BootMs()));
  // For the log the workers say it themselves.
  Event("lost", LogLevel::kDebug,
        Cat("worker ", slot, ": generation ", generation, " is lost after step ",
            IntegerOf(m, "step"), ": ", cause),
        {{"worker", slot},
         {"generation", generation},
         {"step", IntegerOf(m, "step")},
         {"cause", cause},
         {"at_ms", IntegerOf(m, "ms")}});
}

void Report::OnFirstStep(const Json& m) {
  const auto done = recoveries_.FirstStep(IntegerOf(m, "generation"), IntegerOf(m, "ms", BootMs()));
  if (!done) return;
  ++counters_.recoveries;
  counters_.recovery_s += static_cast<double>(done->total_ms()) / 1000;
  live_.recovery_ms = done->total_ms();
  Event("recovered", LogLevel::kInfo,
        Cat("recovered in ", done->total_ms(), " ms (detect ", done->detect_ms, ", regroup ",
            done->regroup_ms, ", first step ", done->first_step_ms, "): ", done->cause),
        {{"generation", IntegerOf(m, "generation")},
         {"lost_generation", done->generation},
         {"cause", done->cause},
         {"detect_ms", done->detect_ms},
         {"regroup_ms", done->regroup_ms},
         {"first_step_ms", done->first_step_ms}});
}

void Report::OnStep(int slot, const Json& m) {
  if (const auto time = m.find("time"); time != m.end()) times_[slot].current = *time;
  const int64_t step = IntegerOf(m, "step", -1);
  const std::string digest = TextOf(m, "digest");
  if (step < 0 || digest.empty()) return;
  view_.OnWorkerStep(slot, step);
  Json line = {{"step", step},
               {"loss", Finite(NumberOf(m, "loss", NAN))},
               {"state_digest", digest},
               {"world_size", IntegerOf(m, "world_size")},
               {"generation", IntegerOf(m, "generation")},
               {"samples", TextOf(m, "samples")}};
  if (IntegerOf(m, "branch") > 0) line["branch"] = IntegerOf(m, "branch");
  const int64_t now_ms = BootMs();
  if (steps_->Add(step, digest, Dump(line), now_ms) == StepLog::Outcome::kDiffers &&
      corrupt_.empty()) {
    corrupt_ = Cat("step ", step, " was reported with the state digest ", digest, ", but ",
                   steps_->DigestOf(step),
                   " is on record for it: the same step must always give the same bits");
    Event("corrupt", LogLevel::kError, corrupt_,
          {{"step", step}, {"digest", digest}, {"on_record", steps_->DigestOf(step)}});
    return;
  }
  if (step <= live_.step) return;  // another worker was first
  live_.step = step;
  ++steps_done_;
  tokens_done_ += IntegerOf(m, "tokens");
  train_loss_ = NumberOf(m, "loss", NAN);
  final_digest_ = digest;
  live_.loss = train_loss_;
  view_.OnStep(step, train_loss_);
  Pace(m, now_ms);
  Record(m);
  if (step % config_.log_every == 0 || step == config_.steps) LogStep(m);
}

void Report::LogStep(const Json& m) {
  if (console_->live()) return;
  char rate[32];
  std::snprintf(rate, sizeof rate, "%.3e", NumberOf(m, "learning_rate"));
  console_->Line(
      Cat("step ", live_.step, "/", config_.steps, "  loss ", Fixed(train_loss_, 4), "  lr ", rate,
          "  gradient norm ", Fixed(live_.gradient_norm, 3), "  ", ShortNumber(live_.tokens_per_s),
          " tokens/s  ", view::WithUnit(live_.flops_per_s, "FLOP/s"), "  ", live_.world_size,
          live_.world_size == 1 ? " worker" : " workers", "  generation ", live_.generation, "  ",
          ShortTime(live_.seconds_left), " left", FlagOf(m, "skipped") ? "  (skipped)" : ""));
}

void Report::OnEval(const Json& m) {
  const int64_t step = IntegerOf(m, "step");
  if (step <= eval_step_) return;
  eval_step_ = step;
  eval_loss_ = NumberOf(m, "loss", NAN);
  live_.eval_step = step;
  live_.eval_loss = *eval_loss_;
  view_.OnEval(step, *eval_loss_);
  Event("eval", LogLevel::kInfo,
        Cat("held-out loss after step ", step, ": ", Fixed(*eval_loss_, 4)),
        {{"step", step}, {"loss", Finite(*eval_loss_)}, {"items", IntegerOf(m, "items")}});
}

void Report::OnSave(int slot, const Json& m) {
  const std::string phase = TextOf(m, "phase");
  const int64_t step = IntegerOf(m, "step");
  Json fields = m;
  fields.erase("type");
  fields.erase("text");  // told in the event's own text
  fields["worker"] = slot;
  if (phase == "saved") {
    counters_.checkpoint_stall_s += NumberOf(m, "stall_ms") / 1000;
    counters_.checkpoint_bytes += IntegerOf(m, "bytes");
  }
  if (phase == "failed") {
    ++counters_.checkpoint_failures;
    Event("save", LogLevel::kWarning,
          Cat("worker ", slot, ": saving step ", step, " failed: ", TextOf(m, "text")), fields);
    return;
  }
  // Every worker says so: the first counts, the others are in events.jsonl.
  const bool first = phase == "saved" && step > saved_reported_;
  if (first) {
    saved_reported_ = step;
    ++counters_.checkpoints;
    view_.OnSaved(step, BootMs());
  }
  Event("save", first ? LogLevel::kInfo : LogLevel::kDebug,
        phase == "saved"
            ? Cat("saved step ", step, IntegerOf(m, "copies") == 1 ? " (one copy)" : "")
            : Cat("worker ", slot, ": ", phase, " saving step ", step),
        fields);
}

void Report::OnFinal(int slot, const Json& m) {
  if (finals_.size() < kFinalsMax) finals_.push_back(m);
  if (const auto time = m.find("time"); time != m.end()) CloseTime(slot, *time, false);
  if (FlagOf(m, "finished")) {
    finished_ = true;
    if (!TextOf(m, "digest").empty()) final_digest_ = TextOf(m, "digest");
    live_.step = std::max(live_.step, IntegerOf(m, "step"));
  }
  const std::string text = TextOf(m, "text");
  Event("final", LogLevel::kDebug, Cat("worker ", slot, " ended: ", text),
        {{"worker", slot},
         {"exit", IntegerOf(m, "exit")},
         {"step", IntegerOf(m, "step")},
         {"finished", FlagOf(m, "finished")}});
}

void Report::OnFault(int slot, int64_t generation, const std::string& cause, int64_t ms,
                     const Json& details) {
  CloseTime(slot, times_[slot].current, true);
  ++workers_lost_;
  ++counters_.workers_lost;
  if (generation > 0) recoveries_.Fault(generation, cause, ms);
  Json fields = details;
  fields.update({{"worker", slot}, {"generation", generation}, {"at_ms", ms}});
  Event("death", LogLevel::kError, cause, fields);
}

void Report::Tick(int64_t now_ms) {
  steps_->Flush(now_ms, false);
  if (console_->live()) console_->Draw(Snapshot(now_ms));
}

}  // namespace holdfast
