// The communicator over a full mesh of TCP links, which may have a channel of shared memory beside
// them: then the words go there, and the links carry beats, ends and errors only. One I/O thread
// moves all bytes, sends the beats and judges silence; the owner's calls only queue operations and
// wait. Every pair of members has a link of its own, so that each member sees each death itself;
// large operations use only the links of the ring.
//
// Operations run one at a time, in order. A member reads bulk data only for operations that it has
// announced (has queued), and sends bulk data only when all members have announced the operation;
// parts of direct operations can run ahead by at most one, for which there is room. So a link is
// never left unread for longer than other I/O threads need, whatever the owners compute, and its
// beats are always seen.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/collectives/communicator.h"
#include "runtime/collectives/link.h"
#include "runtime/collectives/operation.h"
#include "runtime/collectives/shm_channel.h"

namespace holdfast {

class TcpCommunicator final : public Communicator, private FrameSink {
 public:
  struct Options {
    int rank = 0;
    uint64_t nonce = 0;
    int64_t detect_ms = 1000;
  };
  // `seeds`: one for every other rank, in order of rank.
  TcpCommunicator(const Options& options, std::vector<LinkSeed> seeds);
  ~TcpCommunicator() override;

  // Starts the I/O thread and returns when all members have done so (the barrier that ends a
  // build).
  absl::Status Start(Deadline deadline, const std::atomic<bool>* cancel);
  // After Start: shared memory if all agree (shm_setup.h).
  absl::Status AgreeOnCarrier(const TcpEndpoint::GroupOptions& group, Deadline deadline,
                              const std::atomic<bool>* cancel);

  int rank() const override { return at_.rank; }
  int world_size() const override { return at_.world; }
  std::string Carrier() const override { return carrier_; }
  Ticket ReduceScatter(std::span<const int64_t> in, std::span<const int64_t> borders,
                       std::span<int64_t> out, OpTag tag) override;
  Ticket ReduceScatter(std::span<const float> in, std::span<const int64_t> borders,
                       std::span<float> out, OpTag tag) override;
  Ticket AllReduce(std::span<int64_t> data, OpTag tag) override;
  Ticket AllGather(std::span<std::byte> data, std::span<const int64_t> borders, OpTag tag) override;
  Ticket Broadcast(std::span<std::byte> data, int root, OpTag tag) override;
  Ticket Barrier(OpTag tag) override;
  absl::Status Wait(Ticket ticket, Deadline deadline) override;
  bool Finished(Ticket ticket) const override;
  absl::Status Health() const override;
  int FailedRank() const override;
  void Abort(const absl::Status& why) override;
  absl::Status Close(Deadline deadline) override;

 private:
  enum class Waited { kDone, kFailed, kTime };

  // Owner's side.
  Ticket Enqueue(std::unique_ptr<Operation> op, absl::Status valid);
  template <typename T>
  Ticket QueueReduceScatter(OpKind kind, std::span<const T> in, std::span<const int64_t> borders,
                            std::span<T> out, OpTag tag);
  Waited WaitUntil(Ticket ticket, int64_t wait_ms);
  absl::Status WaitInBuild(Ticket ticket, Deadline deadline, const std::atomic<bool>* cancel);
  // `late`: the ticket whose deadline passed, or 0.
  void RequestAbort(const absl::Status& why, Ticket late);

  // I/O thread: tcp_communicator_io.cc, tcp_communicator_frames.cc.
  void Run();
  bool TakeQueued();  // false: aborted
  absl::Status ProgressShm(bool* moved);
  const Operation* Current() const;
  absl::Status Announce(uint64_t index);
  absl::Status Progress(int64_t now_ms);
  absl::Status StartNext();
  absl::Status StartDirect();
  absl::Status PumpBulk(int64_t now_ms);
  bool CurrentComplete() const;
  bool CompleteCurrent();  // false: aborted before
  absl::Status ReadLink(Link* link, int64_t now_ms);
  absl::Status CheckEnd(const Link& link) const;
  absl::Status CheckCarrier(const Link& link, FrameType type) const;
  absl::Status ShutEnded();
  absl::Status Poll(int64_t* now_ms);
  absl::Status JudgeAndBeat(int64_t now_ms);
  int64_t NextDue(int64_t now_ms) const;
  short PollEvents(const Link& link) const;
  bool BulkReady() const;
  bool EverybodyAnnounced() const;
  absl::StatusOr<std::byte*> Place(Link& link, const FrameHeader& header) override;
  absl::StatusOr<std::byte*> PlaceBulk(Link& link, const FrameHeader& header);
  absl::Status Take(Link& link, const FrameHeader& header) override;
  absl::Status Blame(const Link& link, const absl::Status& status);
  void Fail(const absl::Status& status);
  std::string AwaitedText() const;
  Link* Successor() { return links_[(at_.rank + 1) % at_.world].get(); }
  const Link* Predecessor() const { return links_[(at_.rank + at_.world - 1) % at_.world].get(); }

  const RingPosition at_;
  const int64_t detect_ms_, beat_ms_;
  std::string carrier_ = "tcp";  // owner's
  WakeFd wake_;
  std::thread thread_;

  // Shared, under mu_. The latch is done_ against error_: whichever is set first under mu_ wins,
  // and an operation counts as done only if no error was there. After an error buffers may be in
  // use until stopped_.
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Operation>> queue_;
  Ticket queued_ = 0, done_ = 0;
  absl::Status error_;
  int failed_rank_ = -1;
  std::unique_ptr<ShmChannel> shm_;  // set once, before anything is queued for it
  bool late_ = false;  // late_: a Wait's deadline passed; the I/O thread says what was missing
  bool closing_ = false, stopped_ = false;

  // I/O thread only.
  std::vector<std::unique_ptr<Link>> links_;  // index = rank; own: null
  std::deque<std::unique_ptr<Operation>> waiting_;
  std::unique_ptr<Operation> current_;
  ShmChannel* channel_ = nullptr;  // shm_, when this thread has seen it
  uint64_t shm_begun_ = 0;         // the operation over it whose turn it is
  RingPlan plan_;
  size_t sends_started_ = 0, sends_done_ = 0, receives_done_ = 0;
  uint64_t bytes_sent_ = 0, bytes_received_ = 0;  // of the current bulk operation
  uint64_t direct_done_ = 0;                      // direct operations completed
  uint64_t announced_ = 0;
  std::unique_ptr<std::byte[]> scratch_;
  int culprit_ = -1, witness_ = -1;  // of the error being handled
  bool again_ = false;               // there is more to do at once
  bool finished_ = false;            // Close is complete
};

}  // namespace holdfast
