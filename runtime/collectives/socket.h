// Sockets of the collective layer: owned descriptors, non-blocking TCP, host names resolved with a
// deadline. Every descriptor is close-on-exec and non-blocking; every send uses MSG_NOSIGNAL. All
// functions may be called from any thread.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/clock.h"

namespace holdfast {

// An owned file descriptor, closed on destruction.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { Reset(-1); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

// "host:port", for messages.
std::string AddressText(const std::string& host, int port);
// The text of errno value `error`.
std::string ErrnoText(int error);

// A numeric host is converted at once; a name is looked up in a thread of its own, so that a slow
// name server never holds the caller beyond `deadline` or after `cancel` (may be null) was set.
absl::StatusOr<SocketAddress> ResolveHost(const std::string& host, int port, Deadline deadline,
                                          const std::atomic<bool>* cancel);

absl::StatusOr<Fd> ListenOn(const SocketAddress& address);
// The port that `fd` is bound to, or 0.
int LocalPort(int fd);
// Starts to connect; the socket is writable when it is over (see ConnectResult).
absl::StatusOr<Fd> StartConnect(const SocketAddress& address);
// 0 when connected, else the errno value. A connection of a socket to itself (possible on loopback
// when nobody listens on an ephemeral port) counts as refused.
int ConnectResult(int fd);

// No delay for small frames; the kernel gives up on unacknowledged data after `user_timeout_ms`.
void SetLinkOptions(int fd, int64_t user_timeout_ms);

// True when all of it went out at once. For the short messages of a fresh connection, which always
// fit.
bool SendWhole(int fd, std::string_view bytes);

// An eventfd: Signal wakes a poll on fd(), Drain makes it unreadable again.
class WakeFd {
 public:
  WakeFd();
  int fd() const { return fd_.get(); }
  void Signal() const;
  void Drain() const;

 private:
  Fd fd_;
};

}  // namespace holdfast
