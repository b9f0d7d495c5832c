// StepEngine, second half: what a verdict does to the state.
#include <algorithm>
#include <cmath>

#include "kernels/ops.h"
#include "runtime/base/failpoint.h"
#include "runtime/base/status.h"
#include "runtime/session/step_engine.h"

namespace holdfast {

StepResult StepEngine::Begin(const StepFacts& facts) const {
  const StatePlan& plan = state_->plan();
  const ScalarLayout at(plan);
  StepResult r;
  r.step = state_->scalars.step + 1;
  r.weight = facts.scalars[at.weight];
  const double weight = static_cast<double>(std::max<int64_t>(1, r.weight));
  auto mean = [&](int64_t fixed) {
    return std::ldexp(static_cast<double>(fixed), plan.loss_shift - kLossExponent) / weight;
  };
  r.loss = mean(facts.scalars[at.loss]);
  for (size_t i = 0; i < plan.spec.metrics.size(); ++i) {
    r.metrics.push_back(mean(facts.scalars[at.metrics + static_cast<int64_t>(i)]));
  }
  r.learning_rate = schedules_.LearningRate(r.step);
  return r;
}

absl::StatusOr<double> StepEngine::GradientNorm() {
  kernels::SquaredNormChunks(stream(), state_->plan().flat_elements, gradient(),
                             norm_chunks_.as<double>());
  state_->device().Copy(stream(), host_norm_chunks_.data(), norm_chunks_.data(),
                        norm_chunks_.bytes());
  HF_RETURN_IF_ERROR(state_->Settle());
  double sum = 0;
  const int64_t count = kernels::SquaredNormCount(state_->plan().flat_elements);
  for (int64_t i = 0; i < count; ++i) sum += host_norm_chunks_.as<const double>()[i];
  return std::sqrt(sum);
}

absl::Status StepEngine::UpdateByOwnRule(const TrainedTensor& t, double rate, double decay,
                                         double clip_factor) {
  kernels::ScaleFloat(stream(), t.elements, static_cast<float>(clip_factor), gradient() + t.offset);
  std::vector<std::span<float>> slots;
  for (int s = 0; s < t.slots; ++s) slots.emplace_back(state_->slot(s) + t.offset, t.elements);
  return optimizers_[t.optimizer]->Update(
      state_->plan().spec.optimizers[t.optimizer], state_->scalars.updates + 1, rate, decay,
      std::span<float>(state_->values() + t.offset, t.elements),
      std::span<const float>(gradient() + t.offset, t.elements), slots);
}

void StepEngine::Update(double learning_rate, double clip_factor, absl::Status* status) {
  const StatePlan& plan = state_->plan();
  const int64_t update = state_->scalars.updates + 1;
  for (const TrainedTensor& t : plan.trained) {
    const OptimizerSpec& o = plan.spec.optimizers[t.optimizer];
    const double rate = learning_rate * o.lr_scale;
    const double decay = o.decay ? config_.weight_decay : 0;
    const float* from = gradient() + t.offset;
    float* value = state_->values() + t.offset;
    if (o.rule == "adamw") {
      kernels::AdamWOptions options{rate,
                                    config_.beta1,
                                    config_.beta2,
                                    config_.epsilon,
                                    decay,
                                    update,
                                    static_cast<float>(clip_factor)};
      kernels::AdamW(stream(), options, t.elements, from, value, state_->slot(0) + t.offset,
                     state_->slot(1) + t.offset);
    } else if (o.rule == "sgd") {
      kernels::Sgd(stream(), {rate, decay, static_cast<float>(clip_factor)}, t.elements, from,
                   value);
    } else {
      *status = UpdateByOwnRule(t, rate, decay, clip_factor);
      if (!status->ok()) return;
    }
  }
}

absl::Status StepEngine::UpdateBuffers(const StepFacts& facts) {
  const StatePlan& plan = state_->plan();
  if (plan.spec.statistics.empty()) return absl::OkStatus();
  const ScalarLayout at(plan);
  std::vector<float> values(plan.statistic_offset.back());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(
        std::ldexp(static_cast<double>(facts.scalars[at.statistics + static_cast<int64_t>(i)]),
                   -kStatisticExponent));
  }
  std::vector<Tensor> sums, buffers;
  for (size_t i = 0; i < plan.spec.statistics.size(); ++i) {
    Tensor t;
    t.data = values.data() + plan.statistic_offset[i];
    t.shape = plan.spec.statistics[i].shape;
    sums.push_back(t);
  }
  // The model sees them in host memory.
  std::vector<float> host(std::max<int64_t>(1, plan.other_elements));
  HF_RETURN_IF_ERROR(state_->Read(state_->others(), std::span(host).first(plan.other_elements)));
  for (const OtherTensor& o : plan.others) {
    if (!o.buffer) continue;
    Tensor t;
    t.data = host.data() + o.offset;
    t.shape = plan.spec.tensors[o.spec].shape;
    buffers.push_back(t);
  }
  HF_RETURN_IF_ERROR(buffer_model_->UpdateBuffers(sums, facts.scalars[at.weight], buffers));
  for (const OtherTensor& o : plan.others) {
    if (!o.buffer) continue;
    HF_RETURN_IF_ERROR(state_->Write(state_->others() + o.offset,
                                     std::span<const float>(host.data() + o.offset, o.elements)));
  }
  return absl::OkStatus();
}

