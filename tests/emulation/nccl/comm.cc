#include "tests/emulation/nccl/comm.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "runtime/base/text.h"
#include "tests/emulation/faults.h"
#include "tests/emulation/nccl/threads.h"

using namespace holdfast::emulation;  // NOLINT: everything below is the emulation's
using holdfast::Cat;

namespace {

// What is said over the bootstrap connections; 1 << kind for connecting.
constexpr uint32_t kInit = 1u << 16, kEnd = 1u << 17;

struct BootstrapMessage {
  uint32_t what = 0;
};

std::mutex note_mutex;
std::string* last_note = nullptr;

}  // namespace

namespace holdfast::emulation {

void Note(const std::string& text) {
  std::lock_guard lock(note_mutex);
  if (last_note == nullptr) last_note = new std::string;
  *last_note = text;
}

void Warn(const std::string& text) {
  Note(text);
  std::fprintf(stderr, "emulated NCCL: %s\n", text.c_str());
}

std::string LastNote() {
  std::lock_guard lock(note_mutex);
  return last_note == nullptr ? "" : *last_note;
}

}  // namespace holdfast::emulation

ncclComm::ncclComm(const RankFacts& facts, const MeetingId& of, int on_device, bool blocks)
    : me(facts),
      id(of),
      device(on_device),
      blocking(blocks),
      sent_(static_cast<size_t>(facts.ranks)),
      received_(static_cast<size_t>(facts.ranks)) {}

// ---- State and jobs

void ncclComm::Fail(ncclResult_t error) {
  int now = state_.load();
  while (now == ncclSuccess || now == ncclInProgress) {
    if (state_.compare_exchange_weak(now, error)) return;
  }
}

ncclResult_t ncclComm::Ready() {
  const ncclResult_t now = state();
  if (now == ncclInProgress) {
    Note("a communicator was used before its operation in progress was over");
    return ncclInvalidArgument;
  }
  if (now == ncclSuccess) Join();
  return now;
}

void ncclComm::Start(const char* name, std::function<ncclResult_t()> job) {
  Join();
  int now = ncclSuccess;
  if (!state_.compare_exchange_strong(now, ncclInProgress)) return;
  job_ = StartThread(name, [this, job = std::move(job)] {
    (void)cudaSetDevice(device);
    const ncclResult_t result = job();
    if (result != ncclSuccess) Fail(result);
    int still = ncclInProgress;
    state_.compare_exchange_strong(still, ncclSuccess);
  });
}

void ncclComm::Join() {
  std::lock_guard lock(join_mutex_);
  if (job_.joinable()) job_.join();
}

ncclResult_t ncclComm::Exchange(uint32_t what, const Stops& stops) {
  const BootstrapMessage mine{what};
  for (const PeerConnection& peer : peers_) {
    const int fd = peer.bootstrap.get();
    if (fd >= 0 && send(fd, &mine, sizeof mine, MSG_NOSIGNAL) < 0) return ncclRemoteError;
  }
  for (size_t r = 0; r < peers_.size(); ++r) {
    const int fd = peers_[r].bootstrap.get();
    if (fd < 0) continue;
    std::vector<pollfd> fds = {{fd, POLLIN, 0}};
    stops.AddTo(fds);
    while (fds[0].revents == 0) {
      if (stops.any()) return ncclInternalError;
      (void)poll(fds.data(), fds.size(), 500);
    }
    BootstrapMessage theirs;
    if (recv(fd, &theirs, sizeof theirs, 0) != static_cast<ssize_t>(sizeof theirs)) {
      Note(Cat("rank ", r, " closed its connection"));
      return ncclRemoteError;
    }
    if (theirs.what != what) {
      Warn(Cat("rank ", me.rank, " and rank ", r, " do not call the same operations (", what,
               " against ", theirs.what, ")"));
      return ncclInvalidUsage;
    }
  }
  return ncclSuccess;
}

ncclResult_t ncclComm::CheckGpus() const {
  std::vector<RankFacts> all = {me};
  for (const PeerConnection& peer : peers_) {
    if (peer.data.get() >= 0) all.push_back(peer.facts);
  }
  for (size_t a = 0; a < all.size(); ++a) {
    for (size_t b = a + 1; b < all.size(); ++b) {
      if (all[a].host != all[b].host || all[a].gpu != all[b].gpu) continue;
      Warn(Cat("duplicate GPU: rank ", all[a].rank, " and rank ", all[b].rank, " both use GPU ",
               all[a].gpu));
      return ncclInvalidUsage;
    }
  }
  return ncclSuccess;
}

