#include "tests/collectives/members.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <thread>

#include "gtest/gtest.h"
#include "runtime/base/clock.h"
#include "runtime/collectives/communicator.h"
#include "runtime/collectives/shared_block.h"

extern char** environ;

namespace holdfast {

MemberProcess::MemberProcess(int rank, int world, const std::string& mode, int64_t detect_ms) {
  int down[2], up[2];
  EXPECT_EQ(pipe2(down, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(up, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, down[0], 0);
  posix_spawn_file_actions_adddup2(&actions, up[1], 1);
  std::vector<std::string> arguments = {
      "member", "member", std::to_string(rank), std::to_string(world), std::to_string(detect_ms),
      mode};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(down[0]);
  close(up[1]);
  to_ = down[1];
  from_ = up[0];
}

MemberProcess::~MemberProcess() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(to_);
  close(from_);
}

void MemberProcess::Signal(int signal) const { kill(pid_, signal); }

void MemberProcess::Say(const std::string& line) const {
  const std::string bytes = line + "\n";
  EXPECT_EQ(write(to_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
}

std::string MemberProcess::Hear(int64_t ms) {
  const Deadline deadline = Deadline::After(ms);
  for (;;) {
    const size_t end = heard_.find('\n');
    if (end != std::string::npos) {
      const std::string line = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      return line;
    }
    pollfd polled = {from_, POLLIN, 0};
    if (poll(&polled, 1, static_cast<int>(deadline.left_ms())) <= 0) return "";
    char bytes[4096];
    const ssize_t n = read(from_, bytes, sizeof bytes);
    if (n <= 0) return "";
    heard_.append(bytes, static_cast<size_t>(n));
  }
}

int MemberProcess::ExitCode(int64_t ms) {
  int status = 0;
  for (const Deadline deadline = Deadline::After(ms); waitpid(pid_, &status, WNOHANG) != pid_;) {
    if (deadline.passed()) return -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

MemberWorld::MemberWorld(int world, const std::string& mode, int64_t detect_ms) {
  std::string ports;
  for (int r = 0; r < world; ++r) {
    members_.push_back(std::make_unique<MemberProcess>(r, world, mode, detect_ms));
  }
  for (auto& member : members_) ports += member->Hear(30'000) + " ";
  for (auto& member : members_) member->Say(ports);
  for (auto& member : members_) EXPECT_EQ(member->Hear(60'000), "ready");
}

namespace {

void SayToParent(const std::string& line) { std::cout << line << std::endl; }

// The error, and when it was seen.
void SayError(const absl::Status& status) {
  SayToParent("error " + std::to_string(BootUs()) + " " + std::string(status.message()));
}

}  // namespace

int RunMember(int argc, char** argv) {
  if (argc != 6) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing stays behind when the test itself is killed
  TcpEndpoint::GroupOptions group;
  group.rank = std::stoi(argv[2]);
  group.detect_ms = std::stoll(argv[4]);
  group.run = "run-1";
  group.secret = "a secret of the test";
  group.generation = 1;
  group.nonce = 77;
  group.connect_ms = 60'000;
  auto endpoint = TcpEndpoint::Listen({});
  if (!endpoint.ok()) return 3;
  SayToParent(std::to_string((*endpoint)->port()));
  for (int r = 0; r < std::stoi(argv[3]); ++r) {
    int port = 0;
    std::cin >> port;
    group.peers.push_back({"127.0.0.1", port});
  }
  std::istringstream mode(argv[5]);
  std::string carrier, name;
  int64_t bytes = 0;
  mode >> carrier >> name >> bytes;
  group.transport = carrier == "tcp" ? Transport::kTcp : Transport::kShm;
  auto block = SharedBlock::Create(std::max<int64_t>(bytes, 8), carrier != "staged");
  if (!block.ok()) return 5;
  group.shared = {&*block};
  auto built = (*endpoint)->Build(group, nullptr);
  if (!built.ok()) {
    SayError(built.status());
    return 4;
  }
  Communicator& members = **built;
  SayToParent("ready");
  const std::span<int64_t> data(block->as<int64_t>(), static_cast<size_t>(bytes) / 8);
  const Deadline end = Deadline::After(120'000);
  for (int64_t round = 0; !end.passed(); ++round) {
    if (name == "reduce") {
      SayToParent("round " + std::to_string(round));
      const absl::Status status = members.Wait(members.AllReduce(data, {.step = round}), end);
      if (!status.ok()) break;
    } else {
      if (!members.Health().ok()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  SayError(members.Health());
  // The parent kills: a member's own end must not be taken for the error that the others are to
  // see.
  std::string forever;
  std::cin >> forever;
  return 0;
}

}  // namespace holdfast
