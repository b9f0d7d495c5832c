#include "runtime/supervisor/worker_child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {
constexpr size_t kLinesKept = 20, kLineMax = 4096;
constexpr int kReadsPerCall = 64;
}  // namespace

absl::StatusOr<std::unique_ptr<WorkerChild>> WorkerChild::Start(const WorkerStart& start) {
  int pair[2], output[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return absl::UnavailableError(Cat("socketpair: ", std::strerror(errno)));
  }
  std::unique_ptr<WorkerChild> child(new WorkerChild());
  child->channel_ = std::make_unique<Channel>(pair[0]);
  if (pipe2(output, O_CLOEXEC) != 0) {
    close(pair[1]);
    return absl::UnavailableError(Cat("pipe: ", std::strerror(errno)));
  }
  child->output_fd_ = output[0];
  (void)fcntl(output[0], F_SETFL, O_NONBLOCK);
  child->slot_ = start.slot;
  child->member_id_ = start.member_id;
  child->started_ms = child->last_message_ms = BootMs();
  child->channel_->Send(start.start_message);  // waits in the socket until the worker reads it
  SpawnOptions options;
  options.program = start.program;
  options.argv = {"holdfast", "worker", "--slot", Cat(start.slot), "--run", start.run};
  options.output_fd = output[1];
  options.channel_fd = pair[1];
  const auto pid = Spawn(options);
  close(output[1]);
  close(pair[1]);
  if (!pid.ok()) return pid.status();
  child->pid_ = *pid;
  child->running_ = true;
  if (child->channel_->dropped() > 0) {
    return absl::ResourceExhaustedError(
        Cat("the start message of ", start.start_message.size(),
            " bytes does not fit; shorten the configuration (data lists, [model] table)"));
  }
  return child;
}

WorkerChild::~WorkerChild() {
  if (running_) {
    kill(pid_, SIGKILL);
    (void)waitpid(pid_, nullptr, 0);
  }
  if (output_fd_ >= 0) close(output_fd_);
}

void WorkerChild::TakeLine(std::string line, const std::function<void(const std::string&)>& take) {
  if (!line.empty() && line.back() == '\r') line.pop_back();
  last_lines_.push_back(line);
  if (last_lines_.size() > kLinesKept) last_lines_.pop_front();
  take(line);
}

bool WorkerChild::ReadOutput(const std::function<void(const std::string&)>& take) {
  char buffer[8192];
  for (int i = 0; i < kReadsPerCall && output_fd_ >= 0; ++i) {
    const ssize_t n = read(output_fd_, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return false;
    if (n <= 0) {
      if (!partial_.empty()) TakeLine(std::move(partial_), take);
      partial_.clear();
      close(output_fd_);
      output_fd_ = -1;
      return false;
    }
    for (ssize_t c = 0; c < n; ++c) {
      if (buffer[c] != '\n') partial_ += buffer[c];
      if (buffer[c] == '\n' || partial_.size() >= kLineMax) {
        TakeLine(std::move(partial_), take);
        partial_.clear();
      }
    }
  }
  return output_fd_ >= 0;
}

bool WorkerChild::ReadMessages(const std::function<void(const Json&)>& take) {
  for (int i = 0; i < kReadsPerCall && channel_open_; ++i) {
    const auto message = channel_->Receive();
    if (absl::IsNotFound(message.status())) return false;
    if (!message.ok()) {
      channel_open_ = false;
      return false;
    }
    const Json json = Json::parse(*message, nullptr, false);
    if (!json.is_object()) continue;
    last_message_ms = BootMs();
    take(json);
  }
  return channel_open_;
}

void WorkerChild::Drain(const std::string& cause) {
  const int64_t before = channel_->dropped();
  if (channel_open_) channel_->Send(Json{{"type", "drain"}, {"cause", cause}}.dump());
  // SIGTERM means the same to a worker; it gets through where the channel does not.
  if ((!channel_open_ || channel_->dropped() != before) && running_) kill(pid_, SIGTERM);
}

void WorkerChild::Kill(const std::string& why) {
  if (killed_why.empty()) killed_why = why;
  if (running_) kill(pid_, SIGKILL);
}

}  // namespace holdfast
