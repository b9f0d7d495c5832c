// The inside of an emulated NCCL communicator, and what is imitated of NCCL 2.28.9:
//
// - With config.blocking = 0, init answers ncclInProgress; until ncclCommGetAsyncError says
//   ncclSuccess every other call but an abort is ncclInvalidArgument, and errors come from there.
// - The first collective of each kind connects the ranks in a thread of its own: it is in progress,
//   and not on the stream, before all have come. Later ones are on their stream when they return.
// - A collective occupies its stream until all ranks have come (transfer.h). The death of a rank
//   is not seen there; with HOLDFAST_EMU_NETWORK the ring's neighbours of the dead rank get
//   ncclRemoteError after a delay. Who connects or finalizes sees it at once (sockets).
// - Abort stops this rank only: its operations end with undefined output, later work of their
//   streams runs. It joins what is in progress, waits for its streams (so also for earlier work on
//   them) and for the whole device, as cudaFree does: with another communicator that stands, it
//   stands, too, unless both are aborted in one group. A communicator that is gone ends the process
//   when it is used again.
// - Shrink with NCCL_SHRINK_ABORT stops the parent's operations, waits for them in the caller, then
//   wants the parent ready: in progress is ncclInvalidArgument, an error that is recorded is what
//   it answers. The new communicator appears when the parent is no longer in progress; the parent
//   is then to be aborted.
// - Revoke stops the operations; collectives and finalize are ncclInvalidUsage from then on.
// - Two ranks on one GPU are ncclInvalidUsage for all; so is more than one use of contradictory
//   arguments, where NCCL's behaviour is undefined (standard error then says who called what).
//
// Not imitated: topology, protocols, registration, split, user-defined operations, graphs.
//
// Threads: as NCCL: one at a time in a communicator, but for abort (and revoke), which may come
// from another one while a call is blocked.
#pragma once

#include <nccl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/emulation/cuda/runtime.h"
#include "tests/emulation/nccl/meeting.h"
#include "tests/emulation/nccl/transfer.h"

namespace holdfast::emulation {

// For ncclGetLastError; Warn also writes it to standard error.
void Note(const std::string& text);
void Warn(const std::string& text);
std::string LastNote();

struct Launch {
  std::vector<Operation> operations;
  std::vector<StreamPointer> streams;  // the first one runs it, the others wait for it
};

}  // namespace holdfast::emulation

struct ncclComm {
 public:
  ncclComm(const holdfast::emulation::RankFacts& facts, const holdfast::emulation::MeetingId& id,
           int device, bool blocking);

  static constexpr uint64_t kAlive = 0x6d6d6f436c63636e, kGone = 0xdeadc0dedeadc0de;
  std::atomic<uint64_t> mark{kAlive};
  const holdfast::emulation::RankFacts me;
  const holdfast::emulation::MeetingId id;
  const int device;
  const bool blocking;

  // ncclSuccess, ncclInProgress, or the first error.
  ncclResult_t state() const { return static_cast<ncclResult_t>(state_.load()); }
  void Fail(ncclResult_t error);
  // What a call wants first: ncclSuccess, ncclInvalidArgument while something is in progress, or
  // the error.
  ncclResult_t Ready();

  // Runs `job` in a thread; it is in progress until that returns. Join waits for it.
  void Start(const char* name, std::function<ncclResult_t()> job);
  void Join();

  // The jobs.
  ncclResult_t Init(bool patient, const holdfast::emulation::Stops& stops);
  ncclResult_t Connect(uint32_t kinds);
  ncclResult_t Finalize();
  ncclResult_t Revoke();
  // Renumbered among those that are not in `excluded`; null when it failed.
  ncclResult_t Shrink(std::vector<int> excluded, bool child_blocking, ncclComm*& child);

  uint32_t Unconnected(const std::vector<holdfast::emulation::Operation>& operations) const;
  // Puts it on its stream.
  void Push(holdfast::emulation::Launch launch);
  // Ends what runs and is queued; its end is waited for.
  void StopOperations();
  void AllowOperations() { stop_.Clear(); }
  void AwaitOperations();

  // Abort: first everywhere the flag, then the rest; without the flag the end is orderly, with all
  // other ranks.
  void SetAbort();
  holdfast::emulation::Stops StopsOfInit() const { return {&abort_}; }
  bool aborted() const { return abort_.set(); }
  void Free();

  uint64_t NextSerial(const holdfast::emulation::Operation& operation);

  bool finalized = false, revoked = false, shrunk = false;

 private:
  // Each rank says `what` to all others and hears it from all.
  ncclResult_t Exchange(uint32_t what, const holdfast::emulation::Stops& stops);
  ncclResult_t CheckGpus() const;
  void Execute(const std::vector<holdfast::emulation::Operation>& operations);
  bool StrikeFault();  // true: the operation stands until it is stopped
  void WatchNeighbours(int64_t delay_ms);
  void StopWatching();

  std::atomic<int> state_{ncclSuccess};
  std::mutex join_mutex_;
  std::thread job_;
  holdfast::emulation::StopFlag abort_, stop_;
  std::vector<holdfast::emulation::PeerConnection> peers_;
  std::vector<holdfast::emulation::DataLink> links_;
  uint32_t connected_ = 0;
  uint64_t collectives_ = 0, shrinks_ = 0;
  std::vector<uint64_t> sent_, received_;  // messages, by peer

  std::mutex mutex_;
  std::vector<std::shared_ptr<holdfast::emulation::Point>> launches_;  // not over when last looked

  holdfast::emulation::StopFlag watch_stop_;
  std::thread watch_;
};
