// One worker process as its supervisor sees it, from start to reaping. One thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/supervisor/messages.h"
#include "runtime/supervisor/process.h"
#include "runtime/supervisor/report.h"

namespace holdfast {

struct WorkerStart {
  std::string program;
  std::string run, member_id;
  int slot = 0;
  std::string start_message;  // the first message, JSON
};

class WorkerChild {
 public:
  static absl::StatusOr<std::unique_ptr<WorkerChild>> Start(const WorkerStart& start);
  ~WorkerChild();  // kills and reaps it if it still runs
  WorkerChild(const WorkerChild&) = delete;
  WorkerChild& operator=(const WorkerChild&) = delete;

  int slot() const { return slot_; }
  pid_t pid() const { return pid_; }
  const std::string& member_id() const { return member_id_; }
  int channel_fd() const { return channel_open_ ? channel_->fd() : -1; }
  int output_fd() const { return output_fd_; }

  // Reads what is there, without blocking: whole output lines and messages. Bounded per call, so
  // that one talkative worker cannot hold the loop; true when more may be there.
  bool ReadOutput(const std::function<void(const std::string& line)>& take);
  bool ReadMessages(const std::function<void(const Json& message)>& take);
  void Drain(const std::string& cause);
  void Kill(const std::string& why);  // SIGKILL; works on stopped processes too
  // It was reaped: its pid may belong to another process now and is kept for messages only.
  void Reaped() { running_ = false; }
  const std::deque<std::string>& last_lines() const { return last_lines_; }  // at most 20

  // What its messages said.
  int64_t generation = 0, step = 0, rank = -1;
  bool ever_joined = false;
  Json final;  // null: none came
  int64_t last_message_ms = 0;
  // What the supervisor did or saw.
  int64_t started_ms = 0, stopped_since_ms = -1;
  std::string stop_signal, killed_why;

 private:
  WorkerChild() = default;
  void TakeLine(std::string line, const std::function<void(const std::string&)>& take);

  int slot_ = 0;
  pid_t pid_ = -1;
  bool running_ = false;
  std::string member_id_, partial_;
  std::unique_ptr<Channel> channel_;
  bool channel_open_ = true;
  int output_fd_ = -1;
  std::deque<std::string> last_lines_;
};

}  // namespace holdfast
