#include "runtime/supervisor/supervisor.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/digest.h"
#include "runtime/supervisor/exit_status.h"
#include "runtime/supervisor/launcher_hint.h"
#include "runtime/supervisor/run_dir.h"
#include "runtime/supervisor/settle_bits.h"
#include "runtime/supervisor/supervisor_loop.h"

namespace holdfast {
namespace {

constexpr int64_t kEmbeddedStartMs = 10'000, kConnectMs = 10'000, kCleanUpMs = 3000,
                  kLastViewMs = 1000;

// The signals that the loop reads from a descriptor. SIGHUP stays ignored where it was (nohup);
// SIGPIPE never matters.
int BlockSignals() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGTSTP, SIGWINCH}) sigaddset(&set, number);
  struct sigaction hang_up;
  if (sigaction(SIGHUP, nullptr, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN)
    sigaddset(&set, SIGHUP);
  // An inherited "ignore" of SIGCHLD would reap children by itself; of SIGINT (a background job of
  // a script) is respected.
  signal(SIGCHLD, SIG_DFL);
  if (sigprocmask(SIG_BLOCK, &set, nullptr) != 0) return -1;
  return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

// Names this machine's directory for good: checkpoints say who wrote them, across restarts and
// changes of the address.
absl::StatusOr<std::string> MachineName(const RunDir& dir) {
  const auto known = ReadSmallFile(dir.File("machine"), 4096);
  if (known.ok() && known->size() > 1) return known->substr(0, known->find('\n'));
  char host[256] = "";
  (void)gethostname(host, sizeof host - 1);
  const std::string name = Cat(host, "-", Hex(RandomBytes(4)));
  HF_RETURN_IF_ERROR(WriteFileAtomically(dir.File("machine"), Cat(name, "\n")));
  return name;
}

rendezvous::MembershipOptions ObserverOptions(const Config& config, const RedisAddress& redis,
                                              const std::string& machine, bool embedded) {
  rendezvous::MembershipOptions options;
  options.redis_host = redis.host;
  options.redis_port = redis.port;
  options.redis_user = redis.user;
  options.redis_password = redis.password;
  options.run = config.run;
  options.machine = machine;
  options.member_id = Cat(machine, "/supervisor");
  options.pid = getpid();
  options.min_workers = config.min_workers;
  options.max_workers = config.max_workers;
  options.restore_wait_ms = config.restore_wait_ms;
  options.rendezvous_ms = config.rendezvous_ms;
  options.may_found = embedded;
  return options;
}

std::string Greeting(const RunDir::Plan& plan, const RedisAddress& redis, bool embedded) {
  const Config& c = plan.config;
  std::string text =
      Cat("run '", c.run, "' in ", c.dir, ": ", c.workers, c.workers == 1 ? " worker" : " workers",
          ", Redis at ", redis.text(), embedded ? " (embedded)" : "");
  if (!embedded) text += Cat("; other machines join with --run ", c.run);
  if (plan.exists) {
    text += Cat("; continues the run that has reached step ", plan.step);
    if (plan.former_steps != c.steps)
      text += Cat(", to ", c.steps, " steps instead of ", plan.former_steps);
    if (c.steps > c.decay_steps && c.decay_steps > c.warmup_steps && c.lr_schedule != "constant")
      text += Cat(" (the decay ends at step ", c.decay_steps, ": from there the learning rate is ",
                  c.min_learning_rate, "; --decay-steps with --accept-change stretches it)");
    if (!plan.change.empty()) text += Cat("; accepted: ", plan.change);
  }
  if (c.workers > c.micro_batches) {
    text += Cat("; more workers (", c.workers, ") than micro-batches (", c.micro_batches,
                "): the extra ones wait as spares");
  }
  return text;
}

struct Prepared {
  std::unique_ptr<metrics::PageServer> metrics;  // null: none wanted
  RunDir dir;
  RunDir::Plan plan;
};

// Whoever joins takes the run's precision and times nothing. Redis out of reach is said later.
void AskForPrecision(const RedisAddress& redis, const ConnectObserver& connect, Config* wanted) {
  if (wanted->precision != "auto" && wanted->precision != "default") return;
  if (wanted->run.empty()) return;
  const auto observer =
      connect(ObserverOptions(*wanted, redis, "", false), Deadline::After(kConnectMs));
  if (!observer.ok()) return;
  const auto status = (*observer)->StatusJson();
  const std::string precision = status.ok() ? PrecisionInRecord(*status) : "";
  if (!precision.empty()) wanted->precision = precision;
}

// Before anything is touched: a port that is taken is a reason not to start.
absl::StatusOr<std::unique_ptr<metrics::PageServer>> ListenForMetrics(const Config& config) {
  if (config.metrics_port == 0) return nullptr;
  auto server = metrics::PageServer::Listen(config.metrics_host, config.metrics_port);
  if (server.ok()) return server;
  if (absl::IsAlreadyExists(server.status())) {
    return ExitError(ExitCode::kBusy, "--metrics-port ", config.metrics_port,
                     ": another process listens there (", StdView(server.status().message()),
                     "); choose another port, or 0 for none");
  }
  return ExitError(ExitCode::kUsage, "--metrics-host ", config.metrics_host, ", --metrics-port ",
                   config.metrics_port, ": cannot be listened on (",
                   StdView(server.status().message()), ")");
}

// Takes the page into service, and says where.
void ServeMetrics(metrics::PageServer* server, const Config& config, Report* report) {
  if (server == nullptr) return;
  const absl::Status served = server->Start();
  report->Event("metrics", served.ok() ? LogLevel::kInfo : LogLevel::kWarning,
                served.ok() ? Cat("metrics for Prometheus at http://", config.metrics_host, ":",
                                  server->port(), "/metrics")
                            : std::string(served.message()));
}

absl::StatusOr<Prepared> Prepare(const Config& given, const ConnectObserver& connect) {
  Config wanted = given;
  if (!wanted.redis.empty()) {
    const auto address = RedisFromConfig(wanted);  // a bad URL is a usage error: nothing is touched
    if (!address.ok()) return address.status();
    AskForPrecision(*address, connect, &wanted);
  }
  HF_ASSIGN_OR_RETURN(auto metrics, ListenForMetrics(wanted));
  HF_ASSIGN_OR_RETURN(RunDir dir, RunDir::Open(wanted.dir));
  HF_ASSIGN_OR_RETURN(RunDir::Plan plan, dir.Prepare(wanted));
  return Prepared{std::move(metrics), std::move(dir), std::move(plan)};
}

absl::StatusOr<Ending> RunPrepared(Prepared& prepared, const SupervisorOptions& options,
                                   Console& console, int signal_fd) {
  RunDir& dir = prepared.dir;
  const Config& config = prepared.plan.config;
  std::unique_ptr<EmbeddedRedis> embedded;
  RedisAddress redis;
  if (config.redis.empty()) {
    HF_ASSIGN_OR_RETURN(embedded, EmbeddedRedis::Start(Deadline::After(kEmbeddedStartMs)));
    redis = embedded->address();
  } else {
    HF_ASSIGN_OR_RETURN(redis, RedisFromConfig(config));
  }
  HF_ASSIGN_OR_RETURN(const std::string machine, MachineName(dir));
  StoreLink store(options.connect, ObserverOptions(config, redis, machine, embedded != nullptr));
  HF_RETURN_IF_ERROR(store.Connect(Deadline::After(std::min(kConnectMs, config.rendezvous_ms))));
  HF_RETURN_IF_ERROR(dir.Begin(config));
  HF_ASSIGN_OR_RETURN(auto report, Report::Open(dir.path(), config, machine, &console));
  HF_RETURN_IF_ERROR(dir.PublishEndpoint(config, redis, embedded != nullptr));
  report->Event("begin", LogLevel::kInfo, Greeting(prepared.plan, redis, embedded != nullptr),
                {{"run", config.run},
                 {"pid", getpid()},
                 {"machine", machine},
                 {"workers", config.workers},
                 {"step", prepared.plan.step}});
  for (const std::string& note : prepared.plan.notes)
    report->Event("notice", LogLevel::kInfo, note);
  ViewPublisher publisher({redis.host, redis.port, redis.user, redis.password}, config.run,
                          machine);
  ServeMetrics(prepared.metrics.get(), config, report.get());
  Ending ending;
  {
    SupervisorLoop loop({&config, machine, options.program, redis, embedded.get(), &store,
                         report.get(), &console, &publisher, prepared.metrics.get(), signal_fd});
    ending = loop.Run();
  }
  report->Ended(ending.code, ending.text);
  // Its own Redis ends with it; another's tells other machines how this one ended.
  if (embedded == nullptr)
    publisher.Finish(view::ToJson(report->Snapshot(BootMs())), Deadline::After(kLastViewMs));
  const absl::Status cleaned = store.Finish(Deadline::After(kCleanUpMs));
  if (!cleaned.ok() && embedded == nullptr) {
    report->Event(
        "store", LogLevel::kWarning,
        Cat("keys of this machine stay in Redis until they expire: ", StdView(cleaned.message())));
  }
  embedded.reset();
  dir.RemoveEndpoint();
  report->Event("end", LogLevel::kDebug, ending.text, {{"exit", static_cast<int>(ending.code)}});
  report->WriteSummary(ending.code, ending.text);
  report->Tick(BootMs());  // the last picture
  return ending;
}

}  // namespace

