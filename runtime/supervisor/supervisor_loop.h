// The supervisor's event loop: processes, signals, timers. Private to this folder; see supervisor.h
// for the rules.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "runtime/metrics/page_server.h"
#include "runtime/supervisor/console.h"
#include "runtime/supervisor/embedded_redis.h"
#include "runtime/supervisor/report.h"
#include "runtime/supervisor/restart_policy.h"
#include "runtime/supervisor/store_link.h"
#include "runtime/supervisor/view_publisher.h"
#include "runtime/supervisor/worker_child.h"

namespace holdfast {

// What the loop works with; all outlive it.
struct LoopParts {
  const Config* config;
  std::string machine, program;
  RedisAddress redis;
  EmbeddedRedis* embedded;  // null: an outside Redis
  StoreLink* store;
  Report* report;
  Console* console;
  ViewPublisher* publisher;
  metrics::PageServer* metrics;  // null: no page is wanted
  int signal_fd;
};

struct Ending {
  ExitCode code = ExitCode::kFailed;
  std::string text;
};

class SupervisorLoop {
 public:
  explicit SupervisorLoop(const LoopParts& parts)
      : parts_(parts), policy_(parts.config->restarts) {}
  // Until every worker has ended and none is to be started again.
  Ending Run();

 private:
  struct Slot {
    std::unique_ptr<WorkerChild> child;
    int64_t start_at_ms = 0;  // -1: stays away
  };

  // supervisor_loop.cc: waiting
  void Wait(int64_t now_ms);
  void ReadChild(WorkerChild& child);
  void OnMessage(WorkerChild& child, const Json& message);
  void OnSignal(int number);
  void Tick(int64_t now_ms);
  void Publish(int64_t now_ms);
  void Suspend();
  void CheckRedis();
  int64_t NextWakeMs(int64_t now_ms) const;
  bool Busy() const;

  // children.cc: starting, reaping, judging
  void StartDue(int64_t now_ms);
  void StartWorker(int slot, Slot& entry);
  void Reap(Slot& entry);
  void OnStopped(WorkerChild& child, int signal_number);
  void OnContinued(WorkerChild& child);
  void OnEnded(Slot& entry, const ChildChange& change);
  void OnOrderlyEnd(Slot& entry, ExitCode code);
  void OnCrash(Slot& entry, const ChildChange& change);
  void KillOverdue(int64_t now_ms);
  int64_t TimeReserveMs() const;
  void BeginDrain(const std::string& cause, int64_t grace_ms);
  void KillAll(const std::string& why);
  void End(ExitCode code, const std::string& text);
  std::string Describe(const WorkerChild& child, const ChildChange& change);
  bool OthersTrain(const WorkerChild& child) const;
  Ending Result() const;

  const LoopParts parts_;
  RestartPolicy policy_;
  std::map<int, Slot> slots_;
  std::set<ExitCode> orderly_;      // codes with which workers ended in order
  std::unique_ptr<Ending> forced_;  // the run ends with this, whatever follows
  std::string first_failure_;       // since the last committed step
  bool draining_ = false, killed_at_grace_ = false;
  std::string drain_cause_;
  int64_t drain_by_ms_ = -1;
  int64_t time_up_ms_ = -1;  // when the drain for --max-time begins
  bool time_up_ = false;
  bool refound_ = false;  // the embedded Redis came back empty: all leave, then all start again
  int64_t newest_generation_ = 0, newest_since_ms_ = 0;  // stepping, as reported by any worker
  int64_t memory_kills_ = 0;
  int64_t last_draw_ms_ = 0, last_check_ms_ = 0;
};

}  // namespace holdfast
