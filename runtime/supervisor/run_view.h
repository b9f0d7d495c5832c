// What the live view, `holdfast status` and the metrics page show beyond single numbers: the
// curves, the workers by slot with their state, the newest events. Fed with what the books take in;
// nobody decides anything by it. Bounded. One thread; all times are CLOCK_BOOTTIME ms.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/log.h"
#include "runtime/view/snapshot.h"

namespace holdfast {

class RunView {
 public:
  explicit RunView(int64_t now_ms) : started_ms_(now_ms) {}

  void OnStep(int64_t step, double loss);
  void OnWorkerStep(int slot, int64_t step);
  void OnEval(int64_t step, double loss);
  void OnSaved(int64_t step, int64_t at_ms);
  // The run goes on from `step`, in another branch: later steps are not part of it any more.
  void CutAfter(int64_t step);
  // An event of the books: kind, text and the fields of its line in events.jsonl (worker, pid,
  // rank, step, phase, at_ms, ... as far as there are).
  void OnEvent(const std::string& kind, LogLevel level, const std::string& text,
               const nlohmann::json& fields, int64_t now_ms);

  // Fills in curves, workers, events, phase and the ages of the last save.
  void Fill(int64_t now_ms, view::Snapshot* out) const;
  int64_t saved_step() const { return saved_step_; }
  // Workers by state, for the metrics.
  std::map<std::string, int64_t> States() const;

 private:
  struct Worker {
    std::string state = "starting";
    view::Tone tone = view::Tone::kQuiet;
    int64_t pid = 0, rank = -1, step = -1, generation = 0, deaths = 0;
  };
  struct Past {
    int64_t at_ms;
    std::string text;
    view::Tone tone;
    std::string kind;  // of what comes often; else ""
  };
  static constexpr size_t kCurvePoints = 300, kRecentPoints = 256, kEvalPoints = 150;
  static constexpr size_t kEventsMax = 60, kWorkersMax = 4096;

  void OnWorkerEvent(Worker& worker, const std::string& kind, const nlohmann::json& fields);

  const int64_t started_ms_;
  view::Series losses_{kCurvePoints}, evals_{kEvalPoints};
  std::deque<view::Point> recent_;
  std::map<int, Worker> workers_;
  std::deque<Past> events_;
  int64_t saved_step_ = -1, saved_ms_ = 0, save_failures_ = 0;
  bool stopping_ = false;
};

// The newest events and the last save of the earlier lives of a run, as events.jsonl
// in `dir` tells them.
void LoadEvents(const std::string& dir, int64_t now_ms, RunView* view);
// The whole snapshot of a run that nobody runs now; kNotFound when `dir` holds none.
absl::StatusOr<view::Snapshot> SnapshotFromFiles(const std::string& dir);

}  // namespace holdfast
