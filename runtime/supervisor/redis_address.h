// Where Redis is, from --redis and the password's two legal places. Pure but for reading the file.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/config/config.h"

namespace holdfast {

struct RedisAddress {
  std::string host = "127.0.0.1";
  int port = 6379;
  std::string user, password;  // never logged
  std::string text() const;    // "host:port"
};

// "redis://host:port", "redis://user@host:port", "host:port", "host". A password in it is refused:
// the command line and config files are readable by others. Exit code kUsage.
absl::StatusOr<RedisAddress> ParseRedisUrl(const std::string& url);
// ParseRedisUrl, and the password from HOLDFAST_REDIS_PASSWORD or config.redis_password_file (not
// readable by others).
absl::StatusOr<RedisAddress> RedisFromConfig(const Config& config);

}  // namespace holdfast
