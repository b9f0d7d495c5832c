// The books of a run on this machine: takes what the workers report, writes events.jsonl,
// steps.jsonl, metrics.csv, the event files for TensorBoard and summary.json, and feeds the
// console. It decides nothing about processes. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/exit_code.h"
#include "runtime/config/config.h"
#include "runtime/supervisor/console.h"
#include "runtime/supervisor/line_file.h"
#include "runtime/supervisor/metrics_log.h"
#include "runtime/supervisor/metrics_page.h"
#include "runtime/supervisor/recovery.h"
#include "runtime/supervisor/run_view.h"
#include "runtime/supervisor/step_log.h"

namespace holdfast {

using Json = nlohmann::json;

// Fields of messages, safe against missing keys and other types.
int64_t IntegerOf(const Json& json, const char* key, int64_t otherwise = 0);
double NumberOf(const Json& json, const char* key, double otherwise = 0);
std::string TextOf(const Json& json, const char* key);
bool FlagOf(const Json& json, const char* key);

class Report {
 public:
  // `dir`: absolute. Opens the files; torn ends are cut and said.
  static absl::StatusOr<std::unique_ptr<Report>> Open(const std::string& dir, const Config& config,
                                                      const std::string& machine, Console* console);

  // A message of worker `slot` (types joined, lost, first_step, step, eval, save, event, final).
  void OnMessage(int slot, const Json& message);
  // A member of `generation` died or stays stopped, first seen at `ms`.
  void OnFault(int slot, int64_t generation, const std::string& cause, int64_t ms,
               const Json& details);
  // Anything worth a line in events.jsonl; `text` also goes to the log at `level`.
  void Event(const std::string& kind, LogLevel level, const std::string& text,
             Json fields = Json::object());
  void Tick(int64_t now_ms);  // redraws the view, writes held steps
  // The run has ended: what the view says from now on.
  void Ended(ExitCode code, const std::string& text);
  view::Snapshot Snapshot(int64_t now_ms) const;
  // The page for Prometheus.
  std::string Metrics(const view::Snapshot& snapshot);

  int64_t committed_step() const { return steps_->last_step(); }
  int64_t live_step() const { return live_.step; }  // of this life: falls back after a restore
  int64_t saved_step() const { return saved_reported_; }  // of this life
  int world_size() const { return static_cast<int>(live_.world_size); }
  bool finished() const { return finished_; }
  // Not empty: two reports of one step disagree. The run must end.
  const std::string& corrupt() const { return corrupt_; }
  // Flushes the logs and writes summary.json.
  void WriteSummary(ExitCode code, const std::string& text);
  Json SummaryJson(ExitCode code, const std::string& text) const;

 private:
  Report(std::string dir, const Config& config, const std::string& machine, Console* console);
  void OnJoined(int slot, const Json& m);
  void FollowBranches(const Json& joined);
  void OnLost(int slot, const Json& m);
  void OnFirstStep(const Json& m);
  void OnStep(int slot, const Json& m);
  void OnEval(const Json& m);
  void OnSave(int slot, const Json& m);
  void OnFinal(int slot, const Json& m);
  void Pace(const Json& m, int64_t now_ms);
  void Record(const Json& m);
  void LogStep(const Json& m);

  const std::string dir_;
  const Config config_;
  Console* const console_;
  std::unique_ptr<LineFile> events_;
  std::unique_ptr<StepLog> steps_;
  std::unique_ptr<MetricsLog> metrics_;
  RecoveryTracker recoveries_;
  RunView view_;
  RunCounters counters_;
  view::Snapshot live_;  // single values; curves and lists are view_'s
  // Where the time of one worker slot went, over all its processes, in seconds.
  struct SlotTime {
    std::map<std::string, double> ended;  // by processes that have ended
    Json current;                         // as the running one last reported it
    bool died = false;                    // a process of it was lost
  };
  void CloseTime(int slot, Json time, bool died);  // by value: often the slot's own `current`
  Json MeanTimes(double wall_s, double* efficiency) const;
  std::map<int, SlotTime> times_;  // bounded by the number of slots
  std::vector<Json> finals_;  // at most one for each worker process that ended in order; bounded
  std::string corrupt_, final_digest_;
  bool finished_ = false;
  double train_loss_ = 0;
  double eta_step_s_ = 0;  // a slower mean than live_.step_s: for the time left
  int64_t paced_steps_ = 0;
  std::optional<double> eval_loss_;
  int64_t eval_step_ = -1, saved_reported_ = -1;
  int64_t started_ms_, last_step_ms_ = -1, step_seen_ms_ = -1, steps_done_ = 0, tokens_done_ = 0;
  int64_t generations_ = 0, restored_generation_ = -1, workers_lost_ = 0, steps_lost_ = 0;
};

}  // namespace holdfast
