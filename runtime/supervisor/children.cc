// The supervisor's judgement about its workers: start, stop, death, end of the run.
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_join.h"
#include "runtime/base/clock.h"
#include "runtime/base/digest.h"
#include "runtime/base/status.h"
#include "runtime/supervisor/supervisor_loop.h"

namespace holdfast {
namespace {

// A member of a generation that steps on without it, and silent for so long, will not come back by
// itself.
constexpr int64_t kLeftBehindMs = 15'000;

// Ends that another attempt would only repeat: the run ends with that code.
bool IsFinalVerdict(ExitCode code) {
  switch (code) {
    case ExitCode::kUsage:
    case ExitCode::kData:
    case ExitCode::kRefused:
    case ExitCode::kStore:
    case ExitCode::kNonFinite:
    case ExitCode::kCheckpoint:
    case ExitCode::kCorrupt:
      return true;
    default:
      return false;
  }
}

bool IsOrderly(ExitCode code) {
  return code == ExitCode::kInterrupted || code == ExitCode::kStopped || code == ExitCode::kLeft;
}

}  // namespace

void SupervisorLoop::StartDue(int64_t now_ms) {
  for (auto& [number, slot] : slots_) {
    if (slot.child == nullptr && slot.start_at_ms >= 0 && slot.start_at_ms <= now_ms)
      StartWorker(number, slot);
  }
}

void SupervisorLoop::StartWorker(int number, Slot& slot) {
  slot.start_at_ms = -1;
  WorkerStart start;
  start.program = parts_.program;
  start.slot = number;
  start.run = parts_.config->run;
  start.member_id = Cat(parts_.machine, "/", number, "/", Hex64(RandomNonce()));
  const RedisAddress& redis = parts_.redis;
  start.start_message = Json{{"type", "start"},
                             {"config", parts_.config->ToToml()},
                             {"slot", number},
                             {"member_id", start.member_id},
                             {"machine", parts_.machine},
                             {"local_workers", parts_.config->workers},
                             {"redis",
                              {{"host", redis.host},
                               {"port", redis.port},
                               {"user", redis.user},
                               {"password", redis.password}}},
                             {"run", parts_.config->run},
                             {"may_found", parts_.embedded != nullptr}}
                            .dump();
  auto child = WorkerChild::Start(start);
  if (!child.ok()) {
    // The program itself cannot run: no other attempt would go better.
    End(ExitCode::kGaveUp,
        Cat("worker ", number, " cannot be started: ", StdView(child.status().message())));
    BeginDrain("a worker cannot be started", parts_.config->grace_ms);
    return;
  }
  slot.child = std::move(*child);
  parts_.report->Event(
      "start", LogLevel::kDebug, Cat("worker ", number, " started"),
      {{"worker", number}, {"pid", slot.child->pid()}, {"member", start.member_id}});
}

void SupervisorLoop::Reap(Slot& slot) {
  while (slot.child != nullptr) {
    const ChildChange change = PollChild(slot.child->pid());
    switch (change.kind) {
      case ChildChange::Kind::kNone:
        return;
      case ChildChange::Kind::kStopped:
        OnStopped(*slot.child, change.value);
        break;
      case ChildChange::Kind::kContinued:
        OnContinued(*slot.child);
        break;
      case ChildChange::Kind::kExited:
      case ChildChange::Kind::kKilled:
        OnEnded(slot, change);
        break;
    }
  }
}

void SupervisorLoop::OnStopped(WorkerChild& child, int signal_number) {
  if (child.stopped_since_ms >= 0) return;
  child.stopped_since_ms = BootMs();
  child.stop_signal = SignalName(signal_number);
  parts_.report->Event(
      "stopped", LogLevel::kWarning,
      Cat("worker ", child.slot(), " (pid ", child.pid(), ") was stopped by ", child.stop_signal,
          "; it is replaced unless it continues within ", parts_.config->detect_ms, " ms"),
      {{"worker", child.slot()}, {"pid", child.pid()}});
}

void SupervisorLoop::OnContinued(WorkerChild& child) {
  if (child.stopped_since_ms < 0) return;
  const int64_t for_ms = BootMs() - child.stopped_since_ms;
  child.stopped_since_ms = -1;
  parts_.report->Event("continued", LogLevel::kInfo,
                       Cat("worker ", child.slot(), " continued after ", for_ms, " ms"),
                       {{"worker", child.slot()}, {"stopped_ms", for_ms}});
}

void SupervisorLoop::KillOverdue(int64_t now_ms) {
  const int64_t behind_ms = std::max(kLeftBehindMs, 10 * parts_.config->detect_ms);
  for (auto& [number, slot] : slots_) {
    if (slot.child == nullptr || !slot.child->killed_why.empty()) continue;
    WorkerChild& child = *slot.child;
    if (child.stopped_since_ms >= 0 &&
        now_ms - child.stopped_since_ms >= parts_.config->detect_ms) {
      child.Kill(
          Cat("stopped by ", child.stop_signal, " for ", now_ms - child.stopped_since_ms, " ms"));
    } else if (child.ever_joined && child.generation < newest_generation_ &&
               child.last_message_ms < newest_since_ms_ && now_ms - newest_since_ms_ >= behind_ms) {
      child.Kill(Cat("silent for ", now_ms - child.last_message_ms, " ms while generation ",
                     newest_generation_, " goes on without it"));
    }
  }
  if (drain_by_ms_ >= 0 && now_ms >= drain_by_ms_) {
    drain_by_ms_ = -1;
    killed_at_grace_ = true;
    parts_.report->Event(
        "grace", LogLevel::kError,
        Cat("the grace time of ", time_up_ ? TimeReserveMs() : parts_.config->grace_ms,
            " ms is over: the farewell save did not finish; the newest saved checkpoint is ",
            parts_.report->saved_step() >= 0 ? Cat("step ", parts_.report->saved_step())
                                             : "that of an earlier start, if there is one"));
    KillAll("grace time over");
  }
}

void SupervisorLoop::BeginDrain(const std::string& cause, int64_t grace_ms) {
  if (draining_) return;
  draining_ = true;
  drain_cause_ = cause;
  drain_by_ms_ = BootMs() + grace_ms;
  parts_.report->Event("drain", LogLevel::kInfo,
                       Cat(cause, ": the workers save and leave, within ", grace_ms / 1000,
                           " s; a second signal ends them at once"),
                       {{"cause", cause}});
  for (auto& [number, slot] : slots_) {
    slot.start_at_ms = -1;
    if (slot.child != nullptr) slot.child->Drain(cause);
  }
}

void SupervisorLoop::KillAll(const std::string& why) {
  for (auto& [number, slot] : slots_) {
    slot.start_at_ms = -1;
    if (slot.child != nullptr) slot.child->Kill(why);
  }
}

void SupervisorLoop::End(ExitCode code, const std::string& text) {
  if (forced_ == nullptr) forced_ = std::make_unique<Ending>(Ending{code, text});
}

bool SupervisorLoop::OthersTrain(const WorkerChild& child) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const auto& entry) {
    return entry.second.child != nullptr && entry.second.child.get() != &child &&
           entry.second.child->ever_joined;
  });
}

