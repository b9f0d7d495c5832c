#include "chaos/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "runtime/base/digest.h"
#include "runtime/base/text.h"

extern char** environ;

namespace holdfast::chaos {
namespace {

absl::Status SystemError(std::string_view what) {
  return absl::InternalError(Cat(what, ": ", strerror(errno)));
}

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> SplitZeros(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\0', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::vector<pid_t> AllPids() {
  std::vector<pid_t> pids;
  DIR* folder = opendir("/proc");
  if (folder == nullptr) return pids;
  while (const dirent* entry = readdir(folder)) {
    int pid;
    if (absl::SimpleAtoi(entry->d_name, &pid)) pids.push_back(pid);
  }
  closedir(folder);
  return pids;
}

void SortByStart(std::vector<ProcessInfo>* list) {
  std::sort(list->begin(), list->end(), [](const ProcessInfo& a, const ProcessInfo& b) {
    return std::pair(a.start_ticks, a.pid) < std::pair(b.start_ticks, b.pid);
  });
}

// The number after "--slot" (or in "--slot=N"), -1 when there is none.
int SlotArgument(const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    int slot;
    if (args[i] == "--slot" && i + 1 < args.size() && absl::SimpleAtoi(args[i + 1], &slot))
      return slot;
    if (args[i].starts_with("--slot=") && absl::SimpleAtoi(args[i].substr(7), &slot)) return slot;
  }
  return -1;
}

// In the child, between fork and exec: async-signal-safe calls only.
[[noreturn]] void RunChild(char** args, char** env, int output, int input, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(input, 0);
  dup2(output, 1);
  dup2(output, 2);
  execve(args[0], args, env);
  _exit(127);
}

}  // namespace

namespace internal {
void SleepMs(int64_t ms) {
  const timespec time{.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1'000'000};
  nanosleep(&time, nullptr);
}
}  // namespace internal

std::string EndState::Text() const {
  if (exited) return Cat("exit ", code);
  return Cat("signal ", signal, " (", strsignal(signal), ")");
}

std::string ProcessInfo::Text() const {
  std::string text = Cat("pid ", pid, " (", std::string(1, state), "):");
  for (const std::string& arg : args) text += " " + arg;
  return text;
}

ChildProcess::ChildProcess(pid_t pid, std::string mark, SpawnOptions options)
    : pid_(pid), mark_(std::move(mark)), options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const SpawnOptions& options) {
  if (options.args.empty()) return absl::InvalidArgumentError("no program to start");
  const int output =
      open(options.output_path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  if (output < 0) return SystemError(Cat("output file ", options.output_path));
  int input[2];
  if (pipe2(input, O_CLOEXEC) != 0) {
    close(output);
    return SystemError("pipe");
  }
  const ssize_t wrote =
      options.input.empty() ? 0 : write(input[1], options.input.data(), options.input.size());
  close(input[1]);

  const std::string mark = Hex64(RandomNonce());
  std::vector<std::string> env_text;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (name != kMarkVariable && options.env.count(name) == 0) env_text.push_back(text);
  }
  for (const auto& [name, value] : options.env) env_text.push_back(Cat(name, "=", value));
  env_text.push_back(Cat(kMarkVariable, "=", mark));
  std::vector<std::string> args_text = options.args;
  std::vector<char*> args, env;
  for (std::string& text : args_text) args.push_back(text.data());
  for (std::string& text : env_text) env.push_back(text.data());
  args.push_back(nullptr);
  env.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) RunChild(args.data(), env.data(), output, input[0], parent);
  close(output);
  close(input[0]);
  if (pid < 0) return SystemError("fork");
  setpgid(pid, pid);  // here too: whoever comes first
  std::unique_ptr<ChildProcess> child(new ChildProcess(pid, mark, options));
  if (wrote != static_cast<ssize_t>(options.input.size())) {
    return absl::InvalidArgumentError("standard input is longer than a pipe holds");
  }
  return child;
}

ChildProcess::~ChildProcess() {
  // Whoever was forked between the look and the kill is found by the next look.
  for (int round = 0; round < 100; ++round) {
    if (!end_) kill(pid_, SIGKILL);
    const std::vector<ProcessInfo> left = MarkedProcesses(mark_);
    for (const ProcessInfo& process : left) kill(process.pid, SIGKILL);
    for (const ProcessInfo& process : left) {
      if (process.pid != pid_) waitpid(process.pid, nullptr, WNOHANG);  // ours only if adopted
    }
    Poll();
    if (end_ && left.empty()) return;
    internal::SleepMs(5);
  }
}

