#include "runtime/cli/main.h"

#include <signal.h>
#include <sys/socket.h>

#include <cstdio>

#include "rendezvous/membership.h"
#include "runtime/base/log.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/flags.h"
#include "runtime/dry_run/dry_run.h"
#include "runtime/session/worker.h"
#include "runtime/supervisor/process.h"
#include "runtime/supervisor/supervisor.h"

namespace holdfast {
namespace {

ExitCode WorkerCommand(const CommandLine& line, const Trainer& trainer) {
  int type = 0;
  socklen_t size = sizeof type;
  if (getsockopt(kChannelFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET) {
    LogError("holdfast worker is started by holdfast run and not by hand");
    return ExitCode::kUsage;
  }
  SetLogName(Cat("worker ", line.slot));
  Channel channel(kChannelFd);
  return RunWorker(channel, trainer);
}

ExitCode Execute(const CommandLine& line, const Trainer& trainer) {
  switch (line.kind) {
    case CommandLine::Kind::kPrinted:
      std::fputs(line.printed.c_str(), stdout);
      return ExitCode::kOk;
    case CommandLine::Kind::kRun: {
      SupervisorOptions options;
      options.connect = rendezvous::Observer::Connect;
      return RunSupervisor(line.config, options);
    }
    case CommandLine::Kind::kDryRun: {
      DryRunOptions options;
      options.json = line.json;
      options.estimate.link_gbits = line.link_gbits;
      options.estimate.price_per_hour = line.price_per_hour;
      return DryRun(line.config, options, trainer);
    }
    case CommandLine::Kind::kWorker:
      return WorkerCommand(line, trainer);
    case CommandLine::Kind::kStatus:
      return StatusCommand(line);
    case CommandLine::Kind::kStop:
      return StopCommand(line);
    case CommandLine::Kind::kCheckpointList:
      return CheckpointListCommand(line);
    case CommandLine::Kind::kCheckpointVerify:
      return CheckpointVerifyCommand(line);
    case CommandLine::Kind::kCheckpointExport:
      return CheckpointExportCommand(line, trainer);
    case CommandLine::Kind::kSample:
      return SampleCommand(line, trainer);
  }
  return ExitCode::kFailed;
}

}  // namespace

int Main(int argc, char** argv, const Trainer& trainer) {
  KeepStandardDescriptors();
  signal(SIGPIPE, SIG_IGN);
  const auto line = ParseCommandLine(
      std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc), trainer.name);
  if (!line.ok()) {
    std::fprintf(stderr, "holdfast: %s\n", std::string(line.status().message()).c_str());
    return static_cast<int>(ExitCode::kUsage);
  }
  return static_cast<int>(Execute(*line, trainer));
}

}  // namespace holdfast
