#include "runtime/supervisor/embedded_redis.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "runtime/base/digest.h"
#include "runtime/supervisor/exit_status.h"
#include "runtime/supervisor/process.h"

namespace holdfast {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A port that is free now; Redis itself cannot choose one. Somebody may take it before Redis does:
// the caller tries again.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof address;
  int port = -1;
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    port = ntohs(address.sin_port);
  }
  if (fd >= 0) close(fd);
  return port;
}

// Asks with the password: only the server that was just configured with it says PONG.
bool Answers(const RedisAddress& redis) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const timeval patience{0, 500'000};
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const sockaddr_in address = Loopback(redis.port);
  std::string reply;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    const std::string ask = Cat("AUTH ", redis.password, "\r\nPING\r\n");
    char buffer[256];
    ssize_t n = send(fd, ask.data(), ask.size(), MSG_NOSIGNAL);
    while (n > 0 && reply.find("PONG") == std::string::npos &&
           reply.find('-') == std::string::npos) {
      n = recv(fd, buffer, sizeof buffer, 0);
      if (n > 0) reply.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  return reply.find("+OK") == 0 && reply.find("PONG") != std::string::npos;
}

std::string Configuration(const RedisAddress& redis) {
  return Cat("bind 127.0.0.1\nport ", redis.port, "\nprotected-mode yes\nrequirepass ",
             redis.password,
             "\nsave \"\"\nappendonly no\ndaemonize no\nlogfile \"\"\nloglevel warning\ndir /\n"
             "maxclients 2000\nmaxmemory-policy noeviction\n");
}

// The one beside this program (a bundle has it there), else the one in PATH.
std::string RedisProgram() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string beside = (self.parent_path() / "redis-server").string();
  return !error && access(beside.c_str(), X_OK) == 0 ? beside : "redis-server";
}

// A pipe that already holds `content` and its end.
int PipeWith(const std::string& content) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  const bool whole =
      write(ends[1], content.data(), content.size()) == static_cast<ssize_t>(content.size());
  close(ends[1]);
  if (whole) return ends[0];
  close(ends[0]);
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EmbeddedRedis>> EmbeddedRedis::Start(Deadline deadline) {
  std::unique_ptr<EmbeddedRedis> redis(new EmbeddedRedis());
  redis->address_.password = Hex(RandomBytes(24));
  absl::Status status;
  for (int attempt = 0; attempt < 5; ++attempt) {
    status = redis->StartOnce(FreePort(), deadline);
    if (status.ok()) return redis;
    redis->Stop();
    if (absl::IsNotFound(status) || deadline.passed()) break;
  }
  return WithExit(status, ExitCode::kStore);
}

EmbeddedRedis::~EmbeddedRedis() { Stop(); }

absl::Status EmbeddedRedis::StartOnce(int port, Deadline deadline) {
  if (port < 0) return absl::UnavailableError("embedded Redis: no free port on 127.0.0.1");
  address_.port = port;
  const int input = PipeWith(Configuration(address_));
  int output[2];
  if (input < 0 || pipe2(output, O_CLOEXEC) != 0) {
    if (input >= 0) close(input);
    return absl::UnavailableError(Cat("embedded Redis: pipe: ", std::strerror(errno)));
  }
  SpawnOptions options;
  options.program = RedisProgram();
  options.argv = {"redis-server", "-"};
  options.input_fd = input;
  options.output_fd = output[1];
  const auto pid = Spawn(options);
  close(input);
  close(output[1]);
  output_fd_ = output[0];
  (void)fcntl(output_fd_, F_SETFL, O_NONBLOCK);
  if (!pid.ok()) {
    if (!absl::IsNotFound(pid.status())) return pid.status();
    return absl::NotFoundError(Cat(
        "no --redis was given and the embedded one cannot start: ", StdView(pid.status().message()),
        ". Install it (Debian: apt-get install redis-server) or name a running one with --redis "
        "redis://host:port"));
  }
  pid_ = *pid;
  return WaitUntilItAnswers(deadline);
}

absl::Status EmbeddedRedis::WaitUntilItAnswers(Deadline deadline) {
  while (!Answers(address_)) {
    const std::string how = EndedHow();
    if (!how.empty())
      return absl::UnavailableError(
          Cat("embedded Redis ended at once (", how, "): ", DrainOutput()));
    if (deadline.passed())
      return absl::UnavailableError(Cat("embedded Redis does not answer: ", DrainOutput()));
    pollfd output{output_fd_, 0, 0};  // wakes when Redis dies and its pipe closes
    (void)poll(&output, 1, 10);
  }
  return absl::OkStatus();
}

std::string EmbeddedRedis::EndedHow() {
  (void)DrainOutput();
  if (pid_ < 0) return "not running";
  const ChildChange change = PollChild(pid_);
  if (change.kind == ChildChange::Kind::kExited) {
    pid_ = -1;
    return Cat("exit code ", change.value);
  }
  if (change.kind == ChildChange::Kind::kKilled) {
    pid_ = -1;
    return SignalName(change.value);
  }
  return "";
}

absl::Status EmbeddedRedis::Restart(Deadline deadline) {
  Stop();
  return WithExit(StartOnce(address_.port, deadline), ExitCode::kStore);
}

// Its output is little and must not fill the pipe; the last piece explains a failed start.
std::string EmbeddedRedis::DrainOutput() {
  std::string text;
  char buffer[4096];
  ssize_t n;
  while (output_fd_ >= 0 && (n = read(output_fd_, buffer, sizeof buffer)) > 0) {
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > 8192) text.erase(0, text.size() - 4096);
  }
  return text;
}

void EmbeddedRedis::Stop() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);  // it holds nothing that must be saved
    (void)waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  if (output_fd_ >= 0) close(output_fd_);
  output_fd_ = -1;
}

}  // namespace holdfast
