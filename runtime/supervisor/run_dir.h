// The directory of a run, before anything starts: who uses it, whether it can be written, which run
// it holds, and whether the wanted configuration may continue that run.
//   DIR/lock           held (flock) by the supervisor; its pid inside
//   DIR/config.toml    the run's configuration as resolved
//   DIR/run.json       while a supervisor runs: pid, run, Redis endpoint (no password)
//   DIR/redis.secret   while a supervisor runs: the password, mode 0600
//   DIR/old-N          earlier runs, set aside by --fresh
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/config/config.h"
#include "runtime/supervisor/redis_address.h"

namespace holdfast {

class RunDir {
 public:
  // Creates the directory if need be, and takes its lock. Exit codes: kBusy (names the pid), kUsage
  // (cannot be used).
  static absl::StatusOr<RunDir> Open(const std::string& dir);
  RunDir(RunDir&& other) noexcept
      : path_(std::move(other.path_)), lock_fd_(std::exchange(other.lock_fd_, -1)) {}
  RunDir& operator=(RunDir&&) = delete;
  ~RunDir();

  const std::string& path() const { return path_; }  // absolute
  std::string File(std::string_view name) const;

  // What DIR holds now and what may be done.
  struct Plan {
    Config config;             // with the run's name and workers resolved
    bool exists = false;       // DIR holds this run already
    bool finished = false;     // and it is complete: nothing is to be done
    int64_t step = 0;          // last committed step on record
    std::string digest;        // of a finished run
    int64_t former_steps = 0;  // of an existing run, before this command
    std::string change;        // schedule keys that --accept-change lets change: "key was A, is B"
    std::vector<std::string> notes;  // what was found out by itself, once, for people
  };
  // What Prepare would say, without taking the lock, creating or moving anything. Whoever else uses
  // the directory is not an error here. kNotFound never: a directory that is not there is a new
  // run.
  static absl::StatusOr<Plan> Look(const Config& wanted);
  // Applies --fresh (sets the old run aside), compares with DIR/config.toml. Exit code kRefused
  // names each key, its old and its new value.
  absl::StatusOr<Plan> Prepare(const Config& wanted);
  // Writes config.toml, removes the former summary.json.
  [[nodiscard]] absl::Status Begin(const Config& config);
  [[nodiscard]] absl::Status PublishEndpoint(const Config& config, const RedisAddress& redis,
                                             bool embedded);
  void RemoveEndpoint();

 private:
  RunDir(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}
  absl::Status SetAside();
  absl::StatusOr<Plan> Compare(const Config& old, const Config& wanted) const;

  std::string path_;
  int lock_fd_;
};

// One worker for each two cores that this process may use, at least 1.
int DefaultWorkers();
// The name that a run gets when --run is not given.
std::string DefaultRunName(const std::string& dir, bool embedded);

// What is on record of a run in `dir`, read without its lock: the last step of steps.jsonl, and
// summary.json.
struct RecordedRun {
  int64_t last_step = 0;
  std::string last_digest;
  bool finished = false;
  int64_t final_step = 0;
  std::string final_digest;
  std::string summary_json;  // "" when there is none
};
RecordedRun ReadRecord(const std::string& dir);

}  // namespace holdfast
