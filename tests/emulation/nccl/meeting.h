// How the ranks of a communicator find each other, several processes of one host or one: the
// process that made the unique id waits for all ranks on a socket that the id names, then gives
// each pair two connections of its own (socketpair) and is done. Only processes of the same user
// that know the id's secret take part; whoever else connects is dropped.
//
// As NCCL's bootstrap: the root waits for ever for a rank that does not come; ranks that do not
// agree on the number of ranks, or on who is who, wait for ever too, and standard error says why;
// the end of the root's process is a remote error.
//
// Threads: any.
#pragma once

#include <nccl.h>
#include <poll.h>

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace holdfast::emulation {

// A file descriptor, closed with the object.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }

 private:
  int fd_;
};

// What ends a wait from outside: a flag to look at and a descriptor to poll.
class StopFlag {
 public:
  StopFlag();
  void Set();
  void Clear();
  bool set() const { return set_.load(std::memory_order_acquire); }
  int fd() const { return event_.get(); }
  // Nobody looks at it any more: gives the descriptor back, the object may stay.
  void Retire() { event_ = Fd(); }

 private:
  std::atomic<bool> set_{false};
  Fd event_;
};

// Several of them: any one ends the wait.
class Stops {
 public:
  Stops(std::initializer_list<const StopFlag*> flags) : flags_(flags) {}
  bool any() const;
  void AddTo(std::vector<pollfd>& fds) const;
  bool Pause(int ms) const;  // false: stopped

 private:
  std::vector<const StopFlag*> flags_;
};

struct MeetingId {
  uint64_t magic = 0;
  uint64_t name = 0;  // of the socket
  uint64_t secret[2] = {};
};
MeetingId FreshId();
// An id that all who know `parent` can work out.
MeetingId DerivedId(const MeetingId& parent, uint64_t serial);
ncclUniqueId ToUniqueId(const MeetingId& id);
bool FromUniqueId(const ncclUniqueId& unique, MeetingId& id);

// What a rank says of itself.
struct RankFacts {
  int32_t rank = 0, ranks = 0;
  int32_t process = 0, gpu = 0;  // the GPU's number on the host
  uint64_t host = 0;
};

struct PeerConnection {
  RankFacts facts;
  Fd data, bootstrap;  // a stream; messages
};

// The root of one meeting: a thread of this process, until all have come or Close.
class MeetingRoot {
 public:
  // Null: the socket cannot be made.
  static std::shared_ptr<MeetingRoot> Open(const MeetingId& id);
  // Of an id that this process has made; null when it is over.
  static std::shared_ptr<MeetingRoot> Find(const MeetingId& id);
  ~MeetingRoot();
  void Close() { stop_.Set(); }

 private:
  struct Guest;
  MeetingRoot() = default;
  void Run();
  bool Hear(Guest& guest);  // false: drop it
  bool Fits(const RankFacts& facts);
  void Introduce();

  MeetingId id_;
  Fd listening_;
  StopFlag stop_;
  std::vector<std::unique_ptr<Guest>> guests_;
  std::vector<Guest*> seats_;
  bool broken_ = false;  // the ranks contradict each other: nobody is answered any more
};

// Takes part as `me`; fills peers (by rank, its own seat empty). ncclSuccess; ncclRemoteError: the
// root is not there (after NCCL_SOCKET_RETRY_CNT tries, or patiently for ever), or has died;
// ncclInternalError: stopped.
ncclResult_t Meet(const MeetingId& id, const RankFacts& me, bool patient, const Stops& stops,
                  std::vector<PeerConnection>& peers);

}  // namespace holdfast::emulation
