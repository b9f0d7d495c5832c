#include "runtime/view/snapshot.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/base/text.h"

namespace holdfast::view {
namespace {

using Json = nlohmann::json;

constexpr size_t kPointsMax = 2000, kWorkersMax = 4096, kEventsMax = 200, kTextMax = 400;

Json Number(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

// Seven digits are more than any screen shows.
double Short(double x) {
  if (!std::isfinite(x) || x == 0) return x;
  const double scale = std::pow(10.0, 6 - std::floor(std::log10(std::abs(x))));
  const double rounded = std::isfinite(scale) ? std::round(x * scale) / scale : x;
  return std::isfinite(rounded) ? rounded : x;
}

Json PointsJson(const std::vector<Point>& points) {
  Json json = Json::array();
  for (const Point& p : points) json.push_back({p.step, Number(Short(p.value))});
  return json;
}

Json WorkersJson(const std::vector<WorkerLine>& workers) {
  Json json = Json::array();
  for (const WorkerLine& w : workers) {
    json.push_back({{"slot", w.slot},
                    {"rank", w.rank},
                    {"pid", w.pid},
                    {"generation", w.generation},
                    {"step", w.step},
                    {"deaths", w.deaths},
                    {"machine", w.machine},
                    {"state", w.state.substr(0, kTextMax)},
                    {"tone", static_cast<int>(w.tone)}});
  }
  return json;
}

Json EventsJson(const std::vector<EventLine>& events) {
  Json json = Json::array();
  for (const EventLine& e : events) {
    json.push_back({{"age_s", e.age_s},
                    {"text", e.text.substr(0, kTextMax)},
                    {"tone", static_cast<int>(e.tone)}});
  }
  return json;
}

Json Scalars(const Snapshot& s) {
  Json time = Json::object();
  for (size_t i = 0; i < kActivities.size(); ++i) time[kActivities[i]] = Number(s.time_s[i]);
  return {{"run", s.run},
          {"machine", s.machine},
          {"phase", s.phase},
          {"tone", static_cast<int>(s.tone)},
          {"ended", s.ended},
          {"end_text", s.end_text.substr(0, 4 * kTextMax)},
          {"up_s", s.up_s},
          {"step", s.step},
          {"steps", s.steps},
          {"generation", s.generation},
          {"world_size", s.world_size},
          {"seconds_left", s.seconds_left},
          {"step_age_s", s.step_age_s},
          {"loss", Number(s.loss)},
          {"eval_loss", Number(s.eval_loss)},
          {"eval_step", s.eval_step},
          {"gradient_norm", Number(s.gradient_norm)},
          {"learning_rate", Number(s.learning_rate)},
          {"tokens_per_s", Number(s.tokens_per_s)},
          {"flops_per_s", Number(s.flops_per_s)},
          {"step_s", Number(s.step_s)},
          {"saved_step", s.saved_step},
          {"saved_age_s", s.saved_age_s},
          {"save_failures", s.save_failures},
          {"workers_lost", s.workers_lost},
          {"recoveries", s.recoveries},
          {"recovery_ms", s.recovery_ms},
          {"steps_lost", s.steps_lost},
          {"time_s", time}};
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Reads one object's fields; what is missing or of another type keeps its default.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}
  void Get(const char* key, int64_t* out) const {
    const auto it = Find(key);
    if (it != json_.end() && it->is_number_integer()) *out = it->get<int64_t>();
  }
  void Get(const char* key, double* out) const {
    const auto it = Find(key);
    if (it != json_.end() && it->is_number()) *out = it->get<double>();
  }
  void Get(const char* key, bool* out) const {
    const auto it = Find(key);
    if (it != json_.end() && it->is_boolean()) *out = it->get<bool>();
  }
  void Get(const char* key, std::string* out) const {
    const auto it = Find(key);
    if (it != json_.end() && it->is_string()) *out = it->get<std::string>();
  }
  void Get(const char* key, Tone* out) const {
    int64_t tone = 0;
    Get(key, &tone);
    if (tone >= 0 && tone <= static_cast<int64_t>(Tone::kBad)) *out = static_cast<Tone>(tone);
  }
  void Get(const char* key, std::vector<Point>* out) const {
    const auto it = Find(key);
    if (it == json_.end() || !it->is_array()) return;
    for (const Json& p : *it) {
      if (out->size() == kPointsMax) return;
      if (!p.is_array() || p.size() != 2 || !p[0].is_number_integer() || !p[1].is_number())
        continue;
      const Point point{p[0].get<int64_t>(), p[1].get<double>()};
      if (out->empty() || point.step > out->back().step) out->push_back(point);
    }
  }
  // Every object of a list, at most `limit`.
  template <typename F>
  void Each(const char* key, size_t limit, const F& take) const {
    const auto it = Find(key);
    if (it == json_.end() || !it->is_array()) return;
    for (const Json& entry : *it) {
      if (limit-- == 0) return;
      if (entry.is_object()) take(Fields(entry));
    }
  }

 private:
  Json::const_iterator Find(const char* key) const { return json_.find(key); }
  const Json& json_;
};

void ReadLists(const Fields& f, Snapshot* s) {
  f.Get("losses", &s->losses);
  f.Get("recent", &s->recent);
  f.Get("evals", &s->evals);
  f.Each("workers", kWorkersMax, [&](const Fields& w) {
    WorkerLine line;
    w.Get("slot", &line.slot);
    w.Get("rank", &line.rank);
    w.Get("pid", &line.pid);
    w.Get("generation", &line.generation);
    w.Get("step", &line.step);
    w.Get("deaths", &line.deaths);
    w.Get("machine", &line.machine);
    w.Get("state", &line.state);
    w.Get("tone", &line.tone);
    s->workers.push_back(std::move(line));
  });
  f.Each("events", kEventsMax, [&](const Fields& e) {
    EventLine line;
    e.Get("age_s", &line.age_s);
    e.Get("text", &line.text);
    e.Get("tone", &line.tone);
    s->events.push_back(std::move(line));
  });
}

}  // namespace

void Snapshot::Age(int64_t seconds) {
  seconds = std::clamp<int64_t>(seconds, 0, std::numeric_limits<int32_t>::max());
  const auto grow = [seconds](int64_t* age) {
    if (*age >= 0 && *age < std::numeric_limits<int64_t>::max() / 2) *age += seconds;
  };
  grow(&step_age_s);
  grow(&saved_age_s);
  for (EventLine& e : events) grow(&e.age_s);
}

std::string ToJson(const Snapshot& s) {
  Snapshot cut = s;
  while (true) {
    Json json = Scalars(cut);
    json["workers"] = WorkersJson(cut.workers);
    json["events"] = EventsJson(cut.events);
    json["losses"] = PointsJson(cut.losses);
    json["recent"] = PointsJson(cut.recent);
    json["evals"] = PointsJson(cut.evals);
    std::string text = Dump(json);
    if (text.size() <= kSnapshotBytesMax) return text;
    if (cut.workers.empty() && cut.events.empty() && cut.losses.empty() && cut.recent.empty() &&
        cut.evals.empty())
      return "{}";  // only names of absurd length can do this
    // The newest halves are worth most.
    const auto halve = [](auto* list) {
      list->erase(list->begin(),
                  list->begin() + static_cast<std::ptrdiff_t>((list->size() + 1) / 2));
    };
    halve(&cut.recent);
    halve(&cut.events);
    cut.workers.resize(cut.workers.size() / 2);
    std::vector<Point> thinned;
    for (size_t i = 1; i < cut.losses.size(); i += 2) thinned.push_back(cut.losses[i]);
    cut.losses = std::move(thinned);
    halve(&cut.evals);
  }
}

absl::StatusOr<Snapshot> FromJson(std::string_view text) {
  if (text.size() > kSnapshotBytesMax)
    return absl::InvalidArgumentError(Cat("a status of ", text.size(), " bytes is too large"));
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return absl::InvalidArgumentError("the status is no JSON object");
  const Fields f(json);
  Snapshot s;
  f.Get("run", &s.run);
  f.Get("machine", &s.machine);
  f.Get("phase", &s.phase);
  f.Get("tone", &s.tone);
  f.Get("ended", &s.ended);
  f.Get("end_text", &s.end_text);
  f.Get("up_s", &s.up_s);
  f.Get("step", &s.step);
  f.Get("steps", &s.steps);
  f.Get("generation", &s.generation);
  f.Get("world_size", &s.world_size);
  f.Get("seconds_left", &s.seconds_left);
  f.Get("step_age_s", &s.step_age_s);
  f.Get("loss", &s.loss);
  f.Get("eval_loss", &s.eval_loss);
  f.Get("eval_step", &s.eval_step);
  f.Get("gradient_norm", &s.gradient_norm);
  f.Get("learning_rate", &s.learning_rate);
  f.Get("tokens_per_s", &s.tokens_per_s);
  f.Get("flops_per_s", &s.flops_per_s);
  f.Get("step_s", &s.step_s);
  f.Get("saved_step", &s.saved_step);
  f.Get("saved_age_s", &s.saved_age_s);
  f.Get("save_failures", &s.save_failures);
  f.Get("workers_lost", &s.workers_lost);
  f.Get("recoveries", &s.recoveries);
  f.Get("recovery_ms", &s.recovery_ms);
  f.Get("steps_lost", &s.steps_lost);
  if (const auto time = json.find("time_s"); time != json.end() && time->is_object()) {
    const Fields t(*time);
    for (size_t i = 0; i < kActivities.size(); ++i) t.Get(kActivities[i], &s.time_s[i]);
  }
  ReadLists(f, &s);
  return s;
}

}  // namespace holdfast::view
