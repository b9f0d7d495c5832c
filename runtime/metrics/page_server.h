// A small HTTP/1.1 server of one text page: GET /metrics for Prometheus. By hand, because what
// matters here is what a stranger can cost: at most 16 connections (a new one ends the oldest that
// has not asked yet), requests of at most 4 KiB, 5 s from connect to the end of the answer, 100 new
// connections a second. All of it runs in one thread of its own, which touches nothing but the page
// last set: whatever comes over the network, the run does not wait.
//
// Thread-safe: SetPage. Listen, Start and the end belong to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::metrics {

class PageServer {
 public:
  // Binds and listens; nobody is answered before Start. `port` 0: a free one. kAlreadyExists: the
  // port is taken; kInvalidArgument: no such address here, or it may not be used.
  static absl::StatusOr<std::unique_ptr<PageServer>> Listen(const std::string& host, int port);
  ~PageServer();  // ends the thread, closes everything
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  // Starts the thread, with all signals blocked. kUnavailable when it cannot.
  [[nodiscard]] absl::Status Start();
  void SetPage(std::string text);  // what /metrics answers from now on
  int port() const { return port_; }

 private:
  struct Connection {
    int fd = -1;
    int64_t since_ms = 0;
    std::string request, answer;
    size_t sent = 0;
    bool answered = false, lingering = false;
    int64_t discarded = 0;
  };
  PageServer(int listen_fd, int wake_fd, int port)
      : listen_fd_(listen_fd), wake_fd_(wake_fd), port_(port) {}
  void Loop();
  void Accept(int64_t now_ms);
  void Serve(Connection& c);  // one step; closes it at its end
  void Answer(Connection& c);
  static void Close(Connection& c);

  const int listen_fd_, wake_fd_, port_;
  std::thread thread_;
  std::mutex mutex_;
  std::string page_;                      // guarded by mutex_
  bool quit_ = false;                     // guarded by mutex_
  std::vector<Connection> connections_;   // of the thread
  int64_t second_ms_ = 0, accepted_ = 0;  // new connections in the second that began at second_ms_
};

}  // namespace holdfast::metrics
