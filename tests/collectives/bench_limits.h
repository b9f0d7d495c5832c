// What two processes of this machine can do at most: the limits that collectives_bench compares
// with, measured beside it.
//
// Definitions, for an all-reduce of S bytes between two members:
//   memcpy      one thread copies S bytes from one private array to another
//   raw TCP     S bytes each way at the same time over one loopback connection (so much must every
//               two-member all-reduce send and receive), one thread each, non-blocking, 256 KiB a
//               call, no framing, no checksum, no sum
//   shm limit   both arrays lie in memory that both processes have mapped; each adds one half of
//               the two into its own and then copies the other half from the other, with a barrier
//               between and after: no protocol, no other thread, one call for each half
//
// Threads: one. Both processes call the same functions in the same order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/collectives/socket.h"

namespace holdfast {

// Memory that two processes share: made before the fork. Two arrays of `bytes`, and a barrier.
class SharedPair {
 public:
  explicit SharedPair(int64_t bytes);
  ~SharedPair();
  SharedPair(const SharedPair&) = delete;
  SharedPair& operator=(const SharedPair&) = delete;
  std::span<int64_t> array(int rank) const { return {words_ + rank * count_, count_}; }
  // Both have come here. Spins a little, then yields.
  void Barrier(int rank);

 private:
  struct alignas(64) Turn {
    std::atomic<uint64_t> value{0};
  };
  std::byte* map_ = nullptr;
  int64_t* words_ = nullptr;
  size_t count_ = 0;
  Turn* turns_ = nullptr;
};

// The all-reduce of the definition above, of the first `words` words.
void LimitAllReduce(SharedPair* pair, int rank, size_t words);

// Both ends of one loopback connection, made before the fork.
struct Connection {
  Fd end[2];
};
Connection Connect();
// `bytes` each way; `scratch` has kExchangeBlock bytes. False when the other end has gone.
inline constexpr size_t kExchangeBlock = 256 << 10;
bool Exchange(int fd, int64_t bytes, std::span<std::byte> scratch);

}  // namespace holdfast
