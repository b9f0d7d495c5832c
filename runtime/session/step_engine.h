// One attempt of one step: compute this rank's micro-batches, reduce bucket by bucket while the
// backward pass still runs, gather the gradient, exchange the control table. And the application of
// a step whose verdict was "apply". Everything before Apply leaves the state untouched, and the
// sums too (reductions are out of place). Main thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/collectives/communicator.h"
#include "runtime/config/config.h"
#include "runtime/session/accumulator.h"
#include "runtime/session/compute_pool.h"
#include "runtime/session/control_table.h"
#include "runtime/session/schedule.h"
#include "runtime/session/state.h"
#include "runtime/session/time_ledger.h"

namespace holdfast {

// What an attempt found out, beside the table.
struct StepFacts {
  std::vector<int64_t> scalars;  // ScalarLayout, summed over all ranks
  bool gathered = false;         // the gradient is whole (no tensor out of range, all finite)
  bool out_of_range = false;
  int64_t compute_us = 0;
  // The overlap of reduction with backward, for the trace test: boot times, us.
  int64_t first_bucket_queued_us = 0;   // handed to the communicator
  int64_t first_bucket_reduced_us = 0;  // seen complete while the backward pass still ran (0: not)
  int64_t last_backward_us = 0;         // the last backward pass of this rank ended
};

// What one applied step is reported with.
struct StepResult {
  int64_t step = 0;
  double loss = 0, gradient_norm = 0, learning_rate = 0;
  int64_t weight = 0;
  std::vector<double> metrics;
  bool skipped = false;
};

// An error of a model or a data source ends the run. Its code is replaced: those of the
// communicator (kAborted, kDataLoss, ...) mean a new generation.
absl::Status EndsRun(const absl::Status& status);

class StepEngine {
 public:
  static absl::StatusOr<std::unique_ptr<StepEngine>> Create(const Config& config,
                                                            const Trainer& trainer,
                                                            DataSource* data, State* state,
                                                            ComputePool* pool, TimeLedger* time);

  // The learning rates from now on; at first those of the config.
  void SetSchedules(Schedules schedules) { schedules_ = std::move(schedules); }
  // A new generation: slices of `world_size`.
  void SetWorld(int world_size, int rank);
  // step: the held one; step + 1 is computed. Fills the step's part of `row` (work, sums, digests,
  // flags of non-finite) and gathers the table into `rows`. Errors: kAborted / kDeadlineExceeded /
  // kCancelled from the communicator (regroup), anything else from the model or data (end of the
  // run).
  absl::Status Attempt(Communicator& comm, const std::vector<int32_t>& mine, int64_t step,
                       int attempt, ControlRow row, std::vector<ControlRow>* rows,
                       StepFacts* facts);
  // A round without a step. Books no time: the caller knows what it waits for.
  absl::Status Round(Communicator& comm, ControlRow row, std::vector<ControlRow>* rows);

  // The state becomes that of step + 1; in `fast` mode a norm that is not finite makes it a Skip.
  // Needs the facts of the attempt that the verdict was about.
  absl::StatusOr<StepResult> Apply(const StepFacts& facts);
  absl::StatusOr<StepResult> Skip(const StepFacts& facts);

  // Exponents of this step's attempts: the state's, lowered where an attempt was out of range.
  const std::vector<int16_t>& exponents() const { return exponents_; }
  void LowerExponents(const StepFacts& facts);
  // Drops all sums and computes with the state's exponents again.
  void ResetSums();
  Accumulator& accumulator() { return *accumulator_; }
  // What reduce-scatters and gathers read: for the build of a generation.
  std::vector<const SharedBlock*> shared() const {
    if (state_->device().backend() != kernels::Backend::kCpu) return {};
    return {&accumulator_->sums_block(), &shared_gradient_};
  }

  // A sound bound for one wait: ten times the longest recent step, at least 10 s; long while
  // nothing was measured.
  int64_t stall_ms() const;
  void NoteStepTime(int64_t ms);

 private:
  StepEngine(const Config& config, const Trainer& trainer, DataSource* data, State* state,
             ComputePool* pool, TimeLedger* time)
      : config_(config),
        data_(data),
        state_(state),
        pool_(pool),
        time_(time),
        trainer_(trainer),
        schedules_(config) {}

  absl::Status ComputeAndReduce(Communicator& comm, const std::vector<int32_t>& mine, int64_t step,
                                int attempt, StepFacts* facts);
  absl::Status CheckWhileComputing(Communicator& comm);
  absl::Status BreakOff(const absl::Status& why);
  // Alone, nothing travels: there are no words to hold against others'.
  bool ChecksWords() const { return world_size_ > 1 && !accumulator_->fast(); }
  absl::Status ReduceBuckets(Communicator& comm, int64_t step, int attempt, StepFacts* facts,
                             Ticket* last);
  absl::Status SumContributed();
  absl::Status SumReduced(const StepFacts& facts);
  void ConvertSlice(size_t bucket, double weight);
  // Words that operations have left in words_, on the host.
  absl::StatusOr<std::span<const uint64_t>> ReadWords(int64_t count);
  absl::Status GatherGradient(Communicator& comm, int64_t step, int attempt, StepFacts* facts);
  absl::Status ReduceCursors(Communicator& comm, OpTag tag);
  absl::Status Table(Communicator& comm, const ControlRow& row, OpTag tag,
                     std::vector<ControlRow>* rows);
  absl::Status FillRow(const StepFacts& facts, ControlRow* row);
  StepResult Begin(const StepFacts& facts) const;
  void Update(double learning_rate, double clip_factor, absl::Status* status);
  absl::Status UpdateBuffers(const StepFacts& facts);
  absl::Status UpdateByOwnRule(const TrainedTensor& tensor, double rate, double decay,
                               double clip_factor);
  absl::StatusOr<double> GradientNorm();
  void UpdateExponents(const StepFacts& facts);
  absl::Status FinishState();
  float* gradient() { return static_cast<float*>(gradient_); }
  kernels::Stream& stream() { return state_->stream(); }

  const Config& config_;
  DataSource* data_;
  State* state_;
  ComputePool* pool_;
  TimeLedger* time_;
  const Trainer& trainer_;
  Schedules schedules_;
  std::unique_ptr<Accumulator> accumulator_;
  std::unique_ptr<Model> buffer_model_;                 // for UpdateBuffers
  std::vector<std::unique_ptr<Optimizer>> optimizers_;  // per OptimizerSpec; null = built in
  SharedBlock shared_gradient_;                         // on the CPU,
  kernels::Buffer device_gradient_;                     // or on a GPU
  void* gradient_ = nullptr;
  kernels::Buffer reduced_;
  // Sums and digests of words, and the chunks of the norm: made on the device, read on the host.
  kernels::Buffer words_, host_words_, norm_chunks_, host_norm_chunks_;
  std::vector<int16_t> exponents_;
  std::vector<std::vector<int64_t>> borders_;  // per bucket, elements relative to the bucket
  std::vector<int64_t> reduced_offset_;        // per bucket, of this rank's slice in reduced_
  std::vector<std::string> next_cursors_;
  int world_size_ = 1, rank_ = 0;
  uint64_t contributed_ = 0, reduced_sum_ = 0, cursor_sum_ = 0, cursor_digest_ = 0;
  int64_t slowest_ms_ = 0;
  int timed_steps_ = 0;
};

}  // namespace holdfast
