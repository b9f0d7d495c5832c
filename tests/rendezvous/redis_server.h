// A real redis-server for a test: on a free loopback port, with a password read from its standard
// input (so that no secret is in an argument), without persistence, ended by its pid. Not
// thread-safe.
#pragma once

#include <sys/types.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "rendezvous/membership.h"
#include "rendezvous/redis_connection.h"

namespace holdfast::rendezvous {

class RedisServer {
 public:
  // Starts it and waits until it answers. port 0: a free one. `extra`: lines of configuration. No
  // password: a random one.
  explicit RedisServer(int port = 0, const std::string& extra = "",
                       const std::string& password = "");
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  void Signal(int signal) const;
  void Kill();
  int port() const { return port_; }
  const std::string& password() const { return password_; }
  RedisEndpoint Endpoint() const;
  // As an administrator; fails the test on an error.
  RedisReply Admin(const std::vector<std::string>& command) const;
  std::vector<std::string> Keys() const;

 private:
  pid_t pid_ = -1;
  int port_ = 0;
  std::string password_;
};

// SlotMarks in memory: what a worker's store keeps for its slot, across processes of that slot.
class MapMarks : public SlotMarks {
 public:
  absl::Status Put(std::string_view key, std::string_view value) override;
  absl::StatusOr<std::string> Get(std::string_view key) const override;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::string, std::less<>> values_;
};

// A free loopback port, as the system names one now.
int FreePort();

}  // namespace holdfast::rendezvous
