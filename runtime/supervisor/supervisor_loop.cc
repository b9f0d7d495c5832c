#include "runtime/supervisor/supervisor_loop.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {
constexpr int64_t kDrawMs = 500, kCheckMs = 1000;
}  // namespace

Ending SupervisorLoop::Run() {
  memory_kills_ = MemoryLimitKills();
  const int64_t start_ms = BootMs();
  for (int slot = 0; slot < parts_.config->workers; ++slot) slots_[slot].start_at_ms = start_ms;
  if (parts_.config->max_time_ms > 0)
    time_up_ms_ = start_ms + parts_.config->max_time_ms - TimeReserveMs();
  while (true) {
    const int64_t now_ms = BootMs();
    StartDue(now_ms);
    if (!Busy()) break;
    Wait(now_ms);
    for (auto& [number, slot] : slots_) Reap(slot);
    Tick(BootMs());
  }
  return Result();
}

bool SupervisorLoop::Busy() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const auto& entry) {
    return entry.second.child != nullptr || entry.second.start_at_ms >= 0;
  });
}

int64_t SupervisorLoop::NextWakeMs(int64_t now_ms) const {
  int64_t next = now_ms + kCheckMs;
  if (parts_.console->live()) next = std::min(next, last_draw_ms_ + kDrawMs);
  if (drain_by_ms_ >= 0) next = std::min(next, drain_by_ms_);
  if (time_up_ms_ >= 0) next = std::min(next, time_up_ms_);
  for (const auto& [number, slot] : slots_) {
    if (slot.child == nullptr && slot.start_at_ms >= 0) next = std::min(next, slot.start_at_ms);
    if (slot.child != nullptr && slot.child->stopped_since_ms >= 0) {
      next = std::min(next, slot.child->stopped_since_ms + parts_.config->detect_ms);
    }
  }
  return next;
}

// Sleeps until a signal (SIGCHLD among them), a message, an output line, or the next timer.
void SupervisorLoop::Wait(int64_t now_ms) {
  std::vector<pollfd> fds = {{parts_.signal_fd, POLLIN, 0}};
  std::vector<WorkerChild*> children;
  for (auto& [number, slot] : slots_) {
    if (slot.child == nullptr) continue;
    fds.push_back({slot.child->channel_fd(), POLLIN, 0});  // negative ones are ignored by poll
    fds.push_back({slot.child->output_fd(), POLLIN, 0});
    children.push_back(slot.child.get());
  }
  const int64_t timeout_ms = std::max<int64_t>(0, NextWakeMs(now_ms) - now_ms);
  if (poll(fds.data(), fds.size(), static_cast<int>(timeout_ms)) <= 0) return;
  signalfd_siginfo info;
  while (read(parts_.signal_fd, &info, sizeof info) == sizeof info)
    OnSignal(static_cast<int>(info.ssi_signo));
  for (size_t i = 0; i < children.size(); ++i) {
    if (fds[1 + 2 * i].revents != 0 || fds[2 + 2 * i].revents != 0) ReadChild(*children[i]);
  }
}

void SupervisorLoop::ReadChild(WorkerChild& child) {
  const std::string mark = Cat("worker ", child.slot());
  (void)child.ReadOutput([&](const std::string& line) {
    const bool marked =
        line.find(mark) != std::string::npos;  // a log line of the runtime says who speaks
    parts_.console->Raw(marked ? line : Cat(mark, ": ", line));
  });
  (void)child.ReadMessages([&](const Json& message) { OnMessage(child, message); });
}

void SupervisorLoop::OnMessage(WorkerChild& child, const Json& message) {
  const std::string type = TextOf(message, "type");
  if (type == "joined") {
    child.generation = IntegerOf(message, "generation");
    child.rank = IntegerOf(message, "rank", -1);
    child.step = IntegerOf(message, "step");
    child.ever_joined = true;
  } else if (type == "step") {
    child.step = std::max(child.step, IntegerOf(message, "step"));
    policy_.OnProgress(child.step);
  } else if (type == "first_step" && IntegerOf(message, "generation") > newest_generation_) {
    newest_generation_ = IntegerOf(message, "generation");
    newest_since_ms_ = BootMs();
  } else if (type == "final") {
    child.final = message;
  }
  const int64_t before = parts_.report->committed_step();
  parts_.report->OnMessage(child.slot(), message);
  if (parts_.report->committed_step() > before) first_failure_.clear();
  if (!parts_.report->corrupt().empty() && forced_ == nullptr) {
    // What these workers hold cannot be trusted: nothing of it may be saved over good checkpoints.
    End(ExitCode::kCorrupt, parts_.report->corrupt());
    KillAll("replicas disagree");
  }
}

