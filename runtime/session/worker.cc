#include "runtime/session/worker.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "nlohmann/json.hpp"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/session/session.h"

namespace holdfast {
namespace {

std::atomic<bool> term_received{false};

void OnTerm(int) { term_received.store(true); }

void SetSignals() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGINT, SIG_IGN);  // Ctrl-C goes to the whole group: the supervisor decides and tells us
  struct sigaction action = {};
  action.sa_handler = OnTerm;
  sigaction(SIGTERM, &action, nullptr);
}

absl::StatusOr<StartMessage> ReceiveStart(Channel& channel) {
  const Deadline deadline = Deadline::After(30'000);
  while (!deadline.passed()) {
    pollfd p{channel.fd(), POLLIN, 0};
    poll(&p, 1, 200);
    auto message = channel.Receive();
    if (message.ok()) return ParseStartMessage(*message);
    if (!absl::IsNotFound(message.status())) return message.status();
  }
  return absl::DeadlineExceededError("the supervisor sent no start message within 30 s");
}

// The control thread: the supervisor's messages, SIGTERM, and the watchdog over the main thread.
class Control {
 public:
  Control(Channel& channel, Session& session) : channel_(channel), session_(session) {
    thread_ = std::thread([this] { Loop(); });
  }
  ~Control() {
    quit_.store(true);
    thread_.join();
  }

 private:
  void Loop() {
    while (!quit_.load()) {
      pollfd p{channel_.fd(), POLLIN, 0};
      poll(&p, 1, 50);
      if (p.revents != 0) Take();
      if (term_received.load()) session_.RequestDrain(DrainScope::kWorker);
      session_.Tick();
      channel_.Pump();
      Watch();
    }
  }

  void Take() {
    const auto message = channel_.Receive();
    if (absl::IsUnavailable(message.status())) {
      // Nobody reaps, certifies or replaces us any more: the same end as the parent-death signal.
      LogError("the supervisor has gone; this worker ends with it");
      _exit(static_cast<int>(ExitCode::kFailed));
    }
    if (!message.ok()) return;
    const auto j = nlohmann::json::parse(*message, nullptr, false);
    if (j.is_object() && j.value("type", "") == "drain")
      session_.RequestDrain(DrainScope::kMachine);
  }

  // A main thread that makes no progress for twice its own bound is stuck (in a model, a driver, a
  // disk): the process ends so that its supervisor can replace it. Its lease and its beats would go
  // on for ever.
  void Watch() {
    const int64_t since = session_.progress_ms();
    if (since == 0 || BootMs() - since < 2 * session_.stall_ms()) return;
    LogError("no progress for ", (BootMs() - since) / 1000,
             " s (ten times the usual step, at least 10 s, twice): ending to be replaced");
    _exit(static_cast<int>(ExitCode::kFailed));
  }

  Channel& channel_;
  Session& session_;
  std::atomic<bool> quit_{false};
  std::thread thread_;
};

}  // namespace

ExitCode RunWorker(Channel& channel, const Trainer& trainer) {
  SetSignals();
  TimeLedger startup;
  auto fail = [&](const absl::Status& status, ExitCode code) {
    FinalReport report;
    report.exit = code;
    report.text = std::string(status.message());
    LogError(report.text);
    Reporter(channel).Final(report, startup);
    return code;
  };
  const auto start = ReceiveStart(channel);
  if (!start.ok()) return fail(start.status(), ExitCode::kFailed);
  SetLogName(Cat("worker ", start->slot));
  ExitCode code = ExitCode::kFailed;
  auto session = Session::Create(*start, trainer, channel, &code);
  if (!session.ok()) return fail(session.status(), code);
  FinalReport report;
  {
    Control control(channel, **session);
    report = (*session)->Run();
  }
  Reporter(channel).Final(report, (*session)->time());
  return report.exit;
}

}  // namespace holdfast
