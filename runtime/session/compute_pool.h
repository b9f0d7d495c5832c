// The compute threads of a worker: T of them, each with its own Model, Pass and stream, each
// computing whole micro-batches. Nothing that they do depends on T: gradients are added as
// integers, and evaluation sums likewise.
//
// Threads: all calls belong to the main thread; Start returns at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/models/model.h"
#include "runtime/session/accumulator.h"
#include "runtime/session/runtime_pass.h"

namespace holdfast {

struct EvalSums {
  int64_t loss = 0, weight = 0;  // fixed point as MicroBatchResult
  int64_t nonfinite = 0;         // batches whose loss or metric is not finite
  std::vector<int64_t> metrics;
};

class ComputePool {
 public:
  struct Options {
    int threads = 1;
    uint64_t seed = 1;
    std::string toml;  // for the factories
  };
  // Builds `threads` models; describes, prepares for the state's device. The plan is made from the
  // first one's description (see MakePool).
  static absl::StatusOr<std::unique_ptr<ComputePool>> Create(const Options& options,
                                                             const Trainer& trainer,
                                                             DataSource* data, State* state);
  ~ComputePool();

  // Training: computes the listed micro-batches of step `step` (1-based number of the step under
  // way) into `accumulator`.
  void Start(std::vector<int32_t> micro_batches, int64_t step, Accumulator* accumulator);
  // Evaluation of the held-out batches i = first, first + stride, ... < count.
  void StartEval(int64_t first, int64_t stride, int64_t count);

  // No further micro-batch is begun; those under way go on to their end (or until Cancel).
  void StopAfterCurrent();
  // Passes report cancelled(): what is under way may be broken off, which makes the accumulator
  // dirty.
  void Cancel();
  // True when all is over (done, stopped or failed). Waits at most wait_ms.
  bool Finished(int64_t wait_ms);
  // After Finished: the first error of a model or data source (kCancelled: broken off).
  absl::Status status();
  EvalSums eval_sums();
  // Boot time (us) at which the last backward pass ended.
  int64_t last_end_us() const { return last_end_us_.load(std::memory_order_relaxed); }

  // The probe: micro-batch 0 of step 0 with the present values, on the first thread. Digest over
  // gradients and loss.
  absl::StatusOr<uint64_t> Probe();

 private:
  struct Worker {
    std::unique_ptr<Model> model;
    std::unique_ptr<RuntimePass> pass;
    std::thread thread;
  };
  enum class Job { kNone, kTrain, kEval, kProbe };

  ComputePool() = default;
  void Loop(Worker& worker);
  absl::Status RunOne(Worker& worker, Job job, int64_t index);
  absl::Status TrainOne(Worker& worker, int64_t index);
  absl::Status EvalOne(Worker& worker, int64_t index);
  absl::Status ProbeOne(Worker& worker);
  absl::StatusOr<MicroBatchResult> Compute(Worker& worker, Accumulator* accumulator,
                                           const MicroBatch& batch);
  void Post(Job job, std::vector<int64_t> items);

  Options options_;
  DataSource* data_ = nullptr;
  State* state_ = nullptr;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<bool> cancelled_{false};
  std::atomic<int64_t> last_end_us_{0};

  std::mutex mutex_;  // guards what follows
  std::condition_variable posted_, finished_;
  Job job_ = Job::kNone;
  std::vector<int64_t> items_;
  size_t next_ = 0;
  int running_ = 0;
  bool stop_ = false, quit_ = false;
  absl::Status status_;
  int64_t step_ = 0;
  Accumulator* accumulator_ = nullptr;
  EvalSums eval_;
  uint64_t probe_ = 0;
};

}  // namespace holdfast
