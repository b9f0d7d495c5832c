// The data of collectives: one Launch is what a group (or a single call) gives to a stream. Its
// thread runs it: it moves bytes over the connections to all peers until every operation is over,
// its communicator is stopped, or the device is lost. It does not notice that a peer has died or
// stands still: then it stands, too, as a kernel would.
//
// Every rank announces each collective to all others, and none is over before all have: so it
// occupies the streams of all. Sums are made by the owner of a slice, in an order that
// HOLDFAST_EMU_SUM_SEED draws, and sent to the others.
//
// Threads: the launches of one communicator run one after the other, in the order of the calls,
// whatever their streams.
#pragma once

#include <nccl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tests/emulation/nccl/meeting.h"

namespace holdfast::emulation {

enum class OpKind : uint8_t {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kSend,
  kReceive,
  kKinds
};
const char* NameOf(OpKind kind);

struct Operation {
  OpKind kind = OpKind::kAllReduce;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int root = 0;  // or the peer
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;  // as in the call
  // Of the communicator's collectives; of the messages to (or from) the peer.
  uint64_t serial = 0;
};

// Before each piece of data on a connection.
struct DataHeader {
  enum What : uint8_t { kArrive, kPart, kResult, kMessage };
  uint32_t magic = 0;
  What what = kArrive;
  OpKind kind = OpKind::kAllReduce;
  uint8_t type = 0, op = 0;
  int32_t root = 0;
  uint32_t unused = 0;
  uint64_t serial = 0, count = 0, bytes = 0;
};

// The data connection to a peer, with what was read of it but not used.
struct DataLink {
  int fd = -1;
  bool dead = false;
  DataHeader header;
  size_t header_got = 0;
  size_t body_got = 0;
};

// Runs `operations` to their end. False: stopped; what they write is then undefined (and spoilt).
// `error` is set when the ranks contradict each other: NCCL's behaviour is then undefined, here it
// stands.
class Transfer {
 public:
  Transfer(int rank, std::vector<DataLink>& links, std::vector<Operation> operations,
           uint64_t sum_seed);
  // The announcements alone; then a fault may strike in the midst of it.
  void Announce();
  bool Run(const Stops& stops, int device);
  const std::string& contradiction() const { return contradiction_; }
  void Spoil();

 private:
  struct Piece {
    DataHeader header;
    const char* body = nullptr;
    size_t sent = 0;  // of header and body
  };
  struct State {
    Operation op;
    size_t part_bytes = 0;                 // of one rank's part
    std::vector<std::vector<char>> parts;  // from each peer, to be reduced here
    std::vector<char> result;
    int arrived = 0, parts_missing = 0, results_missing = 0;
    bool reduces = false, reduced = false;
  };

  int ranks() const { return static_cast<int>(links_.size()); }
  void Begin(State& state);
  void BeginReduction(State& state);
  void Put(int to, const State& state, DataHeader::What what, const void* body, size_t bytes);
  void PutAll(const State& state, DataHeader::What what, const void* body, size_t bytes);
  bool Over() const;
  void FinishReduction(State& state);
  void Send(int to);
  void Receive(int from);
  bool ReadHeader(DataLink& link);  // true: a whole one is there
  State* Find(int from, const DataHeader& header);
  char* Target(State& state, int from, const DataHeader& header);
  void Took(State& state, int from, const DataHeader& header);
  void Check(const State& state, int from, const DataHeader& header);

  const int rank_;
  std::vector<DataLink>& links_;
  const uint64_t sum_seed_;
  std::deque<State> states_;
  std::vector<std::deque<Piece>> pieces_;  // to each peer
  std::vector<char*> bodies_;              // where what each peer sends goes to
  std::vector<bool> held_;                 // what comes next from this peer is not for this launch
  std::string contradiction_;
};

// Of `count` elements the part [first, second) that rank r of n owns.
std::pair<size_t, size_t> OwnedSlice(size_t count, int n, int r);

}  // namespace holdfast::emulation
