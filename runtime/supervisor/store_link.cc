#include "runtime/supervisor/store_link.h"

#include <signal.h>

#include <algorithm>
#include <chrono>

#include "runtime/base/log.h"
#include "runtime/supervisor/exit_status.h"

namespace holdfast {

StoreLink::StoreLink(ConnectObserver connect, rendezvous::MembershipOptions options)
    : connect_(std::move(connect)), options_(std::move(options)) {}

StoreLink::~StoreLink() {
  if (thread_.joinable()) (void)Finish(Deadline::After(0));
}

absl::Status StoreLink::Connect(Deadline deadline) {
  auto observer = connect_(options_, deadline);
  if (!observer.ok()) {
    return WithExit(Annotate(observer.status(),
                             Cat("Redis at ", options_.redis_host, ":", options_.redis_port)),
                    ExitCode::kStore);
  }
  observer_ = std::move(*observer);
  // Signals are the main thread's business.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  thread_ = std::thread([this] { Work(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return absl::OkStatus();
}

void StoreLink::Certify(std::string member_id, std::string how) {
  std::lock_guard lock(mutex_);
  if (queue_.size() == kQueueMax) queue_.pop_front();
  queue_.push_back({std::move(member_id), std::move(how)});
  wake_.notify_one();
}

absl::Status StoreLink::Finish(Deadline deadline) {
  if (!thread_.joinable()) return absl::OkStatus();
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    end_by_ms_ = deadline.at_ms();
    wake_.notify_one();
  }
  thread_.join();
  if (observer_ == nullptr) return absl::UnavailableError("no connection to Redis at the end");
  if (deadline.passed()) return absl::DeadlineExceededError("no time left to clean up in Redis");
  return observer_->CleanUp(options_.machine);
}

absl::Status StoreLink::Try(const Task& task) {
  if (observer_ == nullptr) {
    auto observer = connect_(options_, Deadline::After(1000));
    if (!observer.ok()) return observer.status();
    observer_ = std::move(*observer);
  }
  const absl::Status status = observer_->CertifyDeath(task.member_id, task.how);
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) observer_ = nullptr;
  return status;
}

void StoreLink::Work() {
  int64_t wait_ms = 100;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Task task = queue_.front();
    lock.unlock();
    const absl::Status status = Try(task);
    lock.lock();
    const bool retry = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!retry) {
      if (!status.ok())
        LogWarning("death certificate of ", task.member_id, ": ", StdView(status.message()));
      if (!queue_.empty()) queue_.pop_front();
      wait_ms = 100;
      continue;
    }
    if (ending_ && BootMs() >= end_by_ms_) return;
    wake_.wait_for(lock, std::chrono::milliseconds(wait_ms), [this] { return ending_; });
    wait_ms = std::min<int64_t>(wait_ms * 2, 2000);
  }
}

}  // namespace holdfast
