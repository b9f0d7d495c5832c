#include "runtime/supervisor/view_publisher.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <system_error>

namespace holdfast {
namespace {
constexpr int64_t kRetryMs = 1000, kRetryMsMax = 30'000;
}  // namespace

ViewPublisher::ViewPublisher(const rendezvous::RedisEndpoint& endpoint, std::string run,
                             std::string machine)
    : board_(endpoint, run), machine_(std::move(machine)) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);  // signals are the main thread's business
  try {
    thread_ = std::thread([this] { Work(); });
  } catch (const std::system_error&) {
    done_ = true;  // no view elsewhere, then
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ViewPublisher::~ViewPublisher() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    text_.clear();
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void ViewPublisher::Post(std::string text) {
  std::lock_guard lock(mutex_);
  if (ending_) return;
  text_ = std::move(text);
  wake_.notify_one();
}

void ViewPublisher::Finish(std::string text, Deadline deadline) {
  std::unique_lock lock(mutex_);
  text_ = std::move(text);
  ending_ = true;
  wake_.notify_one();
  (void)idle_.wait_for(lock, std::chrono::milliseconds(deadline.left_ms()),
                       [this] { return done_; });
}

void ViewPublisher::Work() {
  int64_t retry_ms = kRetryMs;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ending_ || !text_.empty(); });
    if (text_.empty()) break;
    const std::string text = std::exchange(text_, "");
    const bool last = ending_;
    lock.unlock();
    const absl::Status status = board_.Publish(machine_, text);
    lock.lock();
    if (last) break;
    if (status.ok()) {
      retry_ms = kRetryMs;
      continue;
    }
    (void)wake_.wait_for(lock, std::chrono::milliseconds(retry_ms), [this] { return ending_; });
    retry_ms = std::min(2 * retry_ms, kRetryMsMax);
  }
  done_ = true;
  idle_.notify_all();
}

}  // namespace holdfast
