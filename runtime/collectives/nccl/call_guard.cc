#include "runtime/collectives/nccl/call_guard.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "runtime/base/clock.h"
#include "runtime/base/exit_code.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace holdfast {

void CallGuard::EndProcess(const char* what, int64_t ms) {
  LogError(what, " did not return within ", ms,
           " ms: NCCL holds this process and its GPU; the process ends, to be replaced");
  _exit(static_cast<int>(ExitCode::kDeviceLost));
}

absl::StatusOr<std::unique_ptr<CallGuard>> CallGuard::Start(Expired expired) {
  std::unique_ptr<CallGuard> guard(new CallGuard(expired));
  sigset_t all, before;  // signals are for other threads of the process
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  absl::Status started;
  try {
    guard->thread_ = std::thread([raw = guard.get()] { raw->Run(); });
  } catch (const std::system_error& e) {
    started =
        absl::ResourceExhaustedError(Cat("cannot start the thread that guards NCCL: ", e.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started.ok()) return started;
  return guard;
}

CallGuard::~CallGuard() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

CallGuard::Scope CallGuard::Arm(const char* what, int64_t ms) {
  what_.store(what, std::memory_order_relaxed);
  allowed_ms_.store(ms, std::memory_order_relaxed);
  serial_.fetch_add(1, std::memory_order_release);
  return Scope(this);
}

CallGuard::Scope::~Scope() { guard_->serial_.fetch_add(1, std::memory_order_release); }

void CallGuard::Run() {
  pthread_setname_np(pthread_self(), "hf-nccl-guard");
  uint64_t watched = 0;
  int64_t spent_ms = 0, last_ms = BootMs();
  std::unique_lock<std::mutex> lock(mu_);
  while (!stop_) {
    wake_.wait_for(lock, std::chrono::milliseconds(kTickMs));
    const int64_t now_ms = BootMs();
    const int64_t passed_ms = std::min(now_ms - last_ms, 2 * kTickMs);
    last_ms = now_ms;
    const uint64_t serial = serial_.load(std::memory_order_acquire);
    if (serial != watched) {
      watched = serial;
      spent_ms = 0;
    } else if (serial % 2 == 1) {
      spent_ms += passed_ms;
      const int64_t allowed_ms = allowed_ms_.load(std::memory_order_relaxed);
      if (spent_ms < allowed_ms) continue;
      const char* what = what_.load(std::memory_order_relaxed);
      if (serial_.load(std::memory_order_acquire) != serial) continue;  // it came back after all
      expired_(what, allowed_ms);
      spent_ms = 0;
    }
  }
}

}  // namespace holdfast