std::optional<EndState> ChildProcess::Poll() {
  if (end_) return end_;
  int status = 0;
  const pid_t got = waitpid(pid_, &status, WNOHANG);
  if (got == pid_ && (WIFEXITED(status) || WIFSIGNALED(status))) {
    EndState end;
    end.exited = WIFEXITED(status);
    if (end.exited) end.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
    end_ = end;
  } else if (got < 0 && errno == ECHILD) {
    end_ =
        EndState{.exited = true, .code = 127};  // reaped elsewhere: cannot happen to a ChildProcess
  }
  return end_;
}

absl::StatusOr<EndState> ChildProcess::Wait(Deadline deadline) {
  for (int64_t round = 0;; ++round) {
    if (const auto end = Poll()) return *end;
    struct stat info;
    if (round % 64 == 63 && stat(options_.output_path.c_str(), &info) == 0 &&
        info.st_size > options_.output_limit_bytes) {
      return absl::ResourceExhaustedError(Cat(options_.output_path, ": more than ",
                                              options_.output_limit_bytes, " bytes of output"));
    }
    if (deadline.passed()) {
      return absl::DeadlineExceededError(Cat("still running: ", options_.args[0], ", pid ", pid_));
    }
    internal::SleepMs(std::min<int64_t>(5, deadline.left_ms()));
  }
}

absl::Status ChildProcess::Signal(int signal) const {
  if (end_)
    return absl::FailedPreconditionError(Cat("process ", pid_, " has ended: ", end_->Text()));
  if (kill(pid_, signal) != 0) return SystemError(Cat("kill ", pid_));
  return absl::OkStatus();
}

std::string ChildProcess::Output(size_t bytes) const {
  std::ifstream file(options_.output_path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const size_t size = static_cast<size_t>(file.tellg());
  const size_t take = std::min(size, bytes);
  std::string text(take, '\0');
  file.seekg(static_cast<std::streamoff>(size - take));
  file.read(text.data(), static_cast<std::streamsize>(take));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

std::optional<ProcessInfo> ReadProcess(pid_t pid) {
  const std::string folder = Cat("/proc/", pid, "/");
  const std::string stat = ReadWhole(folder + "stat");
  // The name in parentheses may hold anything: fields are counted from the last ')'.
  const size_t close = stat.rfind(')');
  if (close == std::string::npos || close + 2 >= stat.size()) return std::nullopt;
  ProcessInfo info;
  info.pid = pid;
  std::istringstream rest(stat.substr(close + 2));
  std::string skip;
  rest >> info.state >> info.parent;
  for (int field = 5; field < 22; ++field) rest >> skip;
  rest >> info.start_ticks;
  info.args = SplitZeros(ReadWhole(folder + "cmdline"));
  return info;
}

std::vector<ProcessInfo> MarkedProcesses(const std::string& mark) {
  const std::string wanted = Cat(kMarkVariable, "=", mark);
  std::vector<ProcessInfo> found;
  for (const pid_t pid : AllPids()) {
    const std::vector<std::string> env = SplitZeros(ReadWhole(Cat("/proc/", pid, "/environ")));
    if (std::find(env.begin(), env.end(), wanted) == env.end()) continue;
    const auto info = ReadProcess(pid);
    if (info && info->state != 'Z' && info->state != 'X') found.push_back(*info);
  }
  SortByStart(&found);
  return found;
}

std::vector<WorkerInfo> WorkersOf(pid_t supervisor) {
  std::vector<ProcessInfo> children;
  for (const pid_t pid : AllPids()) {
    const auto info = ReadProcess(pid);
    if (!info || info->parent != supervisor || info->state == 'Z' || info->state == 'X') continue;
    if (std::find(info->args.begin(), info->args.end(), "worker") != info->args.end())
      children.push_back(*info);
  }
  SortByStart(&children);
  std::vector<WorkerInfo> workers;
  for (size_t i = 0; i < children.size(); ++i) {
    const int slot = SlotArgument(children[i].args);
    workers.push_back({slot >= 0 ? slot : static_cast<int>(i), children[i]});
  }
  std::stable_sort(workers.begin(), workers.end(),
                   [](const WorkerInfo& a, const WorkerInfo& b) { return a.slot < b.slot; });
  return workers;
}

std::optional<WorkerInfo> WorkerInSlot(pid_t supervisor, int slot) {
  for (const WorkerInfo& worker : WorkersOf(supervisor)) {
    if (worker.slot == slot) return worker;
  }
  return std::nullopt;
}

void AdoptOrphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

}  // namespace holdfast::chaos
