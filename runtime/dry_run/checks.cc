#include "runtime/dry_run/checks.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "rendezvous/membership.h"
#include "runtime/base/status.h"
#include "runtime/dry_run/machine.h"
#include "runtime/dry_run/print.h"
#include "runtime/supervisor/embedded_redis.h"
#include "runtime/supervisor/exit_status.h"
#include "runtime/supervisor/launcher_hint.h"
#include "runtime/supervisor/run_dir.h"

namespace holdfast {
namespace {

constexpr int64_t kRedisMs = 3000;

Check Failed(std::string name, const absl::Status& status, ExitCode otherwise) {
  return {std::move(name), Check::Outcome::kFailed, std::string(status.message()),
          ExitCodeOf(status, otherwise)};
}

// Somebody holds the directory's lock: a run is active.
bool InUse(const std::string& dir) {
  const int fd = open(Cat(dir, "/lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool taken = flock(fd, LOCK_SH | LOCK_NB) != 0;
  close(fd);
  return taken;
}

Check CheckDirectory(const Config& wanted, Config* resolved) {
  const auto plan = RunDir::Look(wanted);
  if (!plan.ok()) return Failed("directory", plan.status(), ExitCode::kUsage);
  *resolved = plan->config;
  const std::string dir = plan->config.dir;
  const std::string folder = NearestFolder(dir);
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return {"directory", Check::Outcome::kFailed,
            Cat("--dir ", dir, ": ", folder, " cannot be written: ", std::strerror(errno)),
            ExitCode::kUsage};
  }
  if (InUse(dir))
    return {"directory", Check::Outcome::kWarning, Cat(dir, ": a run is active there now")};
  if (plan->finished) {
    return {"directory", Check::Outcome::kWarning,
            Cat(dir, ": holds this run, complete at step ", plan->step)};
  }
  if (!plan->exists) return {"directory", Check::Outcome::kOk, Cat(dir, ": a new run")};
  return {"directory", Check::Outcome::kOk,
          Cat(dir, ": continues the run that has reached step ", plan->step,
              plan->change.empty() ? "" : Cat("; accepted: ", plan->change))};
}

Check CheckEmbedded() {
  const auto redis = EmbeddedRedis::Start(Deadline::After(10'000));
  if (!redis.ok()) return Failed("Redis", redis.status(), ExitCode::kStore);
  return {"Redis", Check::Outcome::kOk, "an embedded one starts and answers"};
}

// One connection, one read: the same as any observer's. Nothing is written there.
Check CheckOutside(const Config& config) {
  const auto address = RedisFromConfig(config);
  if (!address.ok()) return Failed("Redis", address.status(), ExitCode::kUsage);
  rendezvous::MembershipOptions options;
  options.redis_host = address->host;
  options.redis_port = address->port;
  options.redis_user = address->user;
  options.redis_password = address->password;
  options.run = config.run;
  options.member_id = Cat("dry-run/", getpid());
  options.pid = getpid();
  const auto observer = rendezvous::Observer::Connect(options, Deadline::After(kRedisMs));
  if (!observer.ok()) {
    return Failed("Redis", Annotate(observer.status(), address->text()), ExitCode::kStore);
  }
  return {"Redis", Check::Outcome::kOk, Cat(address->text(), " answers, the password is right")};
}

}  // namespace

std::vector<Check> CheckSurroundings(const Config& wanted, Config* resolved) {
  *resolved = wanted;
  std::vector<Check> checks;
  const Check directory = CheckDirectory(wanted, resolved);
  // Left open, and nothing has settled it: what is usual, so that the other checks can be made.
  if (resolved->micro_batch_size == 0) resolved->micro_batch_size = Config().micro_batch_size;
  checks.push_back({"configuration", Check::Outcome::kOk,
                    Cat("model ", wanted.model, ", ", Grouped(wanted.steps), " steps of ",
                        wanted.micro_batches, " x ", resolved->micro_batch_size, " samples")});
  checks.push_back(directory);
  if (resolved->workers == 0) resolved->workers = DefaultWorkers();
  if (resolved->run.empty()) resolved->run = DefaultRunName(resolved->dir, true);
  if (resolved->decay_steps == 0) resolved->decay_steps = resolved->steps;
  checks.push_back(wanted.redis.empty() ? CheckEmbedded() : CheckOutside(*resolved));
  const std::string hint = LauncherHint();
  if (!hint.empty()) checks.push_back({"environment", Check::Outcome::kWarning, hint});
  return checks;
}

}  // namespace holdfast