void SupervisorLoop::OnEnded(Slot& slot, const ChildChange& change) {
  WorkerChild& child = *slot.child;
  // What it said before it ended lies in the pipes.
  for (int i = 0; i < 1000 && child.ReadMessages([&](const Json& m) { OnMessage(child, m); });
       ++i) {
  }
  ReadChild(child);
  child.Reaped();
  const bool exited = change.kind == ChildChange::Kind::kExited;
  const auto code = static_cast<ExitCode>(change.value);
  const bool done = exited && code == ExitCode::kOk && FlagOf(child.final, "finished");
  const bool in_order = exited && child.final.is_object() &&
                        (IsOrderly(code) || IsFinalVerdict(code) || (code == ExitCode::kStoreLost));
  parts_.store->Certify(child.member_id(),
                        exited ? Cat("exit code ", change.value) : SignalName(change.value));
  if (done) {
    orderly_.insert(ExitCode::kOk);
    slot.child.reset();
  } else if (in_order) {
    OnOrderlyEnd(slot, code);
  } else {
    OnCrash(slot, change);
  }
  if (refound_ && !Busy() && !draining_ && !parts_.report->finished()) {
    refound_ = false;
    const int64_t now_ms = BootMs();
    for (auto& [number, entry] : slots_) entry.start_at_ms = now_ms;
  }
}

void SupervisorLoop::OnOrderlyEnd(Slot& slot, ExitCode code) {
  const int number = slot.child->slot();
  const std::string text = TextOf(slot.child->final, "text");
  slot.child.reset();
  if (code == ExitCode::kStoreLost && parts_.embedded != nullptr && !draining_) {
    refound_ = true;  // its Redis is this supervisor's own and runs again: all come back once all
                      // have left
    return;
  }
  orderly_.insert(code);
  if (IsFinalVerdict(code) || code == ExitCode::kStoreLost) {
    End(code, Cat("worker ", number, ": ", text.empty() ? ExitCodeText(code) : text));
    BeginDrain(Cat("worker ", number, " ended: ", ExitCodeText(code)), parts_.config->grace_ms);
    return;
  }
  if (draining_ || code != ExitCode::kLeft) return;
  const int left = parts_.report->world_size() - 1;
  const bool replace = left < parts_.config->min_workers;
  parts_.report->Event("left", LogLevel::kInfo,
                       Cat("worker ", number, " left on request; ",
                           replace ? Cat("it is replaced, as only ", left,
                                         " would stay of at least ", parts_.config->min_workers)
                                   : Cat("the run goes on with ", left, "; it is not replaced")),
                       {{"worker", number}, {"replaced", replace}});
  if (replace) slot.start_at_ms = BootMs();
}

