#include "chaos/oracle.h"

#include <cmath>
#include <exception>
#include <fstream>
#include <functional>
#include <sstream>

#include "nlohmann/json.hpp"
#include "runtime/base/status.h"
#include "runtime/base/text.h"

namespace holdfast::chaos {
namespace {

using Json = nlohmann::json;

constexpr size_t kComplaintsMax = 20;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(Cat(path, " is not there"));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Calls `take` for each complete line. A last line without its end or that is no JSON is torn: cut,
// not an error.
absl::StatusOr<bool> EachJsonLine(
    const std::string& path, const std::function<void(const Json&, const std::string&)>& take) {
  HF_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    ++number;
    if (end == std::string::npos) return true;
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    try {
      take(Json::parse(line), line);
    } catch (const std::exception& error) {
      if (at >= text.size()) return true;
      return absl::DataLossError(Cat(path, ", line ", number, ": ", error.what()));
    }
  }
  return false;
}

class Complaints {
 public:
  template <typename... Args>
  void Add(const Args&... args) {
    if (list_.size() < kComplaintsMax) list_.push_back(Cat(args...));
  }
  std::vector<std::string> Take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

void CompareLine(const StepLine& want, const StepLine& line, Complaints* wrong) {
  if (line.digest != want.digest) {
    wrong->Add("step ", line.step, ": digest ", line.digest, ", reference ", want.digest,
               " (world size ", line.world_size, ", generation ", line.generation, ")");
  }
  if (line.samples != want.samples) {
    wrong->Add("step ", line.step, ": samples ", line.samples, ", reference ", want.samples);
  }
  // The loss is a function of the bits: equal text, equal number.
  if (line.loss != want.loss && !(std::isnan(line.loss) && std::isnan(want.loss))) {
    wrong->Add("step ", line.step, ": loss ", line.loss, ", reference ", want.loss);
  }
}

void CheckGenerations(const StepLog& log, Complaints* wrong) {
  std::map<int64_t, int64_t> worlds;
  int64_t newest = 0;
  for (const StepLine& line : log.lines) {
    if (line.generation < newest) {
      wrong->Add("step ", line.step, ": generation ", line.generation, " after generation ",
                 newest);
    }
    newest = std::max(newest, line.generation);
    const auto [it, added] = worlds.try_emplace(line.generation, line.world_size);
    if (!added && it->second != line.world_size) {
      wrong->Add("step ", line.step, ": generation ", line.generation, " had world size ",
                 it->second, " and has ", line.world_size);
    }
  }
}

int64_t Int(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_number_integer() ? it->get<int64_t>() : -1;
}

}  // namespace

absl::StatusOr<StepLog> ReadSteps(const std::string& dir) {
  StepLog log;
  HF_ASSIGN_OR_RETURN(
      log.torn, EachJsonLine(dir + "/steps.jsonl", [&](const Json& json, const std::string&) {
        StepLine line;
        line.step = json.at("step").get<int64_t>();
        // A loss that is not finite has no number in JSON.
        line.loss = json.at("loss").is_number() ? json.at("loss").get<double>() : std::nan("");
        line.digest = json.at("state_digest").get<std::string>();
        line.samples = json.at("samples").get<std::string>();
        line.world_size = json.at("world_size").get<int64_t>();
        line.generation = json.at("generation").get<int64_t>();
        log.lines.push_back(line);
      }));
  return log;
}

std::vector<std::string> JudgeSteps(const StepLog& reference, const StepLog& log,
                                    const JudgeOptions& options) {
  Complaints wrong;
  std::map<int64_t, const StepLine*> wanted;
  for (const StepLine& line : reference.lines) wanted[line.step] = &line;
  if (wanted.empty()) wrong.Add("the reference has no steps");
  const int64_t last = options.last_step > 0 ? options.last_step : reference.last_step();

  std::map<int64_t, int64_t> seen;
  int64_t before = options.first_step - 1;
  for (const StepLine& line : log.lines) {
    const auto want = wanted.find(line.step);
    if (want == wanted.end()) {
      wrong.Add("step ", line.step, " is not in the reference");
    } else {
      CompareLine(*want->second, line, &wrong);
    }
    if (++seen[line.step] > 1)
      wrong.Add("step ", line.step, " is there ", seen[line.step], " times");
    if (line.step > before + 1)
      wrong.Add("steps ", before + 1, " to ", line.step - 1, " are missing before step ",
                line.step);
    before = line.step;
  }
  if (before < last) wrong.Add("ends at step ", before, " instead of ", last);
  if (before > last) wrong.Add("goes on to step ", before, " beyond ", last);
  CheckGenerations(log, &wrong);
  return wrong.Take();
}

absl::StatusOr<Summary> ReadSummary(const std::string& dir) {
  const std::string path = dir + "/summary.json";
  HF_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  Summary out;
  try {
    const Json json = Json::parse(text);
    out.final_step = json.at("final_step").get<int64_t>();
    out.digest = json.at("state_digest").get<std::string>();
    out.train_loss =
        json.at("train_loss").is_number() ? json.at("train_loss").get<double>() : std::nan("");
    out.wall_s = json.at("wall_s").get<double>();
    out.tokens_per_s = json.at("tokens_per_s").get<double>();
    out.parallel_efficiency = json.at("parallel_efficiency").get<double>();
    out.generations = json.at("generations").get<int64_t>();
    out.workers_lost = json.at("workers_lost").get<int64_t>();
    out.steps_lost = json.at("steps_lost").get<int64_t>();
    for (const Json& item : json.at("recoveries")) {
      const auto number = [&item](const char* key) {
        return item.at(key).is_number() ? item.at(key).get<double>() : -1;
      };
      out.recoveries.push_back({item.at("cause").get<std::string>(), number("detect_ms"),
                                number("regroup_ms"), number("first_step_ms")});
    }
    for (const char* bucket : {"compute", "reduce", "wait", "checkpoint", "lost"}) {
      out.time[bucket] = json.at("time").at(bucket).get<double>();
    }
  } catch (const std::exception& error) {
    return absl::DataLossError(Cat(path, ": ", error.what()));
  }
  return out;
}

std::vector<std::string> JudgeSummary(const StepLog& reference, const Summary& summary) {
  Complaints wrong;
  const StepLine* last = nullptr;
  for (const StepLine& line : reference.lines) {
    if (line.step == summary.final_step) last = &line;
  }
  if (last == nullptr) {
    wrong.Add("summary: final_step ", summary.final_step, " is not in the reference");
  } else if (last->digest != summary.digest) {
    wrong.Add("summary: state_digest ", summary.digest, ", reference ", last->digest);
  }
  double sum = 0;
  for (const auto& [name, seconds] : summary.time) {
    if (!(seconds >= 0)) wrong.Add("summary: time.", name, " is ", seconds);
    sum += seconds;
  }
  if (!(std::abs(sum - summary.wall_s) <= std::max(0.01 * summary.wall_s, 0.05))) {
    wrong.Add("summary: time buckets add up to ", sum, " s, wall time ", summary.wall_s, " s");
  }
  if (!(summary.parallel_efficiency >= 0 && summary.parallel_efficiency <= 1.0)) {
    wrong.Add("summary: parallel_efficiency is ", summary.parallel_efficiency);
  }
  return wrong.Take();
}

absl::StatusOr<std::vector<EventLine>> ReadEvents(const std::string& dir) {
  std::vector<EventLine> events;
  const auto torn =
      EachJsonLine(dir + "/events.jsonl", [&](const Json& json, const std::string& text) {
        EventLine line;
        line.kind = json.at("event").get<std::string>();
        if (json.contains("text") && json.at("text").is_string())
          line.text = json.at("text").get<std::string>();
        line.line = text;
        line.generation = Int(json, "generation");
        line.world_size = Int(json, "world_size");
        line.step = Int(json, "step");
        line.worker = Int(json, "worker");
        if (json.contains("ms") && json.at("ms").is_number()) line.ms = json.at("ms").get<double>();
        events.push_back(line);
      });
  if (!torn.ok()) return torn.status();
  return events;
}

std::vector<std::string> JudgeEvents(const std::vector<EventLine>& events) {
  Complaints wrong;
  std::map<int64_t, int64_t> worlds;
  for (const EventLine& event : events) {
    if (event.generation < 0 || event.world_size < 0) continue;
    const auto [it, added] = worlds.try_emplace(event.generation, event.world_size);
    if (!added && it->second != event.world_size) {
      wrong.Add("generation ", event.generation, " has world sizes ", it->second, " and ",
                event.world_size);
    }
  }
  return wrong.Take();
}

}  // namespace holdfast::chaos
