#include "tests/rendezvous/redis_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "gtest/gtest.h"
#include "runtime/base/clock.h"
#include "runtime/base/digest.h"
#include "runtime/base/text.h"

namespace holdfast::rendezvous {

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

RedisServer::RedisServer(int port, const std::string& extra, const std::string& password)
    : port_(port > 0 ? port : FreePort()),
      password_(password.empty() ? Hex(RandomBytes(16)) : password) {
  int in[2];
  if (pipe2(in, O_CLOEXEC) != 0) ADD_FAILURE() << "pipe";
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(in[0], STDIN_FILENO);
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    execlp("redis-server", "redis-server", "-", static_cast<char*>(nullptr));
    _exit(127);
  }
  close(in[0]);
  const std::string config =
      Cat("port ", port_, "\nbind 127.0.0.1\nrequirepass ", password_, "\nmasterauth ", password_,
          "\nsave \"\"\nappendonly no\ndir /tmp\n", extra, "\n");
  EXPECT_EQ(write(in[1], config.data(), config.size()), static_cast<ssize_t>(config.size()));
  close(in[1]);
  RedisConnection connection(Endpoint());
  const Deadline deadline = Deadline::After(20'000);
  while (!connection.Command({"PING"}).ok()) {
    if (deadline.passed()) {
      ADD_FAILURE() << "redis-server does not answer";
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

RedisServer::~RedisServer() { Kill(); }

void RedisServer::Signal(int signal) const { kill(pid_, signal); }

void RedisServer::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

RedisEndpoint RedisServer::Endpoint() const {
  return {"127.0.0.1", port_, "", password_, 2000, 5000};
}

RedisReply RedisServer::Admin(const std::vector<std::string>& command) const {
  RedisConnection connection(Endpoint());
  auto reply = connection.Command(command);
  EXPECT_TRUE(reply.ok()) << reply.status();
  return reply.ok() ? *reply : RedisReply();
}

std::vector<std::string> RedisServer::Keys() const {
  std::vector<std::string> out;
  for (const RedisReply& key : Admin({"KEYS", "*"}).list) out.push_back(key.text);
  return out;
}

absl::Status MapMarks::Put(std::string_view key, std::string_view value) {
  std::lock_guard lock(mutex_);
  values_[std::string(key)] = value;
  return absl::OkStatus();
}

absl::StatusOr<std::string> MapMarks::Get(std::string_view key) const {
  std::lock_guard lock(mutex_);
  const auto it = values_.find(key);
  if (it == values_.end()) return absl::NotFoundError("no such mark");
  return it->second;
}

}  // namespace holdfast::rendezvous
