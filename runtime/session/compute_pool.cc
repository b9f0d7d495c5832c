#include "runtime/session/compute_pool.h"

#include <algorithm>
#include <cassert>
#include <chrono>

#include "runtime/base/clock.h"
#include "runtime/base/digest.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {

uint64_t ContentHash(const Batch& batch) {
  uint64_t hash = 0;
  for (const Tensor& t : batch.fields) {
    const size_t bytes = static_cast<size_t>(t.elements() * TypeBytes(t.type));
    hash = Hash64(std::string_view(static_cast<const char*>(t.data), bytes), hash);
  }
  return hash;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ComputePool>> ComputePool::Create(const Options& options,
                                                                 const Trainer& trainer,
                                                                 DataSource* data, State* state) {
  std::unique_ptr<ComputePool> pool(new ComputePool());
  pool->options_ = options;
  pool->data_ = data;
  pool->state_ = state;
  const bool cpu = state->device().backend() == kernels::Backend::kCpu;
  for (int i = 0; i < options.threads; ++i) {
    auto worker = std::make_unique<Worker>();
    HF_ASSIGN_OR_RETURN(worker->model, trainer.model(options.toml));
    HF_RETURN_IF_ERROR(worker->model->Describe().status());
    HF_RETURN_IF_ERROR(worker->model->Prepare(cpu ? DeviceKind::kCpu : DeviceKind::kCuda));
    HF_ASSIGN_OR_RETURN(worker->pass, RuntimePass::Create(state, &pool->cancelled_));
    pool->workers_.push_back(std::move(worker));
  }
  for (auto& worker : pool->workers_) {
    Worker* w = worker.get();
    w->thread = std::thread([p = pool.get(), w] { p->Loop(*w); });
  }
  return pool;
}

ComputePool::~ComputePool() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
    cancelled_.store(true);
  }
  posted_.notify_all();
  for (auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();  // not, when Create failed half-way
  }
}

void ComputePool::Post(Job job, std::vector<int64_t> items) {
  std::lock_guard lock(mutex_);
  assert(running_ == 0 && next_ >= items_.size() && "the former job must be over");
  cancelled_.store(false);
  status_ = absl::OkStatus();
  stop_ = false;
  job_ = job;
  items_ = std::move(items);
  next_ = 0;
  posted_.notify_all();
}

void ComputePool::Start(std::vector<int32_t> micro_batches, int64_t step,
                        Accumulator* accumulator) {
  {
    std::lock_guard lock(mutex_);
    step_ = step;
    accumulator_ = accumulator;
  }
  Post(Job::kTrain, std::vector<int64_t>(micro_batches.begin(), micro_batches.end()));
}

void ComputePool::StartEval(int64_t first, int64_t stride, int64_t count) {
  std::vector<int64_t> items;
  for (int64_t i = first; i < count; i += stride) items.push_back(i);
  {
    std::lock_guard lock(mutex_);
    eval_ = EvalSums();
    eval_.metrics.assign(state_->plan().spec.metrics.size(), 0);
  }
  Post(Job::kEval, std::move(items));
}

absl::StatusOr<uint64_t> ComputePool::Probe() {
  Post(Job::kProbe, {0});
  while (!Finished(1000)) {
  }
  HF_RETURN_IF_ERROR(status());
  std::lock_guard lock(mutex_);
  return probe_;
}

void ComputePool::StopAfterCurrent() {
  std::lock_guard lock(mutex_);
  stop_ = true;
  next_ = items_.size();
  if (running_ == 0) finished_.notify_all();
}

void ComputePool::Cancel() {
  StopAfterCurrent();
  cancelled_.store(true);
}

bool ComputePool::Finished(int64_t wait_ms) {
  std::unique_lock lock(mutex_);
  return finished_.wait_for(lock, std::chrono::milliseconds(wait_ms),
                            [&] { return running_ == 0 && next_ >= items_.size(); });
}

absl::Status ComputePool::status() {
  std::lock_guard lock(mutex_);
  return status_;
}

EvalSums ComputePool::eval_sums() {
  std::lock_guard lock(mutex_);
  return eval_;
}