ExitCode RunSupervisor(const Config& wanted, const SupervisorOptions& options) {
  KeepStandardDescriptors();
  Console console(options.out_fd, options.err_fd);
  const std::string hint = LauncherHint();
  if (!hint.empty()) console.Raw(Cat("holdfast run: ", hint));
  auto prepared = Prepare(wanted, options.connect);
  if (!prepared.ok()) {
    console.Raw(Cat("holdfast run: ", StdView(prepared.status().message())));
    return ExitCodeOf(prepared.status());
  }
  const RunDir::Plan& plan = prepared->plan;
  if (plan.finished) {
    console.Line(Cat("run '", plan.config.run, "' in ", prepared->dir.path(),
                     " is already complete at step ", plan.step, ", state digest ", plan.digest));
    return ExitCode::kOk;
  }
  const int signal_fd = BlockSignals();
  if (signal_fd < 0) {
    console.Raw("holdfast run: cannot receive signals (signalfd)");
    return ExitCode::kFailed;
  }
  const auto ending = RunPrepared(*prepared, options, console, signal_fd);
  close(signal_fd);
  console.Leave(true);
  if (!ending.ok()) {
    console.Raw(Cat("holdfast run: ", StdView(ending.status().message())));
    return ExitCodeOf(ending.status());
  }
  console.Raw(Cat("holdfast run: ", ExitCodeText(ending->code), " (exit code ",
                  static_cast<int>(ending->code), "): ", ending->text));
  return ending->code;
}

}  // namespace holdfast
