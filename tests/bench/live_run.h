// One run of the real program under measurement: the default GPT (834 k parameters) or a tiny one
// on generated text, in a folder of its own below the temporary directory. Everything it started is
// gone with it.
//
// Threads: one owner. Errors: what ChildProcess and the injectors say; kDeadlineExceeded after
// `kWaitMs` without news.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "chaos/injector.h"
#include "chaos/oracle.h"
#include "chaos/process.h"

namespace holdfast {

inline constexpr int64_t kWaitMs = 240'000;

// A folder below the temporary directory, removed at the end, with text.txt (about 400 kB) in it.
class BenchFolder {
 public:
  BenchFolder();
  ~BenchFolder();
  BenchFolder(const BenchFolder&) = delete;
  BenchFolder& operator=(const BenchFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string text() const { return path_ + "/text.txt"; }

 private:
  std::string path_;
};

class LiveRun {
 public:
  // `flags` are appended to `holdfast run --dir FOLDER/name --data TEXT`. The program:
  // HOLDFAST_PROGRAM, else build/holdfast.
  static absl::StatusOr<std::unique_ptr<LiveRun>> Start(const BenchFolder& folder,
                                                        const std::string& name,
                                                        const std::vector<std::string>& flags);

  const std::string& dir() const { return dir_; }
  chaos::ChildProcess& process() { return *process_; }
  // Polls `done` each 2 ms until it says yes; fails when the run ends first.
  absl::Status Follow(std::string_view what, const std::function<bool()>& done);
  absl::Status WaitForStep(int64_t step);
  // Steps go on with `workers` members, all of whose processes are there.
  absl::Status WaitForWorld(int64_t workers);
  // Newest step on record and the size of its world.
  int64_t step() { return watch_.Newest(); }
  int64_t world_size() const;
  int64_t CountEvents(std::string_view kind) const;
  double LastEventMs(std::string_view kind) const;
  // SIGTERM, and the summary when it has ended.
  absl::StatusOr<chaos::Summary> Stop();
  // Waits for the end, which must be exit code 0.
  absl::StatusOr<chaos::Summary> Finish();

 private:
  LiveRun(std::string dir) : dir_(std::move(dir)), watch_(dir_) {}
  absl::StatusOr<chaos::Summary> End(int wanted_code);

  std::string dir_;
  std::unique_ptr<chaos::ChildProcess> process_;
  chaos::StepWatch watch_;
};

}  // namespace holdfast
