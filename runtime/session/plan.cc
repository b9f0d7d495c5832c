#include "runtime/session/plan.h"

#include <algorithm>
#include <set>

#include "runtime/base/status.h"

namespace holdfast {
namespace {

constexpr int64_t kAlign = 16;

int64_t AlignUp(int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

absl::Status Bad(const std::string& name, const std::string& why) {
  return absl::InvalidArgumentError(Cat("model: tensor '", name, "': ", why));
}

absl::StatusOr<int64_t> Elements(const TensorSpec& tensor) {
  int64_t n = 1;
  for (const int64_t d : tensor.shape) {
    if (d <= 0) return Bad(tensor.name, "every dimension must be positive");
    if (n > (int64_t{1} << 40) / d) return Bad(tensor.name, "more than 2^40 elements");
    n *= d;
  }
  return n;
}

absl::Status AddTrained(StatePlan& plan, int spec, int64_t elements,
                        const std::function<int(const std::string&)>& slots_of) {
  const TensorSpec& tensor = plan.spec.tensors[spec];
  const auto& groups = plan.spec.optimizers;
  const auto group = std::find_if(groups.begin(), groups.end(),
                                  [&](const OptimizerSpec& o) { return o.group == tensor.group; });
  if (group == groups.end())
    return Bad(tensor.name, Cat("no optimizer group '", tensor.group, "'"));
  TrainedTensor t;
  t.spec = spec;
  t.offset = plan.flat_elements;
  t.elements = elements;
  t.optimizer = static_cast<int>(group - groups.begin());
  t.slots = slots_of(group->rule);
  if (t.slots < 0 || t.slots > 2) {
    return Bad(tensor.name,
               Cat("unknown optimizer rule '", group->rule, "' (built in: adamw, sgd)"));
  }
  plan.max_slots = std::max(plan.max_slots, t.slots);
  plan.flat_elements += AlignUp(elements);
  plan.trained_of[spec] = static_cast<int>(plan.trained.size());
  plan.trained.push_back(t);
  return absl::OkStatus();
}

void CutBuckets(StatePlan& plan) {
  for (size_t i = 0; i < plan.trained.size(); ++i) {
    TrainedTensor& t = plan.trained[i];
    const int64_t end = t.offset + AlignUp(t.elements);
    if (plan.buckets.empty() || end - plan.buckets.back().begin > kBucketElements) {
      plan.buckets.push_back({t.offset, end, static_cast<int>(i), static_cast<int>(i) + 1});
    } else {
      plan.buckets.back().end = end;
      plan.buckets.back().last_tensor = static_cast<int>(i) + 1;
    }
    t.bucket = static_cast<int>(plan.buckets.size()) - 1;
  }
}

}  // namespace

std::vector<storage::Region> StatePlan::Regions() const {
  std::vector<storage::Region> regions;
  for (const TrainedTensor& t : trained) {
    const std::string& name = spec.tensors[t.spec].name;
    regions.push_back({name + "/value", t.elements});
    for (int s = 0; s < t.slots; ++s) regions.push_back({Cat(name, "/slot", s), t.elements});
  }
  for (const OtherTensor& t : others) {
    regions.push_back({spec.tensors[t.spec].name + "/value", t.elements});
  }
  return regions;
}

absl::StatusOr<StatePlan> MakePlan(const ModelSpec& spec,
                                   const std::function<int(const std::string&)>& slots_of) {
  StatePlan plan;
  plan.spec = spec;
  plan.trained_of.assign(spec.tensors.size(), -1);
  plan.other_of.assign(spec.tensors.size(), -1);
  std::set<std::string> names;
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const TensorSpec& tensor = spec.tensors[i];
    if (tensor.name.empty() || !names.insert(tensor.name).second) {
      return Bad(tensor.name, "names must be unique and not empty");
    }
    HF_ASSIGN_OR_RETURN(const int64_t elements, Elements(tensor));
    if (tensor.role == Role::kTrained) {
      HF_RETURN_IF_ERROR(AddTrained(plan, static_cast<int>(i), elements, slots_of));
    } else {
      plan.other_of[i] = static_cast<int>(plan.others.size());
      plan.others.push_back(
          {static_cast<int>(i), plan.other_elements, elements, tensor.role == Role::kBuffer});
      plan.other_elements += AlignUp(elements);
    }
  }
  if (plan.trained.empty()) return absl::InvalidArgumentError("model: no tensor is trained");
  if (spec.max_weight < 1)
    return absl::InvalidArgumentError("model: max_weight must be at least 1");
  while ((int64_t{1} << plan.loss_shift) < spec.max_weight) ++plan.loss_shift;
  plan.statistic_offset.push_back(0);
  for (const TensorSpec& s : spec.statistics) {
    HF_ASSIGN_OR_RETURN(const int64_t elements, Elements(s));
    plan.statistic_offset.push_back(plan.statistic_offset.back() + elements);
  }
  CutBuckets(plan);
  return plan;
}

int SlotsOfRule(const Trainer& trainer, const std::string& rule) {
  if (rule == "adamw") return 2;
  if (rule == "sgd") return 0;
  const auto own = trainer.optimizer ? trainer.optimizer(rule) : nullptr;
  return own == nullptr ? -1 : own->slots();
}

}  // namespace holdfast
