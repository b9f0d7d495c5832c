// Finding a run from outside: by its directory (run.json and redis.secret, written by its
// supervisor) or by its Redis.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rendezvous/membership.h"
#include "runtime/cli/flags.h"
#include "runtime/supervisor/redis_address.h"

namespace holdfast {

struct RunEndpoint {
  RedisAddress redis;
  std::string run;
};

// kNotFound: no supervisor runs in that directory. Errors carry the exit code (kStore, kUsage).
absl::StatusOr<RunEndpoint> FindRun(const CommandLine& line);
absl::StatusOr<std::unique_ptr<rendezvous::Observer>> ConnectToRun(const RunEndpoint& endpoint);
absl::StatusOr<std::unique_ptr<rendezvous::Observer>> ConnectToRun(const CommandLine& line);

}  // namespace holdfast
