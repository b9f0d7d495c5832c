#include "chaos/injector.h"

#include <signal.h>
#include <string.h>

#include <fstream>

#include "absl/strings/numbers.h"
#include "runtime/base/digest.h"
#include "runtime/base/status.h"
#include "runtime/base/text.h"

namespace holdfast::chaos {
namespace {

constexpr int64_t kProofMs = 5000;

// Same pid and same start: the same incarnation.
bool StillThere(const ProcessInfo& process) {
  const auto now = ReadProcess(process.pid);
  return now && now->start_ticks == process.start_ticks && now->state != 'Z' && now->state != 'X';
}

bool InState(const ProcessInfo& process, char state) {
  const auto now = ReadProcess(process.pid);
  return now && now->start_ticks == process.start_ticks && now->state == state;
}

int SignalOf(FaultKind kind) {
  switch (kind) {
    case FaultKind::kStopWorker:
      return SIGSTOP;
    case FaultKind::kContinueWorker:
      return SIGCONT;
    case FaultKind::kTermWorker:
    case FaultKind::kTermSupervisor:
      return SIGTERM;
    default:
      return SIGKILL;
  }
}

bool HitsWorker(FaultKind kind) {
  return kind == FaultKind::kKillWorker || kind == FaultKind::kStopWorker ||
         kind == FaultKind::kContinueWorker || kind == FaultKind::kTermWorker;
}

absl::StatusOr<std::vector<ProcessInfo>> Victims(ChildProcess& run, const Fault& fault,
                                                 Deadline deadline) {
  if (fault.kind == FaultKind::kKillAll) return MarkedProcesses(run.mark());
  if (!HitsWorker(fault.kind)) {
    const auto supervisor = ReadProcess(run.pid());
    if (!supervisor || run.Poll()) return absl::FailedPreconditionError("the supervisor has ended");
    return std::vector<ProcessInfo>{*supervisor};
  }
  // A worker that just died is started again after a moment.
  std::optional<WorkerInfo> worker;
  WaitUntil(deadline, [&] {
    worker = WorkerInSlot(run.pid(), fault.slot);
    return worker.has_value() || run.Poll().has_value();
  });
  if (!worker) return absl::FailedPreconditionError(Cat("no worker in slot ", fault.slot));
  return std::vector<ProcessInfo>{worker->process};
}

absl::Status Prove(const Fault& fault, const std::vector<ProcessInfo>& victims, Proof* proof) {
  const int signal = SignalOf(fault.kind);
  for (const ProcessInfo& victim : victims) {
    bool done = true;
    const Deadline deadline = Deadline::After(kProofMs);
    if (signal == SIGKILL)
      done = WaitUntil(
          deadline, [&] { return !StillThere(victim); }, 1);
    if (signal == SIGSTOP)
      done = WaitUntil(
          deadline, [&] { return InState(victim, 'T'); }, 1);
    if (signal == SIGCONT)
      done = WaitUntil(
          deadline, [&] { return !InState(victim, 'T'); }, 1);
    if (!done)
      return absl::InternalError(Cat(FaultName(fault.kind), " had no effect on ", victim.Text()));
    if (!proof->text.empty()) proof->text += "; ";
    proof->text += Cat(FaultName(fault.kind),
                       HitsWorker(fault.kind) ? Cat(" in slot ", fault.slot) : std::string(),
                       ", pid ", victim.pid, ", at step ", proof->step);
  }
  return absl::OkStatus();
}

absl::Status WaitForMoment(ChildProcess& run, const std::string& dir, const Fault& fault,
                           Deadline deadline) {
  if (fault.at_step >= 0) return WaitForStep(run, dir, fault.at_step, deadline).status();
  const Deadline moment = Deadline::After(fault.after_ms);
  WaitUntil(
      moment.Capped(deadline), [&] { return run.Poll().has_value(); }, 1);
  if (run.Poll())
    return absl::FailedPreconditionError(
        Cat("the run has ended before the fault: ", run.Poll()->Text()));
  if (!moment.passed())
    return absl::DeadlineExceededError("the fault's moment lies behind the deadline");
  return absl::OkStatus();
}

}  // namespace

const char* FaultName(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKillWorker:
      return "SIGKILL of the worker";
    case FaultKind::kStopWorker:
      return "SIGSTOP of the worker";
    case FaultKind::kContinueWorker:
      return "SIGCONT of the worker";
    case FaultKind::kTermWorker:
      return "SIGTERM of the worker";
    case FaultKind::kTermSupervisor:
      return "SIGTERM of the supervisor";
    case FaultKind::kKillSupervisor:
      return "SIGKILL of the supervisor";
    case FaultKind::kKillAll:
      return "SIGKILL of everything";
  }
  return "?";
}

