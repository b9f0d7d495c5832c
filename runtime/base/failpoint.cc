#include "runtime/base/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "runtime/base/log.h"

namespace holdfast {
namespace internal {
std::atomic<bool> failpoints_on{false};
}

namespace {

struct Task {
  std::string kind, argument;
  int64_t left = -1;  // firings left; -1: no bound
  int64_t step = -1;  // only at this step; -1: any
};

struct Table {
  std::mutex mutex;
  std::map<std::string, Task, std::less<>> tasks;
  std::map<std::string, int64_t, std::less<>> fired;
};

Table& TheTable() {
  static Table* table = new Table();
  return *table;
}

absl::Status Bad(absl::string_view part, absl::string_view why) {
  return absl::InvalidArgumentError(Cat("failpoint '", part, "': ", why));
}

absl::Status ParseTask(absl::string_view text, Task* task) {
  absl::string_view rest = text;
  if (const size_t at = rest.rfind('@'); at != absl::string_view::npos) {
    if (!absl::SimpleAtoi(rest.substr(at + 1), &task->step))
      return Bad(text, "a step number after @");
    rest = rest.substr(0, at);
  }
  if (const size_t star = rest.find('*'); star != absl::string_view::npos) {
    if (!absl::SimpleAtoi(rest.substr(0, star), &task->left)) return Bad(text, "a count before *");
    rest = rest.substr(star + 1);
  }
  if (const size_t open = rest.find('('); open != absl::string_view::npos) {
    if (rest.back() != ')') return Bad(text, "')' is missing");
    task->argument = std::string(rest.substr(open + 1, rest.size() - open - 2));
    rest = rest.substr(0, open);
  }
  task->kind = std::string(rest);
  int64_t number;
  if ((task->kind == "sleep" || task->kind == "exit") &&
      !absl::SimpleAtoi(task->argument, &number)) {
    return Bad(text, "a number in ()");
  }
  for (const absl::string_view kind :
       {"off", "kill", "abort", "exit", "sleep", "pause", "return"}) {
    if (kind == task->kind) return absl::OkStatus();
  }
  return Bad(text, "kinds are off, kill, abort, exit(code), sleep(ms), pause, return(text)");
}

void LoadEnvironmentOnce() {
  static const bool loaded = [] {
    const char* text = std::getenv("HOLDFAST_FAILPOINTS");
    if (text != nullptr && *text != '\0') {
      const absl::Status status = SetFailpoints(text);
      if (!status.ok()) LogError("HOLDFAST_FAILPOINTS: ", std::string(status.message()));
    }
    return true;
  }();
  (void)loaded;
}
const bool at_start = (LoadEnvironmentOnce(), true);

}  // namespace

absl::Status SetFailpoints(std::string_view settings) {
  std::map<std::string, Task, std::less<>> tasks;
  for (const absl::string_view part : absl::StrSplit(View(settings), ';', absl::SkipEmpty())) {
    const size_t equal = part.find('=');
    if (equal == absl::string_view::npos) return Bad(part, "write name=task");
    Task task;
    const absl::Status status = ParseTask(part.substr(equal + 1), &task);
    if (!status.ok()) return status;
    if (task.kind != "off") tasks[std::string(part.substr(0, equal))] = task;
  }
  Table& table = TheTable();
  std::lock_guard lock(table.mutex);
  table.tasks = std::move(tasks);
  internal::failpoints_on.store(!table.tasks.empty(), std::memory_order_relaxed);
  return absl::OkStatus();
}

int64_t FailpointFired(std::string_view name) {
  Table& table = TheTable();
  std::lock_guard lock(table.mutex);
  const auto it = table.fired.find(name);
  return it == table.fired.end() ? 0 : it->second;
}

namespace internal {

std::optional<std::string> FailpointHit(std::string_view name, int64_t step) {
  Table& table = TheTable();
  Task task;
  {
    std::lock_guard lock(table.mutex);
    const auto it = table.tasks.find(name);
    if (it == table.tasks.end() || it->second.left == 0) return std::nullopt;
    if (it->second.step >= 0 && it->second.step != step) return std::nullopt;
    if (it->second.left > 0) --it->second.left;
    ++table.fired[std::string(name)];
    task = it->second;
  }
  LogWarning("failpoint ", name, " fired: ", task.kind, " at step ", step);
  int64_t number = 0;
  (void)absl::SimpleAtoi(task.argument, &number);
  if (task.kind == "kill") kill(getpid(), SIGKILL);
  if (task.kind == "abort") std::abort();
  if (task.kind == "exit") _exit(static_cast<int>(number));
  if (task.kind == "sleep") usleep(static_cast<useconds_t>(number * 1000));
  while (task.kind == "pause") pause();
  if (task.kind == "return") return task.argument;
  return std::nullopt;
}

}  // namespace internal
}  // namespace holdfast
