#include "runtime/collectives/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "runtime/base/status.h"

namespace holdfast {
namespace {

constexpr int kAcceptBacklog = 128;

// Shared between the caller and a look-up that may outlive its interest in it.
struct Lookup {
  std::mutex mu;
  std::condition_variable cv;
  bool done = false;
  int error = 0;
  SocketAddress address;
};

int LookupInto(const std::string& host, int port, int flags, SocketAddress* out) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) return error;
  out->size = list->ai_addrlen;
  std::memcpy(&out->storage, list->ai_addr, list->ai_addrlen);
  freeaddrinfo(list);
  return 0;
}

absl::Status LookupError(const std::string& host, int error) {
  return absl::UnavailableError(Cat("cannot resolve host '", host, "': ", gai_strerror(error)));
}

}  // namespace

void Fd::Reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

std::string AddressText(const std::string& host, int port) {
  return host.find(':') != std::string::npos ? Cat("[", host, "]:", port) : Cat(host, ":", port);
}

std::string ErrnoText(int error) { return std::generic_category().message(error); }

absl::StatusOr<SocketAddress> ResolveHost(const std::string& host, int port, Deadline deadline,
                                          const std::atomic<bool>* cancel) {
  SocketAddress address;
  if (LookupInto(host, port, AI_NUMERICHOST, &address) == 0) return address;
  auto lookup = std::make_shared<Lookup>();
  try {
    std::thread([lookup, host, port] {
      SocketAddress found;
      const int error = LookupInto(host, port, 0, &found);
      std::lock_guard<std::mutex> lock(lookup->mu);
      lookup->done = true;
      lookup->error = error;
      lookup->address = found;
      lookup->cv.notify_all();
    }).detach();
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(
        Cat("cannot start a thread to resolve '", host, "': ", e.what()));
  }
  std::unique_lock<std::mutex> lock(lookup->mu);
  while (!lookup->done) {
    if (cancel != nullptr && cancel->load())
      return absl::CancelledError("cancelled while resolving a host");
    if (deadline.passed()) {
      return absl::DeadlineExceededError(
          Cat("resolving host '", host, "' took too long: check the name server"));
    }
    lookup->cv.wait_for(lock,
                        std::chrono::milliseconds(std::min<int64_t>(20, deadline.left_ms() + 1)));
  }
  if (lookup->error != 0) return LookupError(host, lookup->error);
  return lookup->address;
}

absl::StatusOr<Fd> ListenOn(const SocketAddress& address) {
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::ResourceExhaustedError(Cat("socket: ", ErrnoText(errno)));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0) {
    return absl::FailedPreconditionError(Cat("bind: ", ErrnoText(errno)));
  }
  if (listen(fd.get(), kAcceptBacklog) != 0) {
    return absl::FailedPreconditionError(Cat("listen: ", ErrnoText(errno)));
  }
  return fd;
}

int LocalPort(int fd) {
  sockaddr_storage at = {};
  socklen_t size = sizeof at;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) return 0;
  if (at.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in*>(&at)->sin_port);
  if (at.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&at)->sin6_port);
  return 0;
}

absl::StatusOr<Fd> StartConnect(const SocketAddress& address) {
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::ResourceExhaustedError(Cat("socket: ", ErrnoText(errno)));
  const int rc =
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size);
  if (rc != 0 && errno != EINPROGRESS)
    return absl::UnavailableError(Cat("connect: ", ErrnoText(errno)));
  return fd;
}

int ConnectResult(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  if (error != 0) return error;
  sockaddr_storage self = {}, peer = {};
  socklen_t self_size = sizeof self, peer_size = sizeof peer;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&self), &self_size) != 0) return errno;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) return errno;
  if (self_size == peer_size && std::memcmp(&self, &peer, self_size) == 0) return ECONNREFUSED;
  return 0;
}

void SetLinkOptions(int fd, int64_t user_timeout_ms) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const unsigned timeout = static_cast<unsigned>(user_timeout_ms);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof timeout);
}

bool SendWhole(int fd, std::string_view bytes) {
  return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

WakeFd::WakeFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

void WakeFd::Signal() const {
  const uint64_t one = 1;
  // A full counter (EAGAIN) is as good as a signal.
  [[maybe_unused]] const ssize_t n = write(fd_.get(), &one, sizeof one);
}

void WakeFd::Drain() const {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = read(fd_.get(), &count, sizeof count);
}

}  // namespace holdfast