int64_t StepWatch::Newest() {
  std::ifstream file(path_, std::ios::binary);
  if (!file) return newest_;
  file.seekg(offset_);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  offset_ += static_cast<int64_t>(text.size());
  partial_ += text;
  for (size_t end; (end = partial_.find('\n')) != std::string::npos; partial_.erase(0, end + 1)) {
    // {"step":12,...: cheap on purpose, this runs each two milliseconds.
    const size_t key = partial_.find("\"step\":");
    if (key == std::string::npos || key > end) continue;
    const size_t from = partial_.find_first_of("0123456789", key);
    const size_t to = partial_.find_first_not_of("0123456789", from);
    int64_t step;
    if (from < end && absl::SimpleAtoi(partial_.substr(from, to - from), &step)) newest_ = step;
  }
  return newest_;
}

absl::StatusOr<int64_t> WaitForStep(ChildProcess& run, const std::string& dir, int64_t step,
                                    Deadline deadline) {
  StepWatch watch(dir);
  int64_t newest = 0;
  const bool seen = WaitUntil(deadline, [&] {
    newest = watch.Newest();
    return newest >= step || run.Poll().has_value();
  });
  if (newest >= step) return newest;
  if (run.Poll()) {
    return absl::FailedPreconditionError(Cat("the run has ended at step ", newest, ", before step ",
                                             step, ": ", run.Poll()->Text()));
  }
  (void)seen;
  return absl::DeadlineExceededError(Cat("step ", step, " was not reached; newest step: ", newest));
}

absl::StatusOr<Proof> Inject(ChildProcess& run, const std::string& dir, const Fault& fault,
                             Deadline deadline) {
  return InjectTogether(run, dir, {fault}, deadline);
}

absl::StatusOr<Proof> InjectTogether(ChildProcess& run, const std::string& dir,
                                     const std::vector<Fault>& faults, Deadline deadline) {
  if (faults.empty()) return absl::InvalidArgumentError("no fault");
  HF_RETURN_IF_ERROR(WaitForMoment(run, dir, faults[0], deadline));
  std::vector<std::vector<ProcessInfo>> victims;
  for (const Fault& fault : faults) {
    HF_ASSIGN_OR_RETURN(auto hit, Victims(run, fault, deadline));
    victims.push_back(std::move(hit));
  }
  Proof proof;
  proof.step = StepWatch(dir).Newest();
  proof.done_ms = BootMs();
  for (size_t i = 0; i < faults.size(); ++i) {
    for (const ProcessInfo& victim : victims[i]) {
      // Where everything is killed, the first death may take the others along before their own
      // signal.
      if (kill(victim.pid, SignalOf(faults[i].kind)) != 0 &&
          faults[i].kind != FaultKind::kKillAll) {
        return absl::FailedPreconditionError(
            Cat(victim.Text(), " was gone before the fault: ", strerror(errno)));
      }
      proof.pids.push_back(victim.pid);
    }
  }
  for (size_t i = 0; i < faults.size(); ++i)
    HF_RETURN_IF_ERROR(Prove(faults[i], victims[i], &proof));
  return proof;
}

int64_t Dice::Draw(int64_t low, int64_t high) {
  const uint64_t range = static_cast<uint64_t>(high - low) + 1;
  return low + static_cast<int64_t>(Mix64(Mix64(seed_) ^ count_++) % range);
}

}  // namespace holdfast::chaos