void SupervisorLoop::OnSignal(int number) {
  if (number == SIGCHLD) {
    // Workers are polled after every wake-up; Redis first, as its death explains theirs.
    if (forced_ == nullptr) CheckRedis();
    return;
  }
  if (number == SIGTSTP) return Suspend();
  if (number == SIGWINCH) return parts_.console->Redraw();
  const std::string name = SignalName(number);
  if (!draining_) {
    BeginDrain(name, parts_.config->grace_ms);
    return;
  }
  parts_.report->Event(
      "signal", LogLevel::kWarning,
      Cat(name, " again: the workers are ended at once, what was not saved yet is computed again"));
  KillAll(Cat("second ", name));
}

// Ctrl-Z: everything of this run sleeps and wakes together, so that no part takes another for
// frozen.
void SupervisorLoop::Suspend() {
  parts_.report->Event("signal", LogLevel::kInfo,
                       "SIGTSTP: workers and Redis stop until the supervisor is continued");
  for (auto& [number, slot] : slots_) {
    if (slot.child != nullptr) kill(slot.child->pid(), SIGSTOP);
  }
  if (parts_.embedded != nullptr && parts_.embedded->pid() > 0)
    kill(parts_.embedded->pid(), SIGSTOP);
  parts_.console->Leave(false);  // the shell gets the terminal as it was
  raise(SIGSTOP);
  if (parts_.embedded != nullptr && parts_.embedded->pid() > 0)
    kill(parts_.embedded->pid(), SIGCONT);
  for (auto& [number, slot] : slots_) {
    if (slot.child == nullptr) continue;
    while (PollChild(slot.child->pid()).kind == ChildChange::Kind::kStopped) {
    }
    kill(slot.child->pid(), SIGCONT);
    slot.child->stopped_since_ms = -1;
  }
}

void SupervisorLoop::CheckRedis() {
  if (parts_.embedded == nullptr) return;
  const std::string how = parts_.embedded->EndedHow();
  if (how.empty()) return;
  parts_.report->Event(
      "store", LogLevel::kError,
      Cat("the embedded Redis ended (", how,
          "); it is started again, empty: the workers save, leave and found anew"));
  refound_ = true;
  const absl::Status status = parts_.embedded->Restart(Deadline::After(5000));
  if (!status.ok()) {
    parts_.report->Event(
        "store", LogLevel::kError,
        Cat("the embedded Redis cannot be started again: ", StdView(status.message())));
    End(ExitCode::kStoreLost, "the embedded Redis was lost and cannot be started again");
    BeginDrain("Redis lost", parts_.config->grace_ms);
  }
}

// Of --max-time, what is left for the last step and the farewell save.
int64_t SupervisorLoop::TimeReserveMs() const {
  const int64_t all_ms = parts_.config->max_time_ms;
  return std::min({parts_.config->grace_ms, all_ms / 2, std::max<int64_t>(5000, all_ms / 10)});
}

// What others see of this machine: once a second, whether anybody looks or not.
void SupervisorLoop::Publish(int64_t now_ms) {
  const view::Snapshot snapshot = parts_.report->Snapshot(now_ms);
  parts_.publisher->Post(view::ToJson(snapshot));
  if (parts_.metrics != nullptr) parts_.metrics->SetPage(parts_.report->Metrics(snapshot));
}

void SupervisorLoop::Tick(int64_t now_ms) {
  if (time_up_ms_ >= 0 && now_ms >= time_up_ms_) {
    time_up_ms_ = -1;
    time_up_ = !draining_;
    BeginDrain("the time of --max-time is nearly over", TimeReserveMs());
  }
  KillOverdue(now_ms);
  if (now_ms - last_check_ms_ >= kCheckMs) {
    last_check_ms_ = now_ms;
    if (forced_ == nullptr) CheckRedis();
    if (!parts_.console->live()) parts_.report->Tick(now_ms);
    Publish(now_ms);
  }
  if (parts_.console->live() && now_ms - last_draw_ms_ >= kDrawMs) {
    last_draw_ms_ = now_ms;
    parts_.report->Tick(now_ms);
  }
}

}  // namespace holdfast
