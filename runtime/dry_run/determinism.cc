#include "runtime/dry_run/determinism.h"

#include <atomic>
#include <thread>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "runtime/base/digest.h"
#include "runtime/base/status.h"
#include "runtime/session/runtime_pass.h"

namespace holdfast {
namespace {

uint64_t HashOf(const Tensor& t) {
  return Hash64(
      {static_cast<const char*>(t.data), static_cast<size_t>(t.elements() * TypeBytes(t.type))});
}

// What one computation of the micro-batch came to, part by part.
struct Prints {
  std::vector<uint64_t> data, gradients;  // per field; per trained tensor
  MicroBatchResult sums;
};

// A model with its pass: used by one thread.
class Unit {
 public:
  static absl::StatusOr<std::unique_ptr<Unit>> Create(const Config& config, const Trainer& trainer,
                                                      DataSource* data, State* state) {
    auto unit = std::make_unique<Unit>();
    unit->seed_ = config.seed;
    unit->data_ = data;
    unit->device_ = &state->device();
    const bool cpu = unit->device_->backend() == kernels::Backend::kCpu;
    HF_ASSIGN_OR_RETURN(unit->model_, trainer.model(config.ToToml()));
    HF_RETURN_IF_ERROR(unit->model_->Describe().status());
    HF_RETURN_IF_ERROR(unit->model_->Prepare(cpu ? DeviceKind::kCpu : DeviceKind::kCuda));
    HF_ASSIGN_OR_RETURN(unit->pass_, RuntimePass::Create(state, &unit->cancelled_));
    return unit;
  }

  absl::StatusOr<Prints> Run() try {
    HF_RETURN_IF_ERROR(device_->BindThread());
    Prints prints;
    Batch data;
    std::string next;
    if (data_->streaming()) {
      HF_ASSIGN_OR_RETURN(data, data_->Next(0, "", &next));
    } else {
      HF_ASSIGN_OR_RETURN(data, data_->Read(seed_, 0, 0));
    }
    for (const Tensor& field : data.fields) prints.data.push_back(HashOf(field));
    const MicroBatch batch{0, 0, true, data.fields};
    pass_->Begin(nullptr, seed_, batch);
    HF_RETURN_IF_ERROR(model_->ForwardBackward(*pass_, batch));
    HF_ASSIGN_OR_RETURN(prints.sums, pass_->Finish());
    const auto digests = pass_->gradient_digests();
    prints.gradients.assign(digests.begin(), digests.end());
    return prints;
  } catch (const RuntimePass::OutOfMemory& e) {
    return e.status;
  } catch (const std::exception& e) {
    return absl::InternalError(Cat("model or data: exception: ", e.what()));
  }

 private:
  uint64_t seed_ = 0;
  DataSource* data_ = nullptr;
  kernels::Device* device_ = nullptr;
  std::unique_ptr<Model> model_;
  std::unique_ptr<RuntimePass> pass_;
  std::atomic<bool> cancelled_{false};
};

std::string FirstDifference(const Prints& a, const Prints& b, const StatePlan& plan) {
  if (a.data != b.data) return "the data source's micro-batch 0";
  if (a.sums.loss != b.sums.loss || a.sums.weight != b.sums.weight) return "the loss";
  for (size_t t = 0; t < plan.trained.size(); ++t) {
    if (a.gradients[t] != b.gradients[t])
      return Cat("the gradient of ", plan.spec.tensors[plan.trained[t].spec].name);
  }
  if (a.sums.metrics != b.sums.metrics) return "a metric";
  if (a.sums.statistics != b.sums.statistics) return "a statistic";
  return "";
}

}  // namespace

absl::StatusOr<Repeatability> CheckRepeatability(const Config& config, const Trainer& trainer,
                                                 DataSource* data, State* state) {
  HF_ASSIGN_OR_RETURN(const auto one, Unit::Create(config, trainer, data, state));
  HF_ASSIGN_OR_RETURN(const auto two, Unit::Create(config, trainer, data, state));
  HF_ASSIGN_OR_RETURN(const Prints first, one->Run());
  HF_ASSIGN_OR_RETURN(const Prints again, one->Run());
  absl::StatusOr<Prints> left = absl::UnknownError(""), right = absl::UnknownError("");
  std::thread other([&] { right = two->Run(); });
  left = one->Run();
  other.join();
  HF_RETURN_IF_ERROR(left.status());
  HF_RETURN_IF_ERROR(right.status());
  const StatePlan& plan = state->plan();
  Repeatability result;
  result.again = FirstDifference(first, again, plan);
  result.threads = FirstDifference(first, *left, plan);
  if (result.threads.empty()) result.threads = FirstDifference(first, *right, plan);
  return result;
}

}  // namespace holdfast
