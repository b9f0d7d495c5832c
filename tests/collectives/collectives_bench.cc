// Measures all-reduce between real processes on one machine, against what loopback TCP itself moves
// in the same run.
//   collectives_bench [--worlds 2,4] [--bytes 4096,...]
// Prints, for each size: median and best time, and bytes / time; the limit for the ring is (bytes
// that all members send) / (rate of loopback TCP): on one machine all members share it.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "runtime/collectives/communicator.h"
#include "runtime/collectives/socket.h"

namespace holdfast {
namespace {

constexpr int64_t kSizes[] = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
constexpr int64_t kMegabyte = 1'000'000;

// GB/s of one stream over loopback TCP between two processes, 256 KiB a call.
double RawLoopback(int64_t total) {
  auto address = ResolveHost("127.0.0.1", 0, Deadline::After(1000), nullptr);
  auto listener = ListenOn(*address);
  if (!listener.ok()) return 0;
  const int port = LocalPort(listener->get());
  const pid_t child = fork();
  std::vector<char> block(256 << 10, 'x');
  if (child == 0) {
    const auto to = ResolveHost("127.0.0.1", port, Deadline::After(1000), nullptr);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&to->storage), to->size) != 0) _exit(1);
    for (int64_t sent = 0; sent < total;) {
      const ssize_t n = send(fd, block.data(), block.size(), MSG_NOSIGNAL);
      if (n <= 0) _exit(1);
      sent += n;
    }
    _exit(0);
  }
  int fd = -1;
  while (fd < 0) fd = accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC);
  const int64_t start = BootUs();
  int64_t got = 0;
  for (ssize_t n = 1; n > 0; got += n) n = recv(fd, block.data(), block.size(), 0);
  const double seconds = static_cast<double>(BootUs() - start) / 1e6;
  close(fd);
  waitpid(child, nullptr, 0);
  return static_cast<double>(got) / seconds / 1e9;
}

struct Timed {
  double median_us = 0, best_us = 0;
};

Timed Measure(Communicator& members, int64_t bytes) {
  std::vector<int64_t> data(static_cast<size_t>(bytes) / 8, 1);
  const int rounds = bytes <= 65536 ? 400 : bytes <= kMegabyte * 2 ? 60 : 10;
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const int64_t start = BootUs();
    const absl::Status status =
        members.Wait(members.AllReduce(data, {.step = i}), Deadline::After(60'000));
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      _exit(1);
    }
    times.push_back(static_cast<double>(BootUs() - start));
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front()};
}

// One member. Ports travel through shared memory of pipes: the parent has made all endpoints' ports
// known before.
int Member(int rank, int world, const int (*to_parent)[2], const int (*to_child)[2], double raw) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto endpoint = TcpEndpoint::Listen({});
  if (!endpoint.ok()) return 1;
  const int port = (*endpoint)->port();
  if (write(to_parent[rank][1], &port, sizeof port) != sizeof port) return 1;
  TcpEndpoint::GroupOptions group;
  group.run = "bench";
  group.secret = "bench";
  group.generation = group.nonce = 1;
  group.rank = rank;
  group.detect_ms = 10'000;
  for (int r = 0; r < world; ++r) {
    int peer = 0;
    if (read(to_child[rank][0], &peer, sizeof peer) != sizeof peer) return 1;
    group.peers.push_back({"127.0.0.1", peer});
  }
  auto built = (*endpoint)->Build(group, nullptr);
  if (!built.ok()) return 1;
  for (const int64_t bytes : kSizes) {
    Measure(**built, bytes);  // warm
    const Timed timed = Measure(**built, bytes);
    if (rank != 0) continue;
    const double wire = 2.0 * (world - 1) * static_cast<double>(bytes);
    std::printf(
        "N=%d %9ld B  median %9.1f us  best %9.1f us  %6.3f GB/s  limit of the wire %9.1f us\n",
        world, bytes, timed.median_us, timed.best_us,
        static_cast<double>(bytes) / timed.median_us / 1e3, wire / raw / 1e3);
    std::fflush(stdout);
  }
  return (*built)->Close(Deadline::After(10'000)).ok() ? 0 : 1;
}

int RunWorld(int world, double raw) {
  int to_parent[TcpEndpoint::kMaxWorldSize][2], to_child[TcpEndpoint::kMaxWorldSize][2];
  for (int r = 0; r < world; ++r) {
    if (pipe(to_parent[r]) != 0 || pipe(to_child[r]) != 0) return 1;
  }
  std::vector<pid_t> children;
  for (int r = 0; r < world; ++r) {
    const pid_t child = fork();
    if (child == 0) _exit(Member(r, world, to_parent, to_child, raw));
    children.push_back(child);
  }
  std::vector<int> ports(static_cast<size_t>(world));
  for (int r = 0; r < world; ++r) {
    if (read(to_parent[r][0], &ports[r], sizeof(int)) != sizeof(int)) return 1;
  }
  for (int r = 0; r < world; ++r) {
    for (const int port : ports) {
      if (write(to_child[r][1], &port, sizeof port) != sizeof port) return 1;
    }
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed += status != 0 ? 1 : 0;
  }
  return failed;
}

}  // namespace
}  // namespace holdfast

int main() {
  const double raw = holdfast::RawLoopback(int64_t{2} << 30);
  std::printf("raw loopback TCP, one stream: %.2f GB/s\n", raw);
  std::fflush(stdout);
  int failed = 0;
  for (const int world : {2, 4}) failed += holdfast::RunWorld(world, raw);
  return failed == 0 ? 0 : 1;
}