ncclResult_t ncclComm::Init(bool patient, const Stops& stops) {
  const FaultAction fault = ReachFaultPoint("nccl.init", me.rank);
  if (fault.kind == FaultAction::kError)
    return fault.code != 0 ? static_cast<ncclResult_t>(fault.code) : ncclSystemError;
  while (fault.kind == FaultAction::kHang) {
    if (!stops.Pause(500)) return ncclInternalError;
  }
  ncclResult_t result = Meet(id, me, patient, stops, peers_);
  if (result != ncclSuccess) {
    if (result == ncclRemoteError) Note("the root of the unique id is not there, or has died");
    return result;
  }
  for (const PeerConnection& peer : peers_) {
    links_.emplace_back();
    links_.back().fd = peer.data.get();
  }
  result = Exchange(kInit, stops);
  if (result == ncclSuccess) result = CheckGpus();
  if (result != ncclSuccess) return result;
  const int64_t delay_ms = EnvironmentNumber("HOLDFAST_EMU_NETWORK", -1);
  if (delay_ms >= 0 && me.ranks > 1)
    watch_ = StartThread("emulated-net", [this, delay_ms] { WatchNeighbours(delay_ms); });
  return ncclSuccess;
}

uint32_t ncclComm::Unconnected(const std::vector<Operation>& operations) const {
  uint32_t kinds = 0;
  for (const Operation& operation : operations) kinds |= 1u << static_cast<int>(operation.kind);
  return kinds & ~connected_;
}

ncclResult_t ncclComm::Connect(uint32_t kinds) {
  // Messages connect two ranks only, whenever these send: nobody else is waited for.
  constexpr uint32_t kMessages =
      1u << static_cast<int>(OpKind::kSend) | 1u << static_cast<int>(OpKind::kReceive);
  for (int kind = 0; kind < static_cast<int>(OpKind::kKinds); ++kind) {
    if ((kinds & ~kMessages & 1u << kind) == 0) continue;
    if (const ncclResult_t r = Exchange(1u << kind, {&abort_}); r != ncclSuccess) return r;
  }
  connected_ |= kinds;
  return ncclSuccess;
}

ncclResult_t ncclComm::Finalize() {
  const FaultAction fault = ReachFaultPoint("nccl.finalize", me.rank);
  if (fault.kind == FaultAction::kError)
    return fault.code != 0 ? static_cast<ncclResult_t>(fault.code) : ncclSystemError;
  while (fault.kind == FaultAction::kHang) {
    if (!abort_.set() && Stops{&abort_}.Pause(500)) continue;
    return ncclInternalError;
  }
  AwaitOperations();
  StopWatching();
  return Exchange(kEnd, {&abort_});
}

ncclResult_t ncclComm::Revoke() {
  StopOperations();
  return ncclSuccess;
}

ncclResult_t ncclComm::Shrink(std::vector<int> excluded, bool child_blocking, ncclComm*& child) {
  const FaultAction fault = ReachFaultPoint("nccl.shrink", me.rank);
  if (fault.kind == FaultAction::kError)
    return fault.code != 0 ? static_cast<ncclResult_t>(fault.code) : ncclSystemError;
  while (fault.kind == FaultAction::kHang) {
    if (!Stops{&abort_}.Pause(500)) return ncclInternalError;
  }
  std::sort(excluded.begin(), excluded.end());
  uint64_t serial = ++shrinks_;
  for (const int r : excluded) serial = serial * 1'000'003 + static_cast<uint64_t>(r) + 1;
  RankFacts facts = me;
  facts.rank -= static_cast<int>(
      std::count_if(excluded.begin(), excluded.end(), [this](int r) { return r < me.rank; }));
  facts.ranks -= static_cast<int>(excluded.size());
  const MeetingId child_id = DerivedId(id, serial);
  if (facts.rank == 0 && MeetingRoot::Open(child_id) == nullptr) return ncclSystemError;
  auto made = std::make_unique<ncclComm>(facts, child_id, device, child_blocking);
  const ncclResult_t result = made->Init(/*patient=*/true, {&abort_});
  if (result == ncclSuccess) {
    child = made.release();
  } else if (const auto root = MeetingRoot::Find(child_id)) {
    root->Close();
  }
  return result;
}

// ---- Operations

uint64_t ncclComm::NextSerial(const Operation& operation) {
  const auto peer = static_cast<size_t>(operation.root);
  if (operation.kind == OpKind::kSend) return ++sent_[peer];
  if (operation.kind == OpKind::kReceive) return ++received_[peer];
  return ++collectives_;
}

