#include "runtime/supervisor/messages.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace holdfast {

Channel::Channel(int fd) : fd_(fd) { fcntl(fd_, F_SETFD, FD_CLOEXEC); }

Channel::~Channel() { close(fd_); }

Channel::Sent Channel::TrySend(const std::string& json) const {
  if (json.empty() || json.size() > kMaxMessageBytes) return Sent::kNever;
  while (send(fd_, json.data(), json.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == ENOBUFS ? Sent::kFull : Sent::kNever;
  }
  return Sent::kYes;
}

void Channel::WaitForRoom(int64_t wait_ms) const {
  pollfd waiting{fd_, POLLOUT, 0};
  (void)poll(&waiting, 1, static_cast<int>(wait_ms) + 1);
}

void Channel::Send(const std::string& json) {
  const Deadline deadline = Deadline::After(1000);
  while (true) {
    const Sent sent = TrySend(json);
    if (sent == Sent::kYes) return;
    if (sent == Sent::kNever || deadline.passed()) break;
    WaitForRoom(deadline.left_ms());
  }
  dropped_.fetch_add(1, std::memory_order_relaxed);
}

void Channel::PumpLocked() {
  while (!posted_.empty()) {
    const Sent sent = TrySend(posted_.front());
    if (sent == Sent::kFull) return;
    if (sent == Sent::kNever) dropped_.fetch_add(1, std::memory_order_relaxed);
    posted_bytes_ -= posted_.front().size();
    posted_.pop_front();
  }
}

void Channel::Post(const std::string& json) {
  const std::lock_guard lock(mutex_);
  posted_.push_back(json);
  posted_bytes_ += json.size();
  PumpLocked();
  const Deadline deadline = Deadline::After(1000);
  while (posted_bytes_ > kMaxPostedBytes && !deadline.passed()) {
    WaitForRoom(deadline.left_ms());
    PumpLocked();
  }
  while (posted_bytes_ > kMaxPostedBytes) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    posted_bytes_ -= posted_.front().size();
    posted_.pop_front();
  }
}

void Channel::Pump() {
  // Whoever holds it is sending, and may wait for room, which the caller of this must not.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) PumpLocked();
}

void Channel::Flush(int64_t wait_ms) {
  const std::lock_guard lock(mutex_);
  const Deadline deadline = Deadline::After(wait_ms);
  PumpLocked();
  while (!posted_.empty() && !deadline.passed()) {
    WaitForRoom(deadline.left_ms());
    PumpLocked();
  }
}

absl::StatusOr<std::string> Channel::Receive() {
  std::string message(kMaxMessageBytes, '\0');
  while (true) {
    const ssize_t size = recv(fd_, message.data(), message.size(), MSG_DONTWAIT);
    if (size > 0) {
      message.resize(static_cast<size_t>(size));
      return message;
    }
    // Messages are never empty, so nothing read means that the other side has closed.
    if (size == 0) return absl::UnavailableError("the other side has gone");
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return absl::NotFoundError("no message now");
    return absl::UnavailableError(Cat("channel: ", std::strerror(errno)));
  }
}

}  // namespace holdfast
