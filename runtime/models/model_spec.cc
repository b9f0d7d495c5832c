#include "runtime/models/model_spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

#include "kernels/ops.h"
#include "runtime/base/digest.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {

enum class InitKind : uint8_t { kConstant, kNormal, kUniform };

struct Init {
  InitKind kind = InitKind::kConstant;
  float value = 0;  // the constant, the deviation, or the bound
};

absl::StatusOr<Init> ParseInit(const TensorSpec& spec) {
  const std::string_view text = spec.init;
  if (text == "zeros") return Init{InitKind::kConstant, 0};
  if (text == "ones") return Init{InitKind::kConstant, 1};
  Init init;
  std::string_view number;
  if (text.starts_with("normal:")) {
    init.kind = InitKind::kNormal;
    number = text.substr(7);
  } else if (text.starts_with("uniform:")) {
    init.kind = InitKind::kUniform;
    number = text.substr(8);
  }
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (number.empty() || error != std::errc() || end != number.data() + number.size() ||
      !std::isfinite(value) || value < 0) {
    return absl::InvalidArgumentError(
        Cat("tensor ", spec.name, ": init '", spec.init,
            "' is not one of zeros, ones, normal:DEVIATION, uniform:BOUND"));
  }
  init.value = static_cast<float>(value);
  return init;
}

absl::Status ValidateTensor(const TensorSpec& spec, std::set<std::string>* names) {
  if (spec.name.empty()) return absl::InvalidArgumentError("a tensor without a name");
  if (!names->insert(spec.name).second) {
    return absl::InvalidArgumentError(Cat("tensor ", spec.name, " is declared twice"));
  }
  int64_t elements = 1;
  for (const int64_t d : spec.shape) {
    if (d < 1 || elements > (int64_t{1} << 48) / d) {
      return absl::InvalidArgumentError(
          Cat("tensor ", spec.name,
              ": the sizes of its shape must be positive and their product below 2^48"));
    }
    elements *= d;
  }
  return ParseInit(spec).status();
}

}  // namespace

int64_t TypeBytes(Type type) {
  switch (type) {
    case Type::kF32:
    case Type::kI32:
      return 4;
    case Type::kBf16:
    case Type::kF16:
    case Type::kU16:
      return 2;
    case Type::kI64:
      return 8;
    case Type::kU8:
      return 1;
  }
  return 0;
}

int64_t ElementsOf(const TensorSpec& spec) {
  int64_t n = 1;
  for (const int64_t d : spec.shape) n *= d;
  return n;
}

absl::Status ValidateModelSpec(const ModelSpec& spec) {
  std::set<std::string> groups, names, statistics, metrics;
  for (const OptimizerSpec& optimizer : spec.optimizers) {
    if (!groups.insert(optimizer.group).second) {
      return absl::InvalidArgumentError(
          Cat("optimizer group ", optimizer.group, " is declared twice"));
    }
  }
  bool trained = false;
  for (const TensorSpec& tensor : spec.tensors) {
    HF_RETURN_IF_ERROR(ValidateTensor(tensor, &names));
    if (tensor.role != Role::kTrained) continue;
    trained = true;
    if (groups.contains(tensor.group)) continue;
    return absl::InvalidArgumentError(
        Cat("tensor ", tensor.name, ": no optimizer group is named ", tensor.group));
  }
  if (!trained) return absl::InvalidArgumentError("the model has no trained tensor");
  for (const TensorSpec& tensor : spec.statistics) {
    HF_RETURN_IF_ERROR(Annotate(ValidateTensor(tensor, &statistics), "statistics"));
  }
  for (const std::string& metric : spec.metrics) {
    if (!metric.empty() && metrics.insert(metric).second) continue;
    return absl::InvalidArgumentError(
        Cat("metric '", metric, "' has no name or is declared twice"));
  }
  if (spec.max_weight < 1) return absl::InvalidArgumentError("max_weight must be at least 1");
  return absl::OkStatus();
}

absl::Status InitializeTensor(kernels::Stream& stream, const TensorSpec& spec, uint64_t seed,
                              int64_t first, int64_t count, float* out) {
  HF_ASSIGN_OR_RETURN(const Init init, ParseInit(spec));
  const kernels::RandomOptions random{.key = Mix64(Mix64(seed) ^ Hash64(spec.name)),
                                      .first = static_cast<uint64_t>(first)};
  switch (init.kind) {
    case InitKind::kConstant:
      kernels::Fill(stream, count, init.value, out);
      break;
    case InitKind::kNormal:
      kernels::RandomNormal(stream, random, 0.0f, init.value, count, out);
      break;
    case InitKind::kUniform:
      kernels::RandomUniform(stream, random, -init.value, init.value, count, out);
      break;
  }
  return absl::OkStatus();
}

std::string NormalInit(double deviation) {
  std::array<char, 40> digits{};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), deviation);
  return "normal:" + std::string(digits.data(), error == std::errc() ? end : digits.data());
}

}  // namespace holdfast