void ncclComm::Push(Launch launch) {
  Runtime& runtime = Runtime::Instance();
  const StreamPointer first = launch.streams.front();
  auto end = std::make_shared<Point>();
  std::shared_ptr<Point> before;
  {
    std::lock_guard lock(mutex_);
    if (!launches_.empty()) before = launches_.back();
    std::erase_if(launches_, [](const auto& point) { return point->reached(); });
    launches_.push_back(end);
  }
  for (size_t i = 1; i < launch.streams.size(); ++i) {
    auto ready = std::make_shared<Point>();
    runtime.Push(launch.streams[i], ready);
    runtime.Push(first, [ready] { ready->Wait(); });
  }
  runtime.Push(first, [this, before, operations = std::move(launch.operations)] {
    if (before != nullptr) before->Wait();
    Execute(operations);
  });
  runtime.Push(first, end);
  for (size_t i = 1; i < launch.streams.size(); ++i)
    runtime.Push(launch.streams[i], [end] { end->Wait(); });
}

bool ncclComm::StrikeFault() {
  const FaultAction fault = ReachFaultPoint("nccl.collective", me.rank);
  if (fault.kind == FaultAction::kError)
    Fail(fault.code != 0 ? static_cast<ncclResult_t>(fault.code) : ncclRemoteError);
  if (fault.kind == FaultAction::kSticky)
    Runtime::Instance().LoseDevice(device, fault.code != 0 ? fault.code : cudaErrorIllegalAddress);
  return fault.kind != FaultAction::kNone;
}

void ncclComm::Execute(const std::vector<Operation>& operations) {
  static const auto seed = static_cast<uint64_t>(EnvironmentNumber("HOLDFAST_EMU_SUM_SEED", 1));
  const Stops stops{&abort_, &stop_};
  Transfer transfer(me.rank, links_, operations, seed);
  bool stands = false, over = false;
  if (!stops.any()) {
    transfer.Announce();
    for (size_t i = 0; i < operations.size(); ++i) stands |= StrikeFault();
    if (!stands) over = transfer.Run(stops, device);
    if (!over && !transfer.contradiction().empty()) Warn(transfer.contradiction());
  }
  while (!over && !DeviceLost(device) && stops.Pause(100)) {
  }
  if (!over) transfer.Spoil();
}

void ncclComm::StopOperations() {
  StopWatching();  // peers that go their own way now are no error
  stop_.Set();
  AwaitOperations();
}

void ncclComm::AwaitOperations() {
  std::vector<std::shared_ptr<Point>> all;
  {
    std::lock_guard lock(mutex_);
    all = launches_;
  }
  for (const auto& point : all) point->Wait();
}

// ---- The end

void ncclComm::SetAbort() { abort_.Set(); }

void ncclComm::Free() {
  Join();
  // After an error, or when it was stopped, nobody can be waited for.
  if (state() == ncclSuccess && !aborted() && !finalized && !revoked && !shrunk) (void)Finalize();
  if (state() != ncclSuccess) SetAbort();
  StopWatching();
  AwaitOperations();
  Runtime::Instance().DrainDevice(device);  // as cudaFree
  if (const auto root = MeetingRoot::Find(id)) root->Close();
  peers_.clear();
  links_.clear();
  mark = kGone;
  for (StopFlag* flag : {&abort_, &stop_, &watch_stop_}) flag->Retire();
  static std::mutex mutex;
  static auto* gone = new std::vector<ncclComm*>;  // the objects stay, so that a later use is seen
  std::lock_guard lock(mutex);
  gone->push_back(this);
}

void ncclComm::WatchNeighbours(int64_t delay_ms) {
  const int n = me.ranks;
  std::vector<int> ring = {(me.rank + 1) % n};
  if (n > 2) ring.push_back((me.rank + n - 1) % n);
  const Stops stops{&watch_stop_, &abort_};
  while (!stops.any()) {
    std::vector<pollfd> fds;
    for (const int r : ring) fds.push_back({links_[static_cast<size_t>(r)].fd, POLLRDHUP, 0});
    stops.AddTo(fds);
    (void)poll(fds.data(), fds.size(), 500);
    for (size_t i = 0; i < ring.size(); ++i) {
      if (fds[i].revents == 0 || !stops.Pause(static_cast<int>(delay_ms))) continue;
      Note(Cat("the connection to rank ", ring[i], " is closed"));
      Fail(ncclRemoteError);
      return;
    }
  }
}

void ncclComm::StopWatching() {
  watch_stop_.Set();
  if (watch_.joinable()) watch_.join();
}
