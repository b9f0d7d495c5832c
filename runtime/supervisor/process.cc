#include "runtime/supervisor/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "runtime/base/status.h"

namespace holdfast {
namespace {

// Everything here runs between fork and exec: async-signal-safe calls only.
[[noreturn]] void BecomeChild(const SpawnOptions& options, char* const* argv, pid_t parent,
                              int error_fd) {
  const auto fail = [&] {
    const int error = errno;
    (void)!write(error_fd, &error, sizeof error);
    _exit(127);
  };
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail();
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  (void)setpgid(0, 0);
  for (const int number : {SIGTERM, SIGINT, SIGCHLD, SIGTSTP, SIGUSR1, SIGUSR2})
    signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // Lift what is needed above the targets first: a source may lie on a target's number.
  const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  const auto lift = [&](int fd) { return fcntl(fd < 0 ? null_fd : fd, F_DUPFD_CLOEXEC, 10); };
  const int in = lift(options.input_fd), out = lift(options.output_fd);
  const int channel = options.channel_fd < 0 ? -1 : lift(options.channel_fd);
  const int error_high = fcntl(error_fd, F_DUPFD_CLOEXEC, 10);
  error_fd = error_high;
  if (in < 0 || out < 0 || error_high < 0) fail();
  if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) fail();
  if (options.channel_fd >= 0 && (channel < 0 || dup2(channel, 3) < 0)) fail();
  // Whatever else this program was started with is not the child's.
  (void)close_range(options.channel_fd >= 0 ? 4 : 3, ~0U, CLOSE_RANGE_CLOEXEC);
  execvp(options.program.c_str(), argv);
  fail();
  _exit(127);
}

// The first number after `name` in a file of "name number" lines; -1 when there is none.
int64_t Counter(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  int64_t value = 0;
  while (file >> word >> value) {
    if (word == name) return value;
  }
  return -1;
}

// The path of this process inside the control group hierarchy that counts memory.
int64_t ControlGroupKills() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      path = line.substr(second + 1);
    if (controllers.empty()) {
      const int64_t kills = Counter(Cat("/sys/fs/cgroup", path, "/memory.events"), "oom_kill");
      if (kills >= 0) return kills;
    } else if (Cat(",", controllers, ",").find(",memory,") != std::string::npos) {
      const int64_t kills =
          Counter(Cat("/sys/fs/cgroup/memory", path, "/memory.oom_control"), "oom_kill");
      if (kills >= 0) return kills;
    }
  }
  return -1;
}

}  // namespace

absl::StatusOr<pid_t> Spawn(const SpawnOptions& options) {
  std::vector<char*> argv;
  for (const std::string& argument : options.argv)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int error_pipe[2];
  if (pipe2(error_pipe, O_CLOEXEC) != 0)
    return absl::UnavailableError(Cat("pipe: ", std::strerror(errno)));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeChild(options, argv.data(), parent, error_pipe[1]);
  const int fork_error = errno;
  close(error_pipe[1]);
  if (pid < 0) {
    close(error_pipe[0]);
    return absl::UnavailableError(Cat("cannot start a process: ", std::strerror(fork_error)));
  }
  int error = 0;
  ssize_t got;
  do {
    got = read(error_pipe[0], &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  close(error_pipe[0]);
  if (got == sizeof error) {
    (void)waitpid(pid, nullptr, 0);
    return absl::NotFoundError(Cat("cannot start ", options.program, ": ", std::strerror(error)));
  }
  return pid;
}

std::string SignalName(int signal_number) {
  const char* name = sigabbrev_np(signal_number);
  return name == nullptr ? Cat("signal ", signal_number) : Cat("SIG", name);
}

void KeepStandardDescriptors() {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);  // without O_CLOEXEC: takes the lowest free number
  } while (fd >= 0 && fd <= 2);
  if (fd > 2) close(fd);
}

ChildChange PollChild(pid_t pid) {
  int status = 0;
  const pid_t got = waitpid(pid, &status, WNOHANG | WUNTRACED | WCONTINUED);
  if (got != pid) return {};
  if (WIFEXITED(status)) return {ChildChange::Kind::kExited, WEXITSTATUS(status)};
  if (WIFSIGNALED(status)) return {ChildChange::Kind::kKilled, WTERMSIG(status)};
  if (WIFSTOPPED(status)) return {ChildChange::Kind::kStopped, WSTOPSIG(status)};
  if (WIFCONTINUED(status)) return {ChildChange::Kind::kContinued, 0};
  return {};
}

int64_t MemoryLimitKills() {
  const int64_t machine = Counter("/proc/vmstat", "oom_kill");
  const int64_t group = ControlGroupKills();
  return (machine < 0 ? 0 : machine) + (group < 0 ? 0 : group);
}

}  // namespace holdfast
