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

void Channel::Send(const std::string& json) {
  const Deadline deadline = Deadline::After(1000);
  while (!json.empty() && json.size() <= kMaxMessageBytes) {
    const ssize_t sent = send(fd_, json.data(), json.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return;
    if (errno == EINTR) continue;
    if ((errno != EAGAIN && errno != ENOBUFS) || deadline.passed()) break;
    pollfd waiting{fd_, POLLOUT, 0};
    (void)poll(&waiting, 1, static_cast<int>(deadline.left_ms()) + 1);
  }
  dropped_.fetch_add(1, std::memory_order_relaxed);
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
