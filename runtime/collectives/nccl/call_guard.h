// Ends the process when a call into NCCL does not come back. ncclCommAbort blocks, and has ways to
// hang that nothing in the process can end; so have the calls that stand before it. A thread of its
// own watches the one call that the owner of the communicators is in; past its time it logs which,
// and the process ends with ExitCode::kDeviceLost, to be replaced by its supervisor.
//
// Time that this process did not run (stopped, machine frozen) does not count: the watching thread
// adds up what it has seen itself.
//
// Threads: Arm and the end of a Scope from one thread (the owner), one Scope at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/statusor.h"

namespace holdfast {

class CallGuard {
 public:
  // `expired` is called in the guard's thread and does not return to anything useful: by default it
  // logs and ends the process. Tests give their own.
  using Expired = void (*)(const char* what, int64_t ms);
  static void EndProcess(const char* what, int64_t ms);
  static absl::StatusOr<std::unique_ptr<CallGuard>> Start(Expired expired = EndProcess);
  ~CallGuard();
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;

  class Scope {
   public:
    explicit Scope(CallGuard* guard) : guard_(guard) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    CallGuard* guard_;
  };
  // `what` (a literal) may take `ms`, to within two ticks.
  [[nodiscard]] Scope Arm(const char* what, int64_t ms);

  static constexpr int64_t kTickMs = 50;

 private:
  explicit CallGuard(Expired expired) : expired_(expired) {}
  void Run();

  const Expired expired_;
  std::thread thread_;
  std::mutex mu_;
  std::condition_variable wake_;
  bool stop_ = false;
  // Odd while armed; grows with each Arm and each end of one.
  std::atomic<uint64_t> serial_{0};
  std::atomic<const char*> what_{""};
  std::atomic<int64_t> allowed_ms_{0};
};

}  // namespace holdfast
