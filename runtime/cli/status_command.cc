// holdfast status and holdfast stop.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_split.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/endpoint.h"
#include "runtime/cli/status_source.h"
#include "runtime/supervisor/exit_status.h"
#include "runtime/view/draw.h"
#include "runtime/view/screen.h"
#include "runtime/view/text.h"

namespace holdfast {
namespace {

// A file or a pipe has no size of its own.
constexpr int kPageColumns = 100, kPageRows = 40;

ExitCode Fail(std::string_view command, const absl::Status& status) {
  std::fprintf(stderr, "holdfast %s: %s\n", std::string(command).c_str(),
               std::string(status.message()).c_str());
  return ExitCodeOf(status);
}

void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

std::string Lines(const std::string& text, bool utf8) {
  std::string out;
  for (const auto line : absl::StrSplit(text, '\n'))
    out += Cat(view::Clean(StdView(line), utf8), "\n");
  return out;
}

}  // namespace

void PrintStatus(const RunStatus& status) {
  view::Capabilities caps = view::CapabilitiesOf(STDOUT_FILENO);
  if (isatty(STDOUT_FILENO) == 1) {
    caps.height = std::max(3, caps.height - 2);  // the prompt comes below
  } else {
    caps.width = kPageColumns;
    caps.height = kPageRows;
  }
  // Whole sentences stand below the picture, which cuts at the right edge.
  view::Snapshot picture = status.snapshot;
  picture.notice.clear();
  picture.end_text.clear();
  for (const std::string& line : view::Draw(picture, caps)) Print(line + "\n");
  for (const std::string* text : {&status.snapshot.notice, &status.snapshot.end_text}) {
    if (!text->empty()) Print(Lines(*text, caps.utf8));
  }
  if (!status.digest.empty()) {
    Print(Cat("last committed step on record: ", status.snapshot.step, ", state digest ",
              status.digest, "\n"));
  }
}

ExitCode StatusCommand(const CommandLine& line) {
  if (line.watch) return WatchStatus(line);
  const auto status = GatherStatus(line);
  if (!status.ok()) return Fail("status", status.status());
  if (line.json) {
    Print(status->json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else {
    PrintStatus(*status);
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
