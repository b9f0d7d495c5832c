// Helpers of the collective tests: several members in one process, each with an endpoint and a
// thread of its own.
#pragma once

#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/collectives/communicator.h"
#include "runtime/collectives/shared_block.h"

namespace holdfast {

inline constexpr int64_t kLongMs = 60'000;  // a bound against hanging, never reached in a good run

inline Deadline Long() { return Deadline::After(kLongMs); }

// For names of parametrised tests.
inline std::string TransportText(Transport transport) {
  return transport == Transport::kTcp ? "Tcp" : transport == Transport::kShm ? "Shm" : "Auto";
}

class World {
 public:
  explicit World(int size, const TcpEndpoint::Options& options = {})
      : World(size, Transport::kAuto, options) {}
  World(int size, Transport carrier, const TcpEndpoint::Options& options = {})
      : transport(carrier), shared(static_cast<size_t>(size)) {
    for (int r = 0; r < size; ++r) {
      auto endpoint = TcpEndpoint::Listen(options);
      EXPECT_TRUE(endpoint.ok()) << endpoint.status();
      endpoints.push_back(std::move(*endpoint));
      peers.push_back({"127.0.0.1", endpoints.back()->port()});
    }
  }

  int size() const { return static_cast<int>(endpoints.size()); }

  TcpEndpoint::GroupOptions Group(int rank, uint64_t generation = 1) const {
    TcpEndpoint::GroupOptions group;
    group.run = "run-1";
    group.secret = "a secret of the test";
    group.generation = generation;
    group.nonce = generation * 1000 + 7;
    group.rank = rank;
    group.peers = peers;
    group.connect_ms = kLongMs;
    group.detect_ms = detect_ms;
    group.transport = transport;
    group.shared = shared[static_cast<size_t>(rank)];
    return group;
  }

  // One thread for each member.
  void Run(const std::function<void(int rank)>& body) const {
    std::vector<std::thread> threads;
    for (int r = 0; r < size(); ++r) threads.emplace_back([&body, r] { body(r); });
    for (std::thread& thread : threads) thread.join();
  }

  // Builds one generation of all members.
  std::vector<std::unique_ptr<Communicator>> Build(uint64_t generation = 1) {
    std::vector<std::unique_ptr<Communicator>> made(endpoints.size());
    Run([&](int r) {
      auto communicator = endpoints[r]->Build(Group(r, generation), nullptr);
      EXPECT_TRUE(communicator.ok()) << communicator.status();
      if (!communicator.ok()) return;
      // A test of shared memory must not pass over TCP.
      if (transport != Transport::kAuto) {
        EXPECT_EQ((*communicator)->Carrier().substr(0, 3), CarrierText());
      }
      made[r] = std::move(*communicator);
    });
    return made;
  }

  std::string CarrierText() const {
    if (size() == 1) return "loc";
    return transport == Transport::kTcp ? "tcp" : "shm";
  }

  Transport transport;
  std::vector<std::vector<const SharedBlock*>> shared;  // of each member
  std::vector<std::unique_ptr<TcpEndpoint>> endpoints;
  std::vector<PeerAddress> peers;
  // None of these tests is about silence: a machine so loaded that a thread gets no CPU for
  // seconds must not matter.
  int64_t detect_ms = kLongMs;
};

// A plain blocking client socket: what a stranger has.
int ConnectTo(int port);

// The value that member `rank` contributes at `i`; sums of several wrap round.
inline int64_t Value(int rank, int64_t i, uint64_t seed = 0) {
  uint64_t x = (static_cast<uint64_t>(rank) * 0x9E3779B97F4A7C15ull) ^
               (static_cast<uint64_t>(i) * 0xD1342543DE82EF95ull) ^ seed;
  x ^= x >> 29;
  return static_cast<int64_t>(x * 0xBF58476D1CE4E5B9ull);
}
inline int64_t SumOfValues(int world, int64_t i, uint64_t seed = 0) {
  uint64_t sum = 0;
  for (int r = 0; r < world; ++r) sum += static_cast<uint64_t>(Value(r, i, seed));
  return static_cast<int64_t>(sum);
}

// All-reduce of `count` values on every member, checked.
inline void CheckAllReduce(const World& world,
                           const std::vector<std::unique_ptr<Communicator>>& members, int64_t count,
                           uint64_t seed) {
  world.Run([&](int r) {
    std::vector<int64_t> data(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) data[i] = Value(r, i, seed);
    const absl::Status status = members[r]->Wait(members[r]->AllReduce(data, {.step = 3}), Long());
    ASSERT_TRUE(status.ok()) << status;
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(data[i], SumOfValues(world.size(), i, seed)) << r << " " << i;
  });
}

}  // namespace holdfast
