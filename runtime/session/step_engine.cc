#include "runtime/session/step_engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/ops.h"
#include "runtime/base/digest.h"
#include "runtime/base/failpoint.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {

constexpr int64_t kSliceGrain = 1024;
constexpr int64_t kPollMs = 5;
constexpr int32_t kScalarBucket = 1 << 20, kCursorBucket = kScalarBucket + 1,
                  kTableBucket = kScalarBucket + 2, kGatherBucket = 1 << 21;
// One cursor in the all-reduce: its length, then its bytes, in words.
constexpr int64_t kCursorWords = 33;

uint64_t WordsHash(const std::vector<int64_t>& words) {
  return Hash64({reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int64_t)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepEngine>> StepEngine::Create(const Config& config,
                                                               const Trainer& trainer,
                                                               DataSource* data, State* state,
                                                               ComputePool* pool,
                                                               TimeLedger* time) {
  std::unique_ptr<StepEngine> e(new StepEngine(config, trainer, data, state, pool, time));
  const StatePlan& plan = state->plan();
  kernels::Device& device = state->device();
  const bool shareable = config.transport != "tcp";
  HF_ASSIGN_OR_RETURN(e->accumulator_,
                      Accumulator::Allocate(plan, config.micro_batches, config.reduction == "fast",
                                            shareable, device));
  HF_ASSIGN_OR_RETURN(e->buffer_model_, trainer.model(config.ToToml()));
  for (const OptimizerSpec& o : plan.spec.optimizers) {
    const bool built_in = o.rule == "adamw" || o.rule == "sgd";
    if (!built_in && device.backend() != kernels::Backend::kCpu) {
      return absl::UnimplementedError(
          Cat("the rule '", o.rule, "' of your own (Optimizer::Update) works on host memory: use ",
              "--device cpu, or the built-in rules adamw and sgd"));
    }
    e->optimizers_.push_back(built_in || !trainer.optimizer ? nullptr : trainer.optimizer(o.rule));
  }
  if (device.backend() == kernels::Backend::kCpu) {
    HF_ASSIGN_OR_RETURN(e->shared_gradient_,
                        SharedBlock::Create(plan.flat_elements * 4, shareable));
    e->gradient_ = e->shared_gradient_.data();
  } else {
    HF_ASSIGN_OR_RETURN(e->device_gradient_, device.Allocate(plan.flat_elements * 4));
    e->gradient_ = e->device_gradient_.data();
    device.Zero(e->stream(), e->gradient_, plan.flat_elements * 4);
  }
  const int64_t chunks = kernels::SquaredNormCount(plan.flat_elements) * 8;
  const auto words = static_cast<int64_t>((plan.buckets.size() + 1) * sizeof(uint64_t));
  HF_ASSIGN_OR_RETURN(e->norm_chunks_, device.Allocate(chunks));
  HF_ASSIGN_OR_RETURN(e->host_norm_chunks_, device.AllocateHost(chunks));
  HF_ASSIGN_OR_RETURN(e->words_, device.Allocate(words));
  HF_ASSIGN_OR_RETURN(e->host_words_, device.AllocateHost(words));
  // The main thread computes digests, norm and optimizer.
  HF_RETURN_IF_ERROR(device.BindThread());
  HF_RETURN_IF_ERROR(state->Settle());
  return e;
}

void StepEngine::SetWorld(int world_size, int rank) {
  world_size_ = world_size;
  rank_ = rank;
  borders_.clear();
  reduced_offset_.clear();
  int64_t total = 0;
  for (const Bucket& b : state_->plan().buckets) {
    borders_.push_back(Communicator::Slices(b.end - b.begin, kSliceGrain, world_size));
    reduced_offset_.push_back(total);
    total += borders_.back()[rank + 1] - borders_.back()[rank];
  }
  if (reduced_.bytes() < total * 8) {
    (void)state_->Settle();  // what read the smaller one
    reduced_.Reset();
    auto buffer = state_->device().Allocate(total * 8);
    // Smaller than what was held before the loss of a member only when the world shrank to less
    // memory: report and die loudly.
    if (!buffer.ok()) LogError("reduced gradient: ", std::string(buffer.status().message()));
    reduced_ = std::move(buffer).value();
  }
}

void StepEngine::ResetSums() {
  exponents_ = state_->scalars.exponent;
  accumulator_->Reset(exponents_, state_->scalars.loss_scale_log2);
}

void StepEngine::LowerExponents(const StepFacts& facts) {
  const ScalarLayout at(state_->plan());
  for (size_t t = 0; t < exponents_.size(); ++t) {
    if (facts.scalars[at.out_of_range + static_cast<int64_t>(t)] > 0)
      exponents_[t] -= kExponentStep;
  }
  accumulator_->Reset(exponents_, state_->scalars.loss_scale_log2);
}

int64_t StepEngine::stall_ms() const {
  if (timed_steps_ < 3) return 600'000;
  return std::max<int64_t>(10'000, 10 * slowest_ms_);
}

void StepEngine::NoteStepTime(int64_t ms) {
  ++timed_steps_;
  slowest_ms_ = std::max(slowest_ms_ - slowest_ms_ / 50, ms);
}

absl::Status EndsRun(const absl::Status& status) {
  return absl::InternalError(std::string(status.message()));
}

absl::Status StepEngine::BreakOff(const absl::Status& why) {
  // A micro-batch under way is finished (its sums stay good) unless that takes too long.
  pool_->StopAfterCurrent();
  const Deadline deadline = Deadline::After(config_.detect_ms);
  while (!pool_->Finished(kPollMs)) {
    if (deadline.passed()) pool_->Cancel();
  }
  return why;
}

absl::Status StepEngine::CheckWhileComputing(Communicator& comm) {
  const absl::Status health = comm.Health();
  if (!health.ok()) return BreakOff(health);
  if (pool_->status().ok()) return absl::OkStatus();
  while (!pool_->Finished(1000)) {  // the watchdog bounds it
  }
  const absl::Status model = EndsRun(pool_->status());
  comm.Abort(model);
  return model;
}

// Each bucket goes on its way when the last of this rank's micro-batches has added to it. On a GPU
// "has added" means that the addition is in its stream: the device's lane follows it there.
absl::Status StepEngine::ReduceBuckets(Communicator& comm, int64_t step, int attempt,
                                       StepFacts* facts, Ticket* last) {
  const auto& buckets = state_->plan().buckets;
  Communicator& lane = comm.OnDevice();
  Ticket first = 0;
  for (size_t b = 0; b < buckets.size(); ++b) {
    while (!accumulator_->WaitBucket(static_cast<int>(b), kPollMs)) {
      HF_RETURN_IF_ERROR(CheckWhileComputing(comm));
    }
    accumulator_->SealBucket(static_cast<int>(b), stream());
    accumulator_->Follow(static_cast<int>(b), lane);
    if (b == 0) Failpoint("step.before_reduce", step);
    const OpTag tag{step, attempt, static_cast<int32_t>(b)};
    const int64_t count = buckets[b].end - buckets[b].begin;
    const int64_t slice = borders_[b][rank_ + 1] - borders_[b][rank_];
    if (accumulator_->fast()) {
      *last = lane.ReduceScatter(
          std::span<const float>(accumulator_->fast_sums() + buckets[b].begin, count), borders_[b],
          std::span<float>(reduced_.as<float>() + reduced_offset_[b], slice), tag);
    } else {
      *last = lane.ReduceScatter(
          std::span<const int64_t>(accumulator_->sums() + buckets[b].begin, count), borders_[b],
          std::span<int64_t>(reduced_.as<int64_t>() + reduced_offset_[b], slice), tag);
    }
    if (b == 0) first = *last, facts->first_bucket_queued_us = BootUs();
    if (facts->first_bucket_reduced_us == 0 && lane.Finished(first))
      facts->first_bucket_reduced_us = BootUs();
  }
  while (!pool_->Finished(kPollMs)) {
    HF_RETURN_IF_ERROR(CheckWhileComputing(comm));
    if (facts->first_bucket_reduced_us == 0 && lane.Finished(first))
      facts->first_bucket_reduced_us = BootUs();
  }
  return CheckWhileComputing(comm);
}

absl::Status StepEngine::ComputeAndReduce(Communicator& comm, const std::vector<int32_t>& mine,
                                          int64_t step, int attempt, StepFacts* facts) {
  time_->Switch(TimeKind::kCompute);
  const int64_t start_us = BootUs();
  accumulator_->Begin(static_cast<int>(mine.size()));
  pool_->Start(mine, step, accumulator_.get());
  Ticket reduced = 0;
  HF_RETURN_IF_ERROR(ReduceBuckets(comm, step, attempt, facts, &reduced));
  facts->last_backward_us = mine.empty() ? 0 : pool_->last_end_us();
  facts->compute_us = BootUs() - start_us;

  time_->Switch(TimeKind::kReduce);
  facts->scalars = accumulator_->Scalars();
  contributed_ = cursor_sum_ = cursor_digest_ = 0;
  for (const int64_t w : facts->scalars) contributed_ += static_cast<uint64_t>(w);
  const Ticket scalars = comm.AllReduce(facts->scalars, {step, attempt, kScalarBucket});
  if (ChecksWords()) HF_RETURN_IF_ERROR(SumContributed());
  const Deadline deadline = Deadline::After(stall_ms());
  HF_RETURN_IF_ERROR(comm.OnDevice().Wait(reduced, deadline));
  HF_RETURN_IF_ERROR(comm.Wait(scalars, deadline));
  if (data_->streaming()) HF_RETURN_IF_ERROR(ReduceCursors(comm, {step, attempt, kCursorBucket}));
  Failpoint("step.after_reduce", step);
  return absl::OkStatus();
}

absl::StatusOr<std::span<const uint64_t>> StepEngine::ReadWords(int64_t count) {
  state_->device().Copy(stream(), host_words_.data(), words_.data(), count * 8);
  HF_RETURN_IF_ERROR(state_->Settle());
  return std::span<const uint64_t>(host_words_.as<uint64_t>(), count);
}

// The words of this rank's sums, beside its scalars.
absl::Status StepEngine::SumContributed() {
  kernels::SumWords(stream(), state_->plan().flat_elements, accumulator_->sums(),
                    words_.as<uint64_t>());
  HF_ASSIGN_OR_RETURN(const auto words, ReadWords(1));
  contributed_ += words[0];
  return absl::OkStatus();
}

absl::Status StepEngine::ReduceCursors(Communicator& comm, OpTag tag) {
  std::vector<int64_t> words(config_.micro_batches * kCursorWords, 0);
  for (const MicroBatchResult& r : accumulator_->results()) {
    int64_t* at = words.data() + r.index * kCursorWords;
    at[0] = static_cast<int64_t>(r.next_cursor.size());
    std::memcpy(at + 1, r.next_cursor.data(), r.next_cursor.size());
  }
  for (const int64_t w : words) contributed_ += static_cast<uint64_t>(w);
  HF_RETURN_IF_ERROR(comm.Wait(comm.AllReduce(words, tag), Deadline::After(stall_ms())));
  for (const int64_t w : words) cursor_sum_ += static_cast<uint64_t>(w);
  cursor_digest_ = WordsHash(words);
  next_cursors_.clear();
  for (int64_t j = 0; j < config_.micro_batches; ++j) {
    const int64_t* at = words.data() + j * kCursorWords;
    if (at[0] < 0 || at[0] > 255)
      return absl::AbortedError(Cat("cursor of stream ", j, " was reduced wrongly"));
    next_cursors_.emplace_back(reinterpret_cast<const char*>(at + 1), static_cast<size_t>(at[0]));
  }
  return absl::OkStatus();
}

// What this rank holds reduced: its slices, and, counted once by rank 0, what every rank holds.
absl::Status StepEngine::SumReduced(const StepFacts& facts) {
  reduced_sum_ = 0;
  if (ChecksWords()) {
    const auto count = static_cast<int64_t>(borders_.size());
    for (int64_t b = 0; b < count; ++b) {
      kernels::SumWords(stream(), borders_[b][rank_ + 1] - borders_[b][rank_],
                        reduced_.as<int64_t>() + reduced_offset_[b], words_.as<uint64_t>() + b);
    }
    HF_ASSIGN_OR_RETURN(const auto words, ReadWords(count));
    for (const uint64_t w : words) reduced_sum_ += w;
  }
  if (rank_ != 0) return absl::OkStatus();
  for (const int64_t w : facts.scalars) reduced_sum_ += static_cast<uint64_t>(w);
  reduced_sum_ += cursor_sum_;
  return absl::OkStatus();
}

// This rank's slice of a bucket, from sums to the mean gradient: one rounding, from the exact
// integer.
void StepEngine::ConvertSlice(size_t b, double weight) {
  const StatePlan& plan = state_->plan();
  const Bucket& bucket = plan.buckets[b];
  const int64_t begin = bucket.begin + borders_[b][rank_],
                end = bucket.begin + borders_[b][rank_ + 1];
  for (int t = bucket.first_tensor; t < bucket.last_tensor; ++t) {
    const int64_t from = std::max(begin, plan.trained[t].offset);
    const int64_t to = std::min(end, plan.trained[t].offset + plan.trained[t].elements);
    if (from >= to) continue;
    const int64_t source = reduced_offset_[b] + from - begin;
    float* out = gradient() + from;
    if (accumulator_->fast()) {
      kernels::CopyFloat(stream(), to - from, reduced_.as<float>() + source, out);
      kernels::ScaleFloat(stream(), to - from,
                          static_cast<float>(std::ldexp(1.0, plan.loss_shift) / weight), out);
    } else {
      kernels::FixedToFloat(stream(), to - from,
                            std::ldexp(1.0, plan.loss_shift - exponents_[t]) / weight,
                            reduced_.as<int64_t>() + source, out);
    }
  }
}

absl::Status StepEngine::GatherGradient(Communicator& comm, int64_t step, int attempt,
                                        StepFacts* facts) {
  const StatePlan& plan = state_->plan();
  const ScalarLayout at(plan);
  bool nonfinite = false;
  for (size_t t = 0; t < plan.trained.size(); ++t) {
    nonfinite |= facts->scalars[at.nonfinite + static_cast<int64_t>(t)] != 0;
    facts->out_of_range |= facts->scalars[at.out_of_range + static_cast<int64_t>(t)] != 0;
  }
  const auto weight = static_cast<double>(facts->scalars[at.weight]);
  // Weight 0 (a model's fault, or words changed on the way): judged by the table like the rest.
  if (nonfinite || facts->out_of_range || weight <= 0) return absl::OkStatus();
  Communicator& lane = comm.OnDevice();
  Ticket last = 0;
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    ConvertSlice(b, weight);
    lane.After(stream().Record());
    std::vector<int64_t> bytes(borders_[b]);
    for (int64_t& border : bytes) border *= 4;
    last = lane.AllGather(std::as_writable_bytes(std::span<float>(gradient() + bucket.begin,
                                                                  bucket.end - bucket.begin)),
                          bytes, {step, attempt, kGatherBucket + static_cast<int32_t>(b)});
  }
  HF_RETURN_IF_ERROR(lane.Wait(last, Deadline::After(stall_ms())));
  facts->gathered = true;
  return absl::OkStatus();
}

absl::Status StepEngine::FillRow(const StepFacts& facts, ControlRow* row) {
  row->flags |= kRowStep;
  if (facts.out_of_range) row->flags |= kRowOutOfRange;
  row->scalars_digest = Mix64(WordsHash(facts.scalars) ^ cursor_digest_);
  row->contributed = contributed_;
  row->reduced = reduced_sum_;
  row->compute_us = static_cast<uint32_t>(std::min<int64_t>(facts.compute_us, UINT32_MAX));
  for (const MicroBatchResult& r : accumulator_->results()) {
    ++row->work_count;
    row->work_hash += LedgerHash(config_.seed, row->step, r.index);
    row->samples_hash += r.samples;
    if (!r.nonfinite) continue;
    ++row->nonfinite_count;
    row->nonfinite_hash += Mix64(r.bits ^ Mix64(static_cast<uint64_t>(r.index)));
    if (row->nonfinite_first < 0) row->nonfinite_first = r.index;
  }
  if (!facts.gathered || world_size_ == 1) return absl::OkStatus();
  kernels::Digest(stream(), gradient(), state_->plan().flat_elements, 0, 0, words_.as<uint64_t>());
  HF_ASSIGN_OR_RETURN(const auto words, ReadWords(1));
  row->gradient_digest = words[0];
  return absl::OkStatus();
}

absl::Status StepEngine::Attempt(Communicator& comm, const std::vector<int32_t>& mine, int64_t step,
                                 int attempt, ControlRow row, std::vector<ControlRow>* rows,
                                 StepFacts* facts) {
  HF_RETURN_IF_ERROR(ComputeAndReduce(comm, mine, step + 1, attempt, facts));
  // The parameters as used: digested after the last backward pass.
  HF_ASSIGN_OR_RETURN(row.parameter_digest, state_->ParametersDigest());
  if (row.parameter_digest != state_->recorded_parameters()) row.flags |= kRowSelfBad;
  HF_RETURN_IF_ERROR(SumReduced(*facts));
  HF_RETURN_IF_ERROR(GatherGradient(comm, step + 1, attempt, facts));
  HF_RETURN_IF_ERROR(FillRow(*facts, &row));
  return Table(comm, row, {step + 1, attempt, kTableBucket}, rows);
}

absl::Status StepEngine::Round(Communicator& comm, ControlRow row, std::vector<ControlRow>* rows) {
  row.parameter_digest = state_->recorded_parameters();
  return Table(comm, row, {row.step, row.attempt, kTableBucket}, rows);
}

absl::Status StepEngine::Table(Communicator& comm, const ControlRow& row, OpTag tag,
                               std::vector<ControlRow>* rows) {
  rows->assign(world_size_, ControlRow());
  (*rows)[rank_] = row;
  std::vector<int64_t> borders(world_size_ + 1);
  for (int r = 0; r <= world_size_; ++r) borders[r] = r * static_cast<int64_t>(sizeof(ControlRow));
  return comm.Wait(
      comm.AllGather(std::as_writable_bytes(std::span<ControlRow>(*rows)), borders, tag),
      Deadline::After(stall_ms()));
}

}  // namespace holdfast
