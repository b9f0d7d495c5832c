// What a run is doing, as a supervisor knows it at one moment: the live view, `holdfast status`,
// the Prometheus page and what is published for other machines are all made of it. It holds no
// secret, and nobody decides anything by it. Plain data; pure functions: any thread.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/view/series.h"

namespace holdfast::view {

inline constexpr std::array<const char*, 5> kActivities = {"compute", "reduce", "wait",
                                                           "checkpoint", "lost"};

// How bad a line is, for its colour.
enum class Tone : uint8_t { kQuiet, kGood, kWarn, kBad };

struct WorkerLine {
  int64_t slot = 0, rank = -1, pid = 0, generation = 0, step = -1, deaths = 0;
  std::string machine;  // told where several machines take part
  std::string state;    // "training", "starting", "stopped by SIGSTOP", ...
  Tone tone = Tone::kQuiet;
};

struct EventLine {
  int64_t age_s = 0;
  std::string text;  // one line
  Tone tone = Tone::kQuiet;
};

struct Snapshot {
  std::string run, machine;
  std::string phase = "starting";  // training | regrouping | stopping | waiting | ended
  Tone tone = Tone::kQuiet;        // of the phase
  bool ended = false;              // by itself or on request: end_text says how
  std::string end_text;
  int64_t up_s = 0;  // of this supervisor

  int64_t step = 0, steps = 0, generation = 0, world_size = 0;
  int64_t seconds_left = -1, step_age_s = -1;  // -1: not known
  double loss = NAN, eval_loss = NAN, gradient_norm = NAN, learning_rate = NAN;
  int64_t eval_step = -1;
  double tokens_per_s = 0, flops_per_s = 0, step_s = 0;
  int64_t saved_step = -1, saved_age_s = -1, save_failures = 0;  // failures since the last save
  int64_t workers_lost = 0, recoveries = 0, recovery_ms = -1, steps_lost = 0;
  std::array<double, kActivities.size()> time_s = {};  // mean of this machine's workers

  std::vector<WorkerLine> workers;
  std::vector<Point> losses, recent, evals;  // the whole run; the newest steps; on held-out data
  std::vector<EventLine> events;             // newest last

  // Not published: what whoever shows it has to say about it ("no news for 40 s").
  std::string notice;

  // The same, `seconds` later: every age has grown.
  void Age(int64_t seconds);
};

// At most this many bytes; events, workers and points are dropped where it would be more.
inline constexpr size_t kSnapshotBytesMax = 32 * 1024;
std::string ToJson(const Snapshot& snapshot);
// Takes what it knows and leaves the rest at its default; kInvalidArgument when it is no JSON
// object or larger than kSnapshotBytesMax.
absl::StatusOr<Snapshot> FromJson(std::string_view json);

}  // namespace holdfast::view