void ComputePool::Loop(Worker& worker) {
  const absl::Status bound = state_->device().BindThread();
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [&] { return quit_ || next_ < items_.size(); });
    if (quit_) return;
    const int64_t item = items_[next_++];
    const Job job = job_;
    ++running_;
    lock.unlock();
    const absl::Status status = bound.ok() ? RunOne(worker, job, item) : bound;
    if (!status.ok()) worker.pass->Drain();
    lock.lock();
    --running_;
    if (!status.ok()) {
      if (status_.ok()) status_ = status;
      next_ = items_.size();
      if (job == Job::kTrain) accumulator_->MarkDirty();
    }
    if (running_ == 0 && next_ >= items_.size()) finished_.notify_all();
  }
}

// Here a user's code is called: its exceptions end here.
absl::Status ComputePool::RunOne(Worker& worker, Job job, int64_t index) try {
  switch (job) {
    case Job::kTrain:
      return TrainOne(worker, index);
    case Job::kEval:
      return EvalOne(worker, index);
    case Job::kProbe:
      return ProbeOne(worker);
    case Job::kNone:
      break;
  }
  return absl::InternalError("no job");
} catch (const RuntimePass::OutOfMemory& e) {
  return e.status;
} catch (const std::exception& e) {
  return absl::InternalError(Cat("model or data: exception: ", e.what()));
}

// One micro-batch from its beginning until the device has done it.
absl::StatusOr<MicroBatchResult> ComputePool::Compute(Worker& worker, Accumulator* accumulator,
                                                      const MicroBatch& batch) {
  worker.pass->Begin(accumulator, options_.seed, batch);
  HF_RETURN_IF_ERROR(batch.training ? worker.model->ForwardBackward(*worker.pass, batch)
                                    : worker.model->Evaluate(*worker.pass, batch));
  return worker.pass->Finish();
}

absl::Status ComputePool::TrainOne(Worker& worker, int64_t index) {
  const int64_t step = step_;
  Batch data;
  std::string next_cursor;
  if (data_->streaming()) {
    HF_ASSIGN_OR_RETURN(data, data_->Next(index, state_->scalars.cursors[index], &next_cursor));
    if (next_cursor.size() > 255) {
      return absl::InvalidArgumentError(Cat("data: the cursor of stream ", index, " has ",
                                            next_cursor.size(), " bytes; at most 255 are kept"));
    }
  } else {
    HF_ASSIGN_OR_RETURN(data, data_->Read(options_.seed, step - 1, index));
  }
  MicroBatch batch{step - 1, index, true, data.fields};
  HF_ASSIGN_OR_RETURN(MicroBatchResult result, Compute(worker, accumulator_, batch));
  if (!result.loss_set)
    return absl::InternalError("model: ForwardBackward did not call Pass::Loss");
  result.samples = Mix64(ContentHash(data) ^ Mix64(static_cast<uint64_t>(index)));
  result.next_cursor = std::move(next_cursor);
  last_end_us_.store(BootUs(), std::memory_order_relaxed);
  accumulator_->Finish(std::move(result), worker.pass->added());
  return absl::OkStatus();
}

absl::Status ComputePool::EvalOne(Worker& worker, int64_t index) {
  HF_ASSIGN_OR_RETURN(const Batch data, data_->ReadEval(index));
  MicroBatch batch{-1, index, false, data.fields};
  HF_ASSIGN_OR_RETURN(const MicroBatchResult result, Compute(worker, nullptr, batch));
  std::lock_guard lock(mutex_);
  eval_.loss += result.loss;
  eval_.weight += result.weight;
  eval_.nonfinite += result.nonfinite ? 1 : 0;
  for (size_t i = 0; i < result.metrics.size(); ++i) eval_.metrics[i] += result.metrics[i];
  return absl::OkStatus();
}

absl::Status ComputePool::ProbeOne(Worker& worker) {
  Batch data;
  std::string next_cursor;
  if (data_->streaming()) {
    HF_ASSIGN_OR_RETURN(data, data_->Next(0, "", &next_cursor));
  } else {
    HF_ASSIGN_OR_RETURN(data, data_->Read(options_.seed, 0, 0));
  }
  MicroBatch batch{0, 0, true, data.fields};
  HF_ASSIGN_OR_RETURN(const MicroBatchResult result, Compute(worker, nullptr, batch));
  const uint64_t gradients = worker.pass->gradient_digest();
  std::lock_guard lock(mutex_);
  probe_ = Mix64(gradients ^ Mix64(static_cast<uint64_t>(result.loss)));
  return absl::OkStatus();
}

}  // namespace holdfast
