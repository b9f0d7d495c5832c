// One connection to Redis. Every wait is bounded; a connection on which anything went wrong is
// closed and made anew by the next call, never reused, because a late reply would be taken for the
// answer to a later command. Not thread-safe.
//
// Errors, each with the endpoint and what to do: kUnavailable (not there, loading, too many
// clients, reset), kDeadlineExceeded (no answer in time: the outcome is unknown), kUnauthenticated
// (wrong or missing password), kFailedPrecondition (read-only replica, MISCONF), kResourceExhausted
// (OOM), kDataLoss (a reply that makes no sense).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct redisContext;

namespace holdfast::rendezvous {

struct RedisEndpoint {
  std::string host = "127.0.0.1";
  int port = 6379;
  std::string user, password;  // never logged
  int64_t connect_ms = 1000, command_ms = 1000;
};

struct RedisReply {
  enum class Kind : uint8_t { kNil, kText, kInteger, kList };
  Kind kind = Kind::kNil;
  std::string text;  // kText; also status replies
  int64_t integer = 0;
  std::vector<RedisReply> list;
};

// What an error reply of Redis means for the caller. Pure.
absl::Status StatusOfRedisError(std::string_view error, std::string_view endpoint);

class RedisConnection {
 public:
  explicit RedisConnection(RedisEndpoint endpoint);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Connects first when there is no connection.
  absl::StatusOr<RedisReply> Command(const std::vector<std::string>& arguments);
  // Runs a Lua script by its SHA-1, sending its text only when the server does not know it.
  absl::StatusOr<RedisReply> Script(const std::string& text, const std::string& sha1,
                                    const std::vector<std::string>& keys,
                                    const std::vector<std::string>& arguments);
  const std::string& endpoint_text() const { return endpoint_text_; }

 private:
  absl::Status Connect();
  absl::StatusOr<RedisReply> RawCommand(const std::vector<std::string>& arguments, bool* no_script);
  void Close();

  const RedisEndpoint endpoint_;
  const std::string endpoint_text_;
  redisContext* context_ = nullptr;
};

}  // namespace holdfast::rendezvous
