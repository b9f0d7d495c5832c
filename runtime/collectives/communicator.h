// A communicator: the members of one generation, joined for collective operations. Made anew for
// every generation, never repaired.
//
// Operations are queued and run in order on the communicator's own I/O thread, so that a reduction
// goes on while the caller computes. All members must queue the same operations in the same order,
// with equal tags. Buffers must stay alive and (inputs) unchanged until Wait returned for that
// ticket or for a later one, or until Abort/Close returned.
//
// Between members of one host the words move through shared memory where that is possible (see
// GroupOptions::transport); results and errors are the same.
//
// Failure is shared: the first unannounced close, error, wrong frame or silent peer closes all
// links, so that every member fails within milliseconds. From then on every Wait returns the first
// error (kAborted, naming the rank and the cause) and nothing can be trusted in the output buffers
// of operations that were not waited for successfully. Detection works while no operation is queued
// too: dead and silent peers are noticed at once.
//
// Threads: Abort and Health from any thread; everything else from one thread (the owner). Abort and
// destruction never block for longer than a few milliseconds. No call waits without a deadline.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "runtime/base/clock.h"

namespace holdfast {

// Stamped on every frame; a frame with another tag than the operation's is an error (kAborted).
struct OpTag {
  int64_t step = 0;
  int32_t attempt = 0;
  int32_t bucket = 0;
};

using Ticket = uint64_t;  // of one communicator; grows with each queued operation

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // What carries the words, for people: "shm", "tcp (rank 2 is on another host ...)", "local".
  virtual std::string Carrier() const = 0;

  // Element borders of the N slices of `count` elements: slice r is [border[r], border[r+1]).
  // Borders lie on multiples of `grain` (except the last); equal on all members.
  static std::vector<int64_t> Slices(int64_t count, int64_t grain, int world_size);
  // kInvalidArgument unless they are borders of `count` elements.
  [[nodiscard]] static absl::Status CheckBorders(std::span<const int64_t> borders, size_t count,
                                                 int world_size);

  // Out of place: out (slice `rank()` of `borders`, that many elements) = sum over members of in's
  // same slice. `in` is never written, not even on failure. Integer sums: exact (mod 2^64) in any
  // order.
  virtual Ticket ReduceScatter(std::span<const int64_t> in, std::span<const int64_t> borders,
                               std::span<int64_t> out, OpTag tag) = 0;
  // fp32 sums of `reduction = fast`: the order depends on the world size.
  virtual Ticket ReduceScatter(std::span<const float> in, std::span<const int64_t> borders,
                               std::span<float> out, OpTag tag) = 0;
  // In place, small arrays: every member ends with the sum (mod 2^64).
  virtual Ticket AllReduce(std::span<int64_t> data, OpTag tag) = 0;
  // In place: member r has filled bytes [borders[r], borders[r+1]) of data; afterwards everybody
  // has everything. Parts may differ in size and may be empty.
  virtual Ticket AllGather(std::span<std::byte> data, std::span<const int64_t> borders,
                           OpTag tag) = 0;
  // From `root` to all others. Pipelined; any size.
  virtual Ticket Broadcast(std::span<std::byte> data, int root, OpTag tag) = 0;
  virtual Ticket Barrier(OpTag tag) = 0;

  // Blocks until the operation (and all before it) is over. OK only when it is complete here.
  // kDeadlineExceeded aborts the communicator.
  [[nodiscard]] virtual absl::Status Wait(Ticket ticket, Deadline deadline) = 0;
  // True when the operation is complete, without blocking. False after an error.
  virtual bool Finished(Ticket ticket) const = 0;

