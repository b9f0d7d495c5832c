#include "tests/collectives/bench_limits.h"

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

namespace holdfast {
namespace {

constexpr size_t kPage = 4096;
constexpr int kSpins = 2000;

}  // namespace

SharedPair::SharedPair(int64_t bytes) : count_(static_cast<size_t>(bytes) / sizeof(int64_t)) {
  void* at = mmap(nullptr, kPage + 2 * count_ * sizeof(int64_t), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::abort();
  map_ = static_cast<std::byte*>(at);
  turns_ = new (map_) Turn[2];
  words_ = reinterpret_cast<int64_t*>(map_ + kPage);
}

SharedPair::~SharedPair() { munmap(map_, kPage + 2 * count_ * sizeof(int64_t)); }

void SharedPair::Barrier(int rank) {
  const uint64_t mine = turns_[rank].value.load(std::memory_order_relaxed) + 1;
  turns_[rank].value.store(mine);
  for (int spin = 0; turns_[1 - rank].value.load() < mine; ++spin) {
    if (spin > kSpins) sched_yield();
  }
}

void LimitAllReduce(SharedPair* pair, int rank, size_t words) {
  const size_t half = words / 2, begin = rank == 0 ? 0 : half,
               size = rank == 0 ? half : words - half;
  int64_t* mine = pair->array(rank).data();
  const int64_t* other = pair->array(1 - rank).data();
  for (size_t i = begin; i < begin + size; ++i)
    mine[i] =
        static_cast<int64_t>(static_cast<uint64_t>(mine[i]) + static_cast<uint64_t>(other[i]));
  pair->Barrier(rank);
  const size_t rest = rank == 0 ? half : 0;
  std::memcpy(mine + rest, other + rest, (words - size) * sizeof(int64_t));
  pair->Barrier(rank);
}

Connection Connect() {
  const auto address = ResolveHost("127.0.0.1", 0, Deadline::After(1000), nullptr);
  auto listener = ListenOn(*address);
  if (!listener.ok()) std::abort();
  const auto to =
      ResolveHost("127.0.0.1", LocalPort(listener->get()), Deadline::After(1000), nullptr);
  Connection made;
  auto dialed = StartConnect(*to);
  if (!dialed.ok()) std::abort();
  made.end[0] = std::move(*dialed);
  pollfd polled = {listener->get(), POLLIN, 0};
  poll(&polled, 1, 1000);
  made.end[1] = Fd(accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!made.end[1].valid()) std::abort();
  for (const Fd& end : made.end) SetLinkOptions(end.get(), 60'000);
  return made;
}

bool Exchange(int fd, int64_t bytes, std::span<std::byte> scratch) {
  int64_t sent = 0, got = 0;
  while (sent < bytes || got < bytes) {
    bool moved = false;
    if (sent < bytes) {
      const size_t size = std::min<size_t>(scratch.size(), static_cast<size_t>(bytes - sent));
      const ssize_t n = send(fd, scratch.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) return false;
      if (n > 0) sent += n, moved = true;
    }
    if (got < bytes) {
      const size_t size = std::min<size_t>(scratch.size(), static_cast<size_t>(bytes - got));
      const ssize_t n = recv(fd, scratch.data(), size, MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
      if (n > 0) got += n, moved = true;
    }
    if (moved) continue;
    pollfd polled = {
        fd, static_cast<short>((got < bytes ? POLLIN : 0) | (sent < bytes ? POLLOUT : 0)), 0};
    poll(&polled, 1, 1000);
  }
  return true;
}

}  // namespace holdfast
