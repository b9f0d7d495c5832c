#include "runtime/cli/endpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "runtime/supervisor/exit_status.h"
#include "runtime/supervisor/line_file.h"
#include "runtime/supervisor/redis_address.h"
#include "runtime/supervisor/report.h"

namespace holdfast {
namespace {

constexpr int64_t kConnectMs = 3000;

// A supervisor that was killed leaves run.json behind; its lock goes with it.
bool SupervisorRuns(const std::string& dir) {
  const int fd = open(Cat(dir, "/lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool taken = flock(fd, LOCK_SH | LOCK_NB) != 0;
  close(fd);
  return taken;
}

absl::StatusOr<RedisAddress> AddressIn(const std::string& dir, std::string* run) {
  const auto text = ReadSmallFile(Cat(dir, "/run.json"), 1 << 16);
  if (!text.ok() || !SupervisorRuns(dir))
    return absl::NotFoundError(Cat("no holdfast run is active in ", dir));
  const Json json = Json::parse(*text, nullptr, false);
  if (!json.is_object()) return absl::NotFoundError(Cat(dir, "/run.json is damaged"));
  const auto password = ReadSmallFile(Cat(dir, "/redis.secret"), 4096);
  if (!password.ok()) return WithExit(password.status(), ExitCode::kStore);
  RedisAddress address;
  address.host = TextOf(json, "redis_host");
  address.port = static_cast<int>(IntegerOf(json, "redis_port"));
  address.user = TextOf(json, "redis_user");
  address.password = *password;
  *run = TextOf(json, "run");
  return address;
}

}  // namespace

absl::StatusOr<RunEndpoint> FindRun(const CommandLine& line) {
  RunEndpoint endpoint;
  endpoint.run = line.run;
  if (!line.dir.empty()) {
    HF_ASSIGN_OR_RETURN(endpoint.redis, AddressIn(line.dir, &endpoint.run));
  } else {
    Config config;
    config.redis = line.redis;
    config.redis_password_file = line.redis_password_file;
    HF_ASSIGN_OR_RETURN(endpoint.redis, RedisFromConfig(config));
  }
  return endpoint;
}

absl::StatusOr<std::unique_ptr<rendezvous::Observer>> ConnectToRun(const RunEndpoint& endpoint) {
  const RedisAddress& address = endpoint.redis;
  rendezvous::MembershipOptions options;
  options.redis_host = address.host;
  options.redis_port = address.port;
  options.redis_user = address.user;
  options.redis_password = address.password;
  options.run = endpoint.run;
  options.member_id = Cat("command/", getpid());
  options.pid = getpid();
  auto observer = rendezvous::Observer::Connect(options, Deadline::After(kConnectMs));
  if (!observer.ok()) {
    return WithExit(Annotate(observer.status(), Cat("Redis at ", address.text())),
                    ExitCode::kStore);
  }
  return observer;
}

absl::StatusOr<std::unique_ptr<rendezvous::Observer>> ConnectToRun(const CommandLine& line) {
  HF_ASSIGN_OR_RETURN(const RunEndpoint endpoint, FindRun(line));
  return ConnectToRun(endpoint);
}

}  // namespace holdfast
