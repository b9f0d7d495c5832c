#include "runtime/cli/status_source.h"

#include <algorithm>
#include <set>

#include "runtime/cli/endpoint.h"
#include "runtime/supervisor/exit_status.h"
#include "runtime/supervisor/line_file.h"
#include "runtime/supervisor/report.h"
#include "runtime/supervisor/run_dir.h"
#include "runtime/supervisor/run_view.h"
#include "runtime/view/text.h"

namespace holdfast {
namespace {

using view::Tone;

struct AgedView {
  view::Snapshot snapshot;
  std::string machine;
  int64_t age_ms = 0;
};

view::WorkerLine FromRoster(const Json& m) {
  view::WorkerLine line;
  line.slot = IntegerOf(m, "slot", -1);
  line.rank = IntegerOf(m, "rank", -1);
  line.step = IntegerOf(m, "step", -1);
  line.machine = TextOf(m, "machine");
  const std::string phase = TextOf(m, "phase"), gone = TextOf(m, "gone");
  line.state = phase.empty() ? "joined" : phase;
  if (!gone.empty()) {
    line.state = Cat("gone: ", gone);
    line.tone = Tone::kWarn;
  } else if (IntegerOf(m, "lease_ms") <= 0) {
    line.state = "no sign of life";
    line.tone = Tone::kBad;
  }
  return line;
}

// What the roster knows where no supervisor has published anything.
void FillFromRoster(const Json& roster, view::Snapshot* s) {
  s->run = TextOf(roster, "run");
  s->generation = IntegerOf(roster, "generation");
  s->phase = FlagOf(roster, "round_open") ? "regrouping" : "running";
  for (const Json& m : roster.value("members", Json::array())) {
    ++s->world_size;
    if (IntegerOf(m, "step", -1) < s->step) continue;
    s->step = IntegerOf(m, "step", -1);
    s->loss = NumberOf(m, "loss", NAN);
  }
  s->step = std::max<int64_t>(0, s->step);
}

void AddEnd(const Json& roster, view::Snapshot* s) {
  const auto finished = roster.find("finished");
  if (finished != roster.end() && finished->is_object()) {
    s->ended = true;
    s->phase = "finished";
    s->tone = Tone::kGood;
    s->step = std::max(s->step, IntegerOf(*finished, "step"));
    s->end_text = Cat("finished at step ", IntegerOf(*finished, "step"), ", state digest ",
                      TextOf(*finished, "state_digest"));
  } else if (!TextOf(roster, "stop").empty() && !s->ended) {
    s->phase = "stopping";
    s->tone = Tone::kWarn;
    s->events.push_back({0, Cat("stop requested (", TextOf(roster, "stop"), ")"), Tone::kWarn});
  }
}

absl::StatusOr<RunStatus> FromFiles(const std::string& dir, std::string_view why) {
  const auto snapshot = SnapshotFromFiles(dir);
  if (!snapshot.ok()) return snapshot.status();
  const RecordedRun record = ReadRecord(dir);
  const Json summary = Json::parse(record.summary_json, nullptr, false);
  RunStatus status;
  status.snapshot = *snapshot;
  status.snapshot.notice = why;
  status.digest = record.last_digest;
  status.json = {{"last_step", record.last_step},
                 {"state_digest", record.last_digest},
                 {"summary", summary.is_object() ? summary : Json(nullptr)}};
  return status;
}

absl::StatusOr<RunStatus> FromRedis(const CommandLine& line, const RunEndpoint& endpoint) {
  HF_ASSIGN_OR_RETURN(const auto observer, ConnectToRun(endpoint));
  const auto text = observer->StatusJson();
  if (!text.ok()) return WithExit(text.status(), ExitCode::kStore);
  RunStatus status;
  status.json = Json::parse(*text, nullptr, false);
  if (!status.json.is_object()) return absl::InternalError("the roster cannot be read");
  const RedisAddress& redis = endpoint.redis;
  rendezvous::ViewBoard board({redis.host, redis.port, redis.user, redis.password}, endpoint.run);
  const auto views = board.Read();  // without them the roster has to do
  if (!FlagOf(status.json, "exists") && (!views.ok() || views->empty()) && line.dir.empty()) {
    const auto finished = status.json.find("finished");
    if (finished == status.json.end() || !finished->is_object()) {
      return absl::NotFoundError(
          Cat("run '", endpoint.run, "' is not known to the Redis at ", redis.text()));
    }
  }
  status.snapshot = MergeViews(views.ok() ? *views : std::vector<rendezvous::PinnedView>(),
                               status.json, &status.stale);
  if (status.snapshot.run.empty()) status.snapshot.run = endpoint.run;
  status.active = !status.snapshot.ended;
  return status;
}

}  // namespace

view::Snapshot MergeViews(const std::vector<rendezvous::PinnedView>& pinned, const Json& roster,
                          bool* stale) {
  std::vector<AgedView> views;
  for (const rendezvous::PinnedView& p : pinned) {
    auto snapshot = view::FromJson(p.text);
    if (!snapshot.ok()) continue;  // another version's, perhaps: the roster still tells
    snapshot->Age(p.age_ms / 1000);
    views.push_back({std::move(*snapshot), p.machine, p.age_ms});
  }
  // Machines that still take part first, then the freshest.
  std::stable_sort(views.begin(), views.end(), [](const AgedView& a, const AgedView& b) {
    return std::pair(a.snapshot.ended, a.age_ms) < std::pair(b.snapshot.ended, b.age_ms);
  });
  view::Snapshot merged;
  *stale = false;
  if (views.empty()) {
    FillFromRoster(roster, &merged);
  } else {
    merged = views.front().snapshot;
    merged.workers.clear();
    *stale = !merged.ended && views.front().age_ms > kStaleMs;
    if (*stale) {
      merged.phase = "no news";
      merged.tone = Tone::kBad;
      merged.seconds_left = -1;
      merged.notice =
          Cat("no news for ", view::ShortTime(views.front().age_ms / 1000), ": the supervisor on ",
              views.front().machine, " may be dead or cut off; this is what it said last");
    }
  }
  std::set<std::string> told;
  for (AgedView& v : views) {
    told.insert(v.machine);
    if (v.snapshot.ended && !merged.ended) continue;
    for (view::WorkerLine& w : v.snapshot.workers) {
      w.machine = v.machine;
      if (v.age_ms > kStaleMs && !v.snapshot.ended) {
        w.state = Cat("no news for ", view::ShortTime(v.age_ms / 1000));
        w.tone = Tone::kBad;
      }
      merged.workers.push_back(std::move(w));
    }
  }
  for (const char* list : {"members", "waiting"}) {
    const auto it = roster.find(list);
    if (it == roster.end() || !it->is_array()) continue;
    for (const Json& m : *it) {
      if (m.is_object() && told.count(TextOf(m, "machine")) == 0)
        merged.workers.push_back(FromRoster(m));
    }
  }
  AddEnd(roster, &merged);
  return merged;
}

absl::StatusOr<RunStatus> GatherStatus(const CommandLine& line) {
  const auto endpoint = FindRun(line);
  absl::StatusOr<RunStatus> status;
  if (!endpoint.ok()) {
    if (line.dir.empty() || !absl::IsNotFound(endpoint.status())) return endpoint.status();
    status = FromFiles(line.dir, StdView(endpoint.status().message()));
  } else {
    status = FromRedis(line, *endpoint);
    if (!status.ok() && !line.dir.empty()) {
      // Training does not need Redis; what it wrote into its files is still there.
      const std::string why = Cat("its supervisor runs, but its Redis cannot be asked (",
                                  StdView(status.status().message()), "): this is from its files");
      status = FromFiles(line.dir, why);
      if (status.ok()) {
        status->active = true;
        status->snapshot.ended = false;
        status->snapshot.phase = "running";
      }
    }
  }
  if (!status.ok()) return status;
  if (!line.dir.empty() && endpoint.ok())
    status->json["last_step"] = ReadRecord(line.dir).last_step;
  status->json["active"] = status->active;
  status->json["stale"] = status->stale;
  status->json["view"] = Json::parse(view::ToJson(status->snapshot), nullptr, false);
  return status;
}

}  // namespace holdfast
