// The supervisor's line to Redis: death certificates, retried in the background so that a slow or
// absent store never holds the reaping of children, and the clean-up at the end. Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "rendezvous/membership.h"

namespace holdfast {

// How to reach the store; rendezvous::Observer::Connect in the program.
using ConnectObserver = std::function<absl::StatusOr<std::unique_ptr<rendezvous::Observer>>(
    const rendezvous::MembershipOptions&, Deadline)>;

class StoreLink {
 public:
  StoreLink(ConnectObserver connect, rendezvous::MembershipOptions options);
  ~StoreLink();

  // Blocks; the error carries exit code kStore.
  [[nodiscard]] absl::Status Connect(Deadline deadline);
  void Certify(std::string member_id, std::string how);
  // Sends what is queued, removes this machine's keys, ends the thread. Called once, at the end.
  [[nodiscard]] absl::Status Finish(Deadline deadline);

 private:
  struct Task {
    std::string member_id, how;
  };
  static constexpr size_t kQueueMax = 10'000;  // older certificates are dropped: leases then decide
  void Work();
  absl::Status Try(const Task& task);

  const ConnectObserver connect_;
  const rendezvous::MembershipOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> queue_;
  bool ending_ = false;
  int64_t end_by_ms_ = 0;
  std::unique_ptr<rendezvous::Observer> observer_;  // of the thread; of Connect before it starts
  std::thread thread_;
};

}  // namespace holdfast
