// A Redis of this supervisor's own: loopback, a free port, a random password, nothing on disk. Its
// configuration goes in over standard input, so that the password stands in no argument and no
// file. One thread, the one that lives as long as the supervisor.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/clock.h"
#include "runtime/supervisor/redis_address.h"

namespace holdfast {

class EmbeddedRedis {
 public:
  // Returns when it answers. Exit code kStore: not installed, or it does not come up (its last
  // lines are in the message).
  static absl::StatusOr<std::unique_ptr<EmbeddedRedis>> Start(Deadline deadline);
  ~EmbeddedRedis();  // kills and reaps it
  EmbeddedRedis(const EmbeddedRedis&) = delete;
  EmbeddedRedis& operator=(const EmbeddedRedis&) = delete;

  const RedisAddress& address() const { return address_; }
  pid_t pid() const { return pid_; }
  // Reaps it if it has ended and says how; "" while it runs.
  std::string EndedHow();
  // Starts it again, empty, under the same address and password.
  [[nodiscard]] absl::Status Restart(Deadline deadline);

 private:
  EmbeddedRedis() = default;
  absl::Status StartOnce(int port, Deadline deadline);
  absl::Status WaitUntilItAnswers(Deadline deadline);
  std::string DrainOutput();
  void Stop();

  RedisAddress address_;
  pid_t pid_ = -1;
  int output_fd_ = -1;
};

}  // namespace holdfast