  // OK, or the first error.
  [[nodiscard]] virtual absl::Status Health() const = 0;
  // The rank that the first error is about (dead, silent, wrong frame), or -1: no error, or
  // nobody's fault. Any thread.
  virtual int FailedRank() const = 0;
  // Ends everything at once; waiting calls return kAborted with `why`. Idempotent: the first reason
  // stays.
  virtual void Abort(const absl::Status& why) = 0;
  // The lane for operations on memory of this member's device, with the same contract, tickets of
  // its own and an order of its own: operations of the two lanes are not ordered against each
  // other. Host and device memory are the same on a CPU, and so are the lanes: *this. Health,
  // Abort, FailedRank and Close act on both, whichever they are called on.
  virtual Communicator& OnDevice() { return *this; }
  // Operations queued later on this lane start only after `event`: the work that writes their
  // input. (On a CPU it has happened when it is recorded.)
  virtual void After(const kernels::Event& /*event*/) {}
  // Takes device memory that queued operations use and that nobody else keeps so long: on a GPU an
  // operation may go on after an error, until the next generation is joined. Freed when nothing of
  // this communicator can touch it any more.
  virtual void Keep(kernels::Buffer buffer) { kept_.push_back(std::move(buffer)); }

  // Orderly end, by agreement of all members (they all call it after the same operation): an end
  // frame on every link and half-close, so that a planned end is no error for anybody. After OK
  // nothing more may be queued.
  [[nodiscard]] virtual absl::Status Close(Deadline deadline) = 0;

 private:
  std::vector<kernels::Buffer> kept_;
};

// World size 1: operations complete at once; on a GPU (`device`, null for the CPU), where they are
// copies on a stream of their own, as soon as that has done them.
std::unique_ptr<Communicator> MakeLocalCommunicator(kernels::Device* device = nullptr);

// What carries the words of a generation. Equal on all members: kAuto takes shared memory when all
// members can share it with all (one host), else the links. One member with kTcp is enough for tcp;
// kShm refuses a generation in which it is not possible. The links are there in any case: beats,
// the death of a peer and errors come over them.
enum class Transport : uint8_t { kAuto = 0, kTcp = 1, kShm = 2 };

class SharedBlock;

struct PeerAddress {
  std::string host;  // numeric IPv4 or IPv6, or a name
  int port = 0;
};

// The listening socket of one worker, alive for the whole process and used by one generation after
// the other. A hello of a later generation than the current one is held until that generation is
// built here; one of an earlier generation is refused. Strangers (no valid HMAC within the hello
// deadline) are dropped; their number at a time is bounded, and they never delay or end a build.
class TcpEndpoint {
 public:
  struct Options {
    std::string bind_host = "127.0.0.1";
    int port = 0;             // 0: any free one
    int64_t hello_ms = 2000;  // a connection that has not proved itself by then is dropped
    int max_unproved = 64;    // connections in their hello at one time
  };
  static absl::StatusOr<std::unique_ptr<TcpEndpoint>> Listen(const Options& options);
  virtual ~TcpEndpoint() = default;
  virtual int port() const = 0;

  struct GroupOptions {
    std::string run;     // run uuid
    std::string secret;  // HMAC key; never logged
    uint64_t generation = 0, nonce = 0;
    int rank = 0;
    std::vector<PeerAddress> peers;  // index = rank; world size = peers.size()
    int64_t connect_ms = 5000;       // for the whole build
    int64_t detect_ms =
        1000;  // a link without any byte (beats go every detect/5) for so long is silent
    Transport transport = Transport::kAuto;
    // Input that lies in these is read by peers of this host where it lies; other input is copied
    // once more. At most 14 count; they must outlive the communicator.
    std::vector<const SharedBlock*> shared;
    bool agree_on_transport = true;  // false: tcp, without asking the others (they do not, either)
  };
  // Connects to all peers it needs and returns when all links stand and are authenticated. kAborted
  // (naming the ranks that could not be reached) or kDeadlineExceeded on failure; `cancel` (may be
  // null) is polled and ends the build with kCancelled. The generation must be later than that of
  // every Build before, failed ones too. At most kMaxWorldSize members (every pair has a link of
  // its own).
  static constexpr int kMaxWorldSize = 64;
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Build(const GroupOptions& options,
                                                              const std::atomic<bool>* cancel) = 0;
  // After a failed Build: the ranks with which no link came to stand, in order.
  virtual std::vector<int> Unreached() const = 0;
};

}  // namespace holdfast