std::string SupervisorLoop::Describe(const WorkerChild& child, const ChildChange& change) {
  const int64_t memory_kills = MemoryLimitKills();
  const bool memory = change.kind == ChildChange::Kind::kKilled && change.value == SIGKILL &&
                      child.killed_why.empty() && memory_kills > memory_kills_;
  memory_kills_ = memory_kills;
  std::string how = change.kind == ChildChange::Kind::kExited ? Cat("exit code ", change.value)
                                                              : SignalName(change.value);
  if (change.kind == ChildChange::Kind::kExited && change.value == 0)
    how = "exit code 0 before the run was finished";
  if (change.kind == ChildChange::Kind::kExited && !TextOf(child.final, "text").empty())
    how += Cat(": ", TextOf(child.final, "text"));
  if (memory) how += " (memory limit: the kernel's counter of such kills rose)";
  if (!child.killed_why.empty()) how += Cat(" by the supervisor (", child.killed_why, ")");
  char host[256] = "";
  (void)gethostname(host, sizeof host - 1);
  return Cat("worker ", child.slot(), " (", child.rank >= 0 ? Cat("rank ", child.rank, ", ") : "",
             "pid ", child.pid(), " on ", host, ") died ",
             child.ever_joined ? Cat("after step ", child.step) : "before it joined", ": ", how);
}

void SupervisorLoop::OnCrash(Slot& slot, const ChildChange& change) {
  WorkerChild& child = *slot.child;
  const int64_t now_ms = BootMs();
  const int number = child.slot();
  const std::string text = Describe(child, change);
  const bool plain_kill = change.kind == ChildChange::Kind::kKilled && change.value == SIGKILL &&
                          text.find("memory limit") == std::string::npos;
  const Death death{number, child.ever_joined, child.generation, plain_kill, now_ms};
  const int64_t at_ms = child.stopped_since_ms >= 0 ? child.stopped_since_ms : now_ms;
  const Json details = {{"pid", child.pid()},
                        {"step", child.step},
                        {"rank", child.rank},
                        {"how", text},
                        {"last_lines", std::vector<std::string>(child.last_lines().begin(),
                                                                child.last_lines().end())}};
  const bool others = OthersTrain(child);
  const bool over = draining_ || forced_ != nullptr || parts_.report->finished() ||
                    orderly_.count(ExitCode::kStopped) > 0;
  if (first_failure_.empty() && !over) {
    first_failure_ = text;
    if (!child.last_lines().empty())
      first_failure_ +=
          Cat("\n  its last lines:\n    ", absl::StrJoin(child.last_lines(), "\n    "));
  }
  if (over) {
    parts_.report->Event("death", LogLevel::kWarning, text, details);
  } else {
    parts_.report->OnFault(number, child.generation, text, at_ms, details);
  }
  slot.child.reset();
  if (over) return;
  const Verdict verdict = policy_.OnDeath(death, others);
  if (verdict.kind == Verdict::Kind::kRestart) {
    if (!refound_) slot.start_at_ms = verdict.at_ms;
    if (verdict.at_ms > now_ms) {
      parts_.report->Event(
          "restart", LogLevel::kInfo,
          Cat("worker ", number, " is started again in ", verdict.at_ms - now_ms, " ms"));
    }
  } else if (verdict.kind == Verdict::Kind::kSetAside) {
    parts_.report->Event("set_aside", LogLevel::kError,
                         Cat(verdict.why, ": set aside, the others go on"), {{"worker", number}});
  } else {
    End(ExitCode::kGaveUp, Cat(verdict.why, ". First failure: ", first_failure_));
    BeginDrain("gave up", parts_.config->grace_ms);
  }
}

Ending SupervisorLoop::Result() const {
  if (forced_ != nullptr) return *forced_;
  const auto has = [&](ExitCode code) { return orderly_.count(code) > 0; };
  const std::string at = Cat("step ", parts_.report->live_step());
  // A newcomer that hears "the run has ended" while others are being stopped does not make it
  // finished.
  const bool all_steps = parts_.report->live_step() >= parts_.config->steps;
  if ((has(ExitCode::kOk) || parts_.report->finished()) && (all_steps || !has(ExitCode::kStopped)))
    return {ExitCode::kOk, Cat("the run is finished at ", at)};
  if (has(ExitCode::kStopped))
    return {ExitCode::kStopped, Cat("stopped on request at ", at, "; the same command resumes")};
  if (killed_at_grace_) {
    return {ExitCode::kInterrupted, Cat("interrupted (", drain_cause_, ") at ", at,
                                        "; the farewell save did not finish; the same command "
                                        "resumes from the newest saved checkpoint")};
  }
  if (has(ExitCode::kLeft) && !has(ExitCode::kInterrupted) && parts_.embedded == nullptr) {
    return {ExitCode::kLeft,
            Cat("this machine left on request at ", at, "; the run goes on elsewhere")};
  }
  if (time_up_) {
    return {ExitCode::kTimeUp, Cat("the time of --max-time is used up at ", at,
                                   "; saved, and the same command resumes")};
  }
  if (draining_ || has(ExitCode::kInterrupted) || has(ExitCode::kLeft)) {
    return {ExitCode::kInterrupted,
            Cat("interrupted", drain_cause_.empty() ? "" : Cat(" (", drain_cause_, ")"), " at ", at,
                "; the same command resumes")};
  }
  return {ExitCode::kFailed, "no worker is left"};
}

}  // namespace holdfast
