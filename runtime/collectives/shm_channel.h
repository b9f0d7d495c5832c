// Operations between members that share memory: each reads its peers' words where they lie and
// writes only its own memory. Part of a communicator: the links stay for beats, for the death of a
// peer and for spreading an error.
//
// Of N members each reduces its own slice over all N inputs, in rank order, in one pass over the
// memory; an all-gather copies each slice once. A large all-reduce is the one and then the other.
// What an operation is made of is called a step. Of each step
//   - it is posted, as soon as it is queued and nothing before it writes its input: peers may read;
//   - input outside the shared blocks is staged, round by round;
//   - it is read, round by round, in order, when all members have posted it and the round is there;
//   - it is released when all peers have read what lies in this member's own buffers.
// An operation is done when all its steps are released. So buffers are the caller's again exactly
// then, and operations that were queued behind may be read by peers already.
//
// Before its buffers go back to the caller unreleased (an abort), a member sets `left` in its
// segment; a reader looks at `left` after it has read, and does not count what it read from a
// member that has left. So nobody takes words for a result that were changed under it, however long
// it was frozen.
//
// Threads: one (the communicator's I/O thread). Nothing here blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/collectives/operation.h"
#include "runtime/collectives/shm_segment.h"
#include "runtime/collectives/socket.h"

namespace holdfast {

class ShmChannel {
 public:
  struct Peer {
    Mapping segment;
    std::vector<Mapping> blocks;
    Fd doorbell;       // an eventfd that it polls
    std::string name;  // "rank 2 (127.0.0.1:4711)"
  };
  // `peers`: index = rank, own one empty. `blocks` must outlive the channel.
  ShmChannel(RingPosition at, SharedBlock segment, std::vector<const SharedBlock*> blocks,
             WakeFd doorbell, std::vector<Peer> peers);

  void Push(std::unique_ptr<Operation> op);
  // One bounded piece of work (at most one round of each kind). An error is about culprit().
  absl::Status Progress(bool* moved);
  // The last operation that is done.
  Ticket done() const { return done_; }
  bool idle() const { return steps_.empty(); }
  // The oldest operation that is not done, or null.
  const Operation* current() const { return ops_.empty() ? nullptr : ops_.front().get(); }
  // The ranks that have not queued the step that is to be read now.
  std::string Missing() const;
  int culprit() const { return culprit_; }

  // Waiting: Doze sets *asleep when there is nothing to do; the caller then polls doorbell() and
  // calls Awake. A peer with news rings.
  absl::Status Doze(bool* asleep);
  void Awake();
  const WakeFd& doorbell() const { return doorbell_; }

  // The buffers go back to the caller: nothing of them counts any more.
  void Leave();

 private:
  enum class Kind : uint8_t { kReduce, kGather, kSum, kBroadcast, kBarrier };
  struct Extent {
    const std::byte* data = nullptr;
    int64_t bytes = 0;
    bool Overlaps(const Extent& other) const;
  };
  struct Step {
    Kind kind = Kind::kBarrier;
    const Operation* op = nullptr;
    bool ends_op = true;
    Extent source, out;  // of this member; source: where slice 0 (or the only part) begins
    int64_t piece = kShmPieceBytes;
    uint32_t rounds = 0;
    int block = -1;
    bool staging = false;  // has input that must be staged
    uint32_t first_slot = 0, staged = 0, read = 0;
    bool matched = false;
  };

  void AddStep(Step step);
  Step& At(uint64_t number) { return steps_[number - first_]; }
  const ShmPost& PostOf(int peer, uint64_t step) const;
  int64_t PieceBytes(const Step& step, int64_t begin, int64_t end, uint32_t round) const;
  uint64_t LowestRead() const;
  bool MayPost(uint64_t number) const;
  bool MayWrite(uint64_t number) const;

  void Release(bool* moved);
  void Post(bool* moved);
  void Stage(bool* moved);
  absl::Status Read(bool* moved);
  absl::Status Match(uint64_t number, Step* step);
  absl::Status ReadRound(uint64_t number, const Step& step, bool* there);
  absl::StatusOr<const std::byte*> Source(int peer, uint64_t number, const Step& step,
                                          int64_t bytes) const;
  absl::Status Reduce(uint64_t number, const Step& step);
  absl::Status Copy(uint64_t number, const Step& step);
  bool AnyLeft() const;
  void Ring();

  const RingPosition at_;
  SharedBlock segment_;
  ShmControl* const control_;
  const std::vector<const SharedBlock*> blocks_;
  const WakeFd doorbell_;
  std::vector<Peer> peers_;
  std::vector<uint32_t> rung_;  // the sleep for which this member has rung
  const bool may_spin_;

  std::deque<std::unique_ptr<Operation>> ops_;  // not done
  std::deque<Step> steps_;                      // not released; the first has number first_
  uint64_t first_ = 1, next_ = 1;               // next_: of the next one to be pushed
  uint64_t next_post_ = 1, next_stage_ = 1, next_read_ = 1;
  uint32_t next_slot_ = 0;
  uint64_t half_free_at_[2] = {0, 0};  // when all have read so far, the half may be written
  uint64_t lowest_read_ = 0;
  bool stuck_ = false;  // a peer has left: nothing counts any more, the links will say why
  int culprit_ = -1;
  Ticket done_ = 0;
};

}  // namespace holdfast
