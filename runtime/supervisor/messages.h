// What supervisor and worker tell each other over their socket pair (SOCK_SEQPACKET, one JSON
// object a message, at most 64 KiB). The pair is file descriptor 3 of the worker. The supervisor
// alone writes the files in --dir; the workers report.
//
// Supervisor -> worker
//   {"type":"start", "config":TOML, "slot":2, "member_id":"..", "machine":"..", "local_workers":4,
//    "redis":{"host":"..","port":1,"user":"","password":".."}, "run":"name", "may_found":true}
//    first message, once
//   {"type":"drain", "cause":"SIGINT"}            leave at a step boundary (SIGTERM to the worker
//   does the same)
// Worker -> supervisor (every "ms" below is CLOCK_BOOTTIME)
//   {"type":"joined", "generation":2, "world_size":4, "rank":1, "step":120,
//   "source":"memory|checkpoint|fresh", "note":"..", "carrier":"shm|tcp (why)|local", "branch":1,
//   "forks":[[0,0],[1,100]], "ms":..}
//   {"type":"lost", "generation":1, "step":120, "cause":"rank 2 (worker 2): connection closed",
//   "ms":..}     an unplanned end of a generation
//   {"type":"first_step", "generation":2, "step":121, "ms":..}                 first step applied
//   in a generation
//   {"type":"step", "step":121, "loss":2.5, "digest":"16 hex", "world_size":4, "generation":2,
//   "samples":"16 hex ledger hash", "branch":0,
//    "gradient_norm":0.9, "learning_rate":0.001, "step_ms":37.1, "tokens":768, "flops":3.8e9,
//    "skipped":false}   agreed by the next table; sent by all
//   {"type":"eval", "step":250, "loss":2.1, "items":12345}
//   {"type":"save", "phase":"begun|saved|failed", "step":250, "branch":0, "generation":2, "ms":..,
//   "stall_ms":1.2, "write_ms":80, "bytes":123, "copies":1, "text":".."}
//   {"type":"event",
//   "kind":"skip|recheck|restore|checkpoint_skipped|notice|corrupt|range|store|branch", "step":..,
//   "text":".."}
//   {"type":"final", "exit":0, "text":"..", "step":1000, "digest":"..", "train_loss":..,
//   "eval_loss":.., "finished":true,
//    "time":{"compute":s,"reduce":s,"wait":s,"checkpoint":s,"lost":s}, "wall_s":.., "steps_lost":0,
//    "generation":3}  last message
// A worker that ends without "final" has crashed: the supervisor judges by its wait status.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast {

inline constexpr int kChannelFd = 3;
inline constexpr size_t kMaxMessageBytes = 65'536;
inline constexpr size_t kMaxPostedBytes = 4 << 20;

// One end of the pair. Send never blocks for longer than a second (a full pipe drops the message
// and counts it). Post is for those who must not lose a message because the other side is not
// reading for a while (a stopped supervisor): what the pipe does not take waits here, in order, up
// to kMaxPostedBytes; beyond that Post waits a second, then drops the oldest. A sender uses one of
// the two. All are thread-safe but Receive, which belongs to one thread.
class Channel {
 public:
  explicit Channel(int fd);  // takes ownership
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  int fd() const { return fd_; }
  void Send(const std::string& json);
  void Post(const std::string& json);
  // Sends what waits, as far as the pipe takes it now. Never blocks.
  void Pump();
  // The same, for at most `wait_ms`: before the end of the process.
  void Flush(int64_t wait_ms);
  // The next message; kNotFound when none is there now, kUnavailable when the other side has gone.
  absl::StatusOr<std::string> Receive();
  // Messages that could not be sent: too large, the pipe full for a second, or the other side gone.
  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  enum class Sent { kYes, kFull, kNever };
  Sent TrySend(const std::string& json) const;
  void WaitForRoom(int64_t wait_ms) const;
  void PumpLocked();

  int fd_;
  std::atomic<int64_t> dropped_{0};
  std::mutex mutex_;  // over what was posted
  std::deque<std::string> posted_;
  size_t posted_bytes_ = 0;
};

}  // namespace holdfast
