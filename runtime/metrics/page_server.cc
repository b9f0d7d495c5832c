#include "runtime/metrics/page_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace holdfast::metrics {
namespace {

constexpr size_t kConnectionsMax = 16, kRequestBytesMax = 4096;
constexpr int64_t kConnectionMs = 5000, kAcceptsPerSecondMax = 100, kDiscardBytesMax = 64 * 1024;

std::string Response(std::string_view status, std::string_view type, std::string_view body,
                     bool head_only) {
  return Cat("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(),
             "\r\nConnection: close\r\nCache-Control: no-store\r\n\r\n", head_only ? "" : body);
}

std::string Refusal(std::string_view status) {
  return Response(status, "text/plain; charset=utf-8", Cat(status, "\n"), false);
}

// The three words of a request line; empty method: it is none.
struct RequestLine {
  std::string method, path;
};
RequestLine Parse(const std::string& request) {
  const std::string line = request.substr(0, request.find_first_of("\r\n"));
  const size_t a = line.find(' '), b = line.find(' ', a + 1);
  if (a == std::string::npos || b == std::string::npos || line.compare(b + 1, 5, "HTTP/") != 0)
    return {};
  const std::string target = line.substr(a + 1, b - a - 1);
  return {line.substr(0, a), target.substr(0, target.find('?'))};
}

bool Complete(const std::string& request) {
  return request.find("\r\n\r\n") != std::string::npos || request.find("\n\n") != std::string::npos;
}

absl::Status BindError(const std::string& host, int port) {
  const int error = errno;
  const std::string where = Cat(host, ":", port, ": ", std::strerror(error));
  if (error == EADDRINUSE) return absl::AlreadyExistsError(where);
  return absl::InvalidArgumentError(where);
}

int BoundPort(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Listen(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), Cat(port).c_str(), &hints, &found);
  if (failed != 0) return absl::InvalidArgumentError(Cat(host, ": ", gai_strerror(failed)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  const int fd =
      socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, found->ai_protocol);
  if (fd < 0) return BindError(host, port);
  const int on = 1;  // a port whose last user has just ended is free
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 16) != 0) {
    const absl::Status status = BindError(host, port);
    close(fd);
    return status;
  }
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) {
    close(fd);
    return absl::UnavailableError(Cat("eventfd: ", std::strerror(errno)));
  }
  return std::unique_ptr<PageServer>(new PageServer(fd, wake_fd, BoundPort(fd)));
}

absl::Status PageServer::Start() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);  // signals are the main thread's business
  absl::Status status;
  try {
    thread_ = std::thread([this] { Loop(); });
  } catch (const std::system_error& error) {
    status = absl::UnavailableError(Cat("no thread for the metrics: ", error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

PageServer::~PageServer() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof one);
  if (thread_.joinable()) thread_.join();
  for (Connection& c : connections_) Close(c);
  close(listen_fd_);
  close(wake_fd_);
}

void PageServer::SetPage(std::string text) {
  std::lock_guard lock(mutex_);
  page_ = std::move(text);
}

void PageServer::Close(Connection& c) {
  if (c.fd >= 0) close(c.fd);
  c.fd = -1;
}

void PageServer::Loop() {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (quit_) return;
    }
    const int64_t now_ms = BootMs();
    if (now_ms - second_ms_ >= 1000) {
      second_ms_ = now_ms;
      accepted_ = 0;
    }
    // A flood of connections is left in the kernel's queue until the next second.
    const bool flooded = accepted_ >= kAcceptsPerSecondMax;
    std::vector<pollfd> fds = {{wake_fd_, POLLIN, 0}, {flooded ? -1 : listen_fd_, POLLIN, 0}};
    int64_t wake_ms = flooded ? second_ms_ + 1000 : now_ms + 60'000;
    for (const Connection& c : connections_) {
      fds.push_back({c.fd, static_cast<int16_t>(c.answered && !c.lingering ? POLLOUT : POLLIN), 0});
      wake_ms = std::min(wake_ms, c.since_ms + kConnectionMs);
    }
    (void)poll(fds.data(), fds.size(),
               static_cast<int>(std::max<int64_t>(0, wake_ms - now_ms)) + 1);
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (fds[i + 2].revents != 0) Serve(connections_[i]);
      if (BootMs() - connections_[i].since_ms >= kConnectionMs) Close(connections_[i]);
    }
    std::erase_if(connections_, [](const Connection& c) { return c.fd < 0; });
    if (fds[1].revents != 0) Accept(BootMs());
  }
}

void PageServer::Accept(int64_t now_ms) {
  while (accepted_ < kAcceptsPerSecondMax) {
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      // Out of descriptors: the connection stays in the queue; to be tried again in a second, not
      // at once and for ever.
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        accepted_ = kAcceptsPerSecondMax;
      return;
    }
    ++accepted_;
    if (connections_.size() == kConnectionsMax) {
      // Who asks as a client does is answered within milliseconds: the oldest is none.
      Close(connections_.front());
      connections_.erase(connections_.begin());
    }
    Connection c;
    c.fd = fd;
    c.since_ms = now_ms;
    connections_.push_back(std::move(c));
  }
}

void PageServer::Answer(Connection& c) {
  c.answered = true;
  if (!Complete(c.request)) {
    c.answer = Refusal("431 Request Header Fields Too Large");
    return;
  }
  const RequestLine line = Parse(c.request);
  const bool head = line.method == "HEAD";
  if (line.method.empty()) {
    c.answer = Refusal("400 Bad Request");
  } else if (line.method != "GET" && !head) {
    c.answer = Refusal("405 Method Not Allowed");
  } else if (line.path == "/metrics") {
    std::lock_guard lock(mutex_);
    c.answer = Response("200 OK", "text/plain; version=0.0.4; charset=utf-8", page_, head);
  } else if (line.path == "/") {
    c.answer = Response("200 OK", "text/plain; charset=utf-8",
                        "Holdfast. The metrics for Prometheus are at /metrics.\n", head);
  } else {
    c.answer = Refusal("404 Not Found");
  }
}

void PageServer::Serve(Connection& c) {
  char buffer[4096];
  if (!c.answered) {
    const ssize_t n = recv(c.fd, buffer, sizeof buffer, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return Close(c);
    c.request.append(buffer,
                     std::min(static_cast<size_t>(n), kRequestBytesMax + 1 - c.request.size()));
    if (!Complete(c.request) && c.request.size() <= kRequestBytesMax) return;
    Answer(c);
  }
  while (c.sent < c.answer.size()) {
    const ssize_t n =
        send(c.fd, c.answer.data() + c.sent, c.answer.size() - c.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return Close(c);
    c.sent += static_cast<size_t>(n);
  }
  // Closing while bytes of the client are unread would reset the connection and take the answer
  // away from it: the rest is read and dropped, within bounds.
  if (!c.lingering) (void)shutdown(c.fd, SHUT_WR);
  c.lingering = true;
  while (c.discarded <= kDiscardBytesMax) {
    const ssize_t n = recv(c.fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) break;
    c.discarded += n;
  }
  Close(c);
}

}  // namespace holdfast::metrics