void StepEngine::UpdateExponents(const StepFacts& facts) {
  const ScalarLayout at(state_->plan());
  StateScalars& s = state_->scalars;
  for (size_t t = 0; t < exponents_.size(); ++t) {
    s.exponent[t] = exponents_[t];
    const bool loud = facts.scalars[at.loud + static_cast<int64_t>(t)] != 0;
    s.quiet[t] =
        loud || s.exponent[t] >= kFirstExponent ? 0 : static_cast<uint16_t>(s.quiet[t] + 1);
    if (s.quiet[t] >= kQuietSteps) {
      s.exponent[t] += kExponentStep;
      s.quiet[t] = 0;
    }
  }
}

absl::Status StepEngine::FinishState() {
  ++state_->scalars.step;
  if (!next_cursors_.empty()) state_->scalars.cursors = next_cursors_;
  HF_RETURN_IF_ERROR(state_->Redigest());
  state_->marked = false;
  Failpoint("step.after_apply", state_->scalars.step);
  ResetSums();
  return absl::OkStatus();
}

absl::StatusOr<StepResult> StepEngine::Apply(const StepFacts& facts) {
  time_->Switch(TimeKind::kCompute);
  StepResult result = Begin(facts);
  if (!facts.gathered) {
    return absl::InvalidArgumentError(
        Cat("step ", result.step, ": no micro-batch counted any item (weight 0)"));
  }
  Failpoint("step.before_apply", result.step);
  HF_ASSIGN_OR_RETURN(result.gradient_norm, GradientNorm());
  // Only fp32 sums get here with it: the same gradient, hence the same decision, on all ranks.
  if (!std::isfinite(result.gradient_norm)) return Skip(facts);
  // As torch.nn.utils.clip_grad_norm_ defines it.
  const double clip =
      config_.clip > 0 ? std::min(1.0, config_.clip / (result.gradient_norm + 1e-6)) : 1.0;
  state_->marked = true;
  absl::Status status;
  Update(result.learning_rate, clip, &status);
  HF_RETURN_IF_ERROR(Annotate(status, "optimizer"));
  HF_RETURN_IF_ERROR(Annotate(UpdateBuffers(facts), "UpdateBuffers"));
  ++state_->scalars.updates;
  state_->scalars.skipped_in_a_row = 0;
  UpdateExponents(facts);
  state_->scalars.Grow();
  HF_RETURN_IF_ERROR(FinishState());
  return result;
}

absl::StatusOr<StepResult> StepEngine::Skip(const StepFacts& facts) {
  time_->Switch(TimeKind::kCompute);
  StepResult result = Begin(facts);
  result.skipped = true;
  state_->marked = true;
  ++state_->scalars.skipped;
  ++state_->scalars.skipped_in_a_row;
  state_->scalars.Shrink();
  HF_RETURN_IF_ERROR(FinishState());
  return result;
}

}  // namespace holdfast
