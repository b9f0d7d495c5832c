// holdfast status and holdfast stop.
#include <cstdio>

#include "absl/strings/strip.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/endpoint.h"
#include "runtime/supervisor/exit_status.h"
#include "runtime/supervisor/report.h"
#include "runtime/supervisor/run_dir.h"

namespace holdfast {
namespace {

ExitCode Fail(std::string_view command, const absl::Status& status) {
  std::fprintf(stderr, "holdfast %s: %s\n", std::string(command).c_str(),
               std::string(status.message()).c_str());
  return ExitCodeOf(status);
}

void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

std::string MemberLine(const Json& m) {
  std::string line = Cat("  rank ", IntegerOf(m, "rank", -1), "  worker ", IntegerOf(m, "slot", -1),
                         " on ", TextOf(m, "machine"));
  if (!TextOf(m, "phase").empty())
    line += Cat("  ", TextOf(m, "phase"), ", step ", IntegerOf(m, "step"));
  if (!TextOf(m, "gone").empty()) return line + Cat("  gone: ", TextOf(m, "gone"), "\n");
  const int64_t lease_ms = IntegerOf(m, "lease_ms");
  return line + (lease_ms > 0 ? "\n" : "  no sign of life\n");
}

// What a live run says of itself, for people.
std::string LiveText(const Json& json) {
  if (!FlagOf(json, "exists"))
    return Cat("run '", TextOf(json, "run"), "': not known to this Redis\n");
  std::string text =
      Cat("run '", TextOf(json, "run"), "': generation ", IntegerOf(json, "generation"));
  const auto finished = json.find("finished");
  if (finished != json.end() && finished->is_object()) {
    text += Cat(", finished at step ", IntegerOf(*finished, "step"), ", state digest ",
                TextOf(*finished, "state_digest"));
  }
  if (FlagOf(json, "round_open")) text += ", regrouping";
  if (!TextOf(json, "stop").empty()) text += Cat(", stop requested (", TextOf(json, "stop"), ")");
  text += "\n";
  if (!TextOf(json, "note").empty()) text += Cat("  ", TextOf(json, "note"), "\n");
  for (const char* list : {"members", "waiting"}) {
    const auto it = json.find(list);
    if (it == json.end() || !it->is_array() || it->empty()) continue;
    if (std::string_view(list) == "waiting") text += "  waiting:\n";
    for (const Json& m : *it) text += MemberLine(m);
  }
  return text;
}

// Nothing runs: what the files say of the last time.
ExitCode StatusFromFiles(const CommandLine& line, std::string_view why) {
  const RecordedRun record = ReadRecord(line.dir);
  const auto config = ReadSmallFile(Cat(line.dir, "/config.toml"));
  if (!config.ok())
    return Fail("status", absl::NotFoundError(Cat(line.dir, " holds no run (no config.toml)")));
  const Json summary = Json::parse(record.summary_json, nullptr, false);
  if (line.json) {
    const Json json = {{"active", false},
                       {"last_step", record.last_step},
                       {"state_digest", record.last_digest},
                       {"summary", summary.is_object() ? summary : Json(nullptr)}};
    Print(json.dump(2) + "\n");
    return ExitCode::kOk;
  }
  Print(Cat(why, "\nlast committed step on record: ", record.last_step,
            record.last_digest.empty() ? "" : Cat(", state digest ", record.last_digest), "\n"));
  if (summary.is_object())
    Print(Cat("last end: ", TextOf(summary, "exit_text"), ": ", TextOf(summary, "text"), "\n"));
  if (!summary.is_object())
    Print(
        "its last supervisor ended without a summary (it was killed); the same command resumes the "
        "run\n");
  return ExitCode::kOk;
}

}  // namespace

ExitCode StatusCommand(const CommandLine& line) {
  const auto observer = ConnectToRun(line);
  if (!observer.ok()) {
    if (!line.dir.empty() && absl::IsNotFound(observer.status()))
      return StatusFromFiles(line, StdView(observer.status().message()));
    return Fail("status", observer.status());
  }
  const auto text = (*observer)->StatusJson();
  if (!text.ok()) return Fail("status", WithExit(text.status(), ExitCode::kStore));
  Json json = Json::parse(*text, nullptr, false);
  if (!json.is_object()) return Fail("status", absl::InternalError("the answer cannot be read"));
  if (!line.dir.empty()) json["last_step"] = ReadRecord(line.dir).last_step;
  json["active"] = true;
  if (line.json) {
    Print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    Print(LiveText(json));
    if (!line.dir.empty()) Print(Cat("last committed step: ", IntegerOf(json, "last_step"), "\n"));
  }
  return ExitCode::kOk;
}

ExitCode StopCommand(const CommandLine& line) {
  const auto observer = ConnectToRun(line);
  if (!observer.ok()) return Fail("stop", observer.status());
  const absl::Status status = (*observer)->RequestStop("holdfast stop");
  if (!status.ok()) return Fail("stop", WithExit(status, ExitCode::kStore));
  Print(
      "stop requested: the workers save at the next step boundary and leave; the run can be "
      "resumed\n");
  return ExitCode::kOk;
}

}  // namespace holdfast
