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
  std::vector<uint64_t> data, gradients;  // per field; per tensor of the spec
  uint64_t loss = 0, metrics = 0, statistics = 0;
};

// Passes everything on and notes the bits of each part.
class WatchingPass final : public Pass {
 public:
  WatchingPass(RuntimePass* inner, Prints* prints) : inner_(inner), prints_(prints) {}
  kernels::Stream& stream() override { return inner_->stream(); }
  const Tensor& Value(int tensor) const override { return inner_->Value(tensor); }
  Tensor Gradient(int tensor) override { return inner_->Gradient(tensor); }
  void Done(int tensor) override {
    prints_->gradients[static_cast<size_t>(tensor)] = HashOf(inner_->Gradient(tensor)) | 1;
    inner_->Done(tensor);
  }
  float scale() const override { return inner_->scale(); }
  void Loss(const Tensor& terms, int64_t weight) override {
    prints_->loss = Mix64(HashOf(terms) ^ static_cast<uint64_t>(weight));
    inner_->Loss(terms, weight);
  }
  void Metric(int metric, const Tensor& terms) override {
    prints_->metrics += Mix64(HashOf(terms) ^ static_cast<uint64_t>(metric));
    inner_->Metric(metric, terms);
  }
  void Statistic(int statistic, const Tensor& value) override {
    prints_->statistics += Mix64(HashOf(value) ^ static_cast<uint64_t>(statistic));
    inner_->Statistic(statistic, value);
  }
  Tensor Workspace(int64_t bytes) override { return inner_->Workspace(bytes); }
  Random& random() override { return inner_->random(); }
  bool cancelled() const override { return inner_->cancelled(); }

 private:
  RuntimePass* inner_;
  Prints* prints_;
};

// A model with its pass: used by one thread.
class Unit {
 public:
  static absl::StatusOr<std::unique_ptr<Unit>> Create(const Config& config, const Trainer& trainer,
                                                      DataSource* data, State* state) {
    auto unit = std::make_unique<Unit>();
    unit->seed_ = config.seed;
    unit->data_ = data;
    unit->tensors_ = state->plan().spec.tensors.size();
    HF_ASSIGN_OR_RETURN(unit->model_, trainer.model(config.ToToml()));
    HF_RETURN_IF_ERROR(unit->model_->Describe().status());
    HF_RETURN_IF_ERROR(unit->model_->Prepare(DeviceKind::kCpu));
    HF_ASSIGN_OR_RETURN(unit->pass_, RuntimePass::Create(state, &unit->cancelled_));
    return unit;
  }

  absl::StatusOr<Prints> Run() try {
    kernels::SetComputeThread();
    Prints prints;
    prints.gradients.assign(tensors_, 0);
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
    WatchingPass watching(pass_.get(), &prints);
    HF_RETURN_IF_ERROR(model_->ForwardBackward(watching, batch));
    HF_RETURN_IF_ERROR(pass_->Finish().status());
    return prints;
  } catch (const std::exception& e) {
    return absl::InternalError(Cat("model or data: exception: ", e.what()));
  }

 private:
  uint64_t seed_ = 0;
  DataSource* data_ = nullptr;
  size_t tensors_ = 0;
  std::unique_ptr<Model> model_;
  std::unique_ptr<RuntimePass> pass_;
  std::atomic<bool> cancelled_{false};
};

std::string FirstDifference(const Prints& a, const Prints& b, const ModelSpec& spec) {
  if (a.data != b.data) return "the data source's micro-batch 0";
  if (a.loss != b.loss) return "the loss";
  for (size_t t = 0; t < spec.tensors.size(); ++t) {
    if (a.gradients[t] != b.gradients[t]) return Cat("the gradient of ", spec.tensors[t].name);
  }
  if (a.metrics != b.metrics) return "a metric";
  if (a.statistics != b.statistics) return "a statistic";
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
  const ModelSpec& spec = state->plan().spec;
  Repeatability result;
  result.again = FirstDifference(first, again, spec);
  result.threads = FirstDifference(first, *left, spec);
  if (result.threads.empty()) result.threads = FirstDifference(first, *right, spec);
  return result;
}

}  // namespace holdfast
