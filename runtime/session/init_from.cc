#include "runtime/session/init_from.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/models/safetensors.h"

namespace holdfast {
namespace {

constexpr std::string_view kPrefix = "transformer.", kHead = "lm_head.weight",
                           kTable = "wte.weight";
constexpr int64_t kPieceElements = 1 << 20;
constexpr size_t kNamed = 12;  // complaints that a message lists

bool Ignored(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

std::string WithoutPrefix(std::string_view name) {
  return std::string(name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name);
}

// The head must be the table that it is tied to: one that was trained apart would be lost.
absl::Status CheckTied(const SafetensorsFile& file, const FileTensor& head,
                       const FileTensor& table) {
  bool same = head.shape == table.shape;
  std::vector<float> a, b;
  for (int64_t first = 0; same && first < head.elements(); first += kPieceElements) {
    const auto count = static_cast<size_t>(std::min(kPieceElements, head.elements() - first));
    a.resize(count);
    b.resize(count);
    HF_RETURN_IF_ERROR(file.ReadFloats(head, first, a));
    HF_RETURN_IF_ERROR(file.ReadFloats(table, first, b));
    same = std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0;
  }
  if (same) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "lm_head.weight differs from wte.weight; this model has one table for both");
}

// From each tensor of the model to its tensor in the file.
absl::StatusOr<std::vector<const FileTensor*>> Match(const SafetensorsFile& file,
                                                     const ModelSpec& spec) {
  std::map<std::string, const FileTensor*> there;
  std::vector<std::string> wrong;
  for (const FileTensor& tensor : file.header().tensors) {
    if (Ignored(tensor.name)) continue;
    if (!there.emplace(WithoutPrefix(tensor.name), &tensor).second)
      wrong.push_back(Cat(tensor.name, " is there with and without '", kPrefix, "'"));
  }
  std::vector<const FileTensor*> matched;
  for (const TensorSpec& t : spec.tensors) {
    const auto found = there.find(t.name);
    if (found == there.end()) {
      wrong.push_back(Cat(t.name, " ", ShapeText(t.shape), " is missing"));
      continue;
    }
    const FileTensor& tensor = *found->second;
    if (tensor.shape != t.shape) {
      wrong.push_back(Cat(t.name, " is ", ShapeText(tensor.shape), " in the file and ",
                          ShapeText(t.shape), " here"));
    } else if (tensor.dtype != "F32" && tensor.dtype != "F16" && tensor.dtype != "BF16") {
      wrong.push_back(Cat(t.name, " is of type ", tensor.dtype, "; F32, F16 or BF16 is needed"));
    }
    matched.push_back(&tensor);
    there.erase(found);
  }
  if (const auto head = there.find(std::string(kHead)); head != there.end()) {
    if (const FileTensor* table = file.Find(kTable); table != nullptr) {
      HF_RETURN_IF_ERROR(CheckTied(file, *head->second, *table));
      there.erase(head);
    } else if (const FileTensor* inner = file.Find(Cat(kPrefix, kTable)); inner != nullptr) {
      HF_RETURN_IF_ERROR(CheckTied(file, *head->second, *inner));
      there.erase(head);
    }
  }
  for (const auto& [name, tensor] : there)
    wrong.push_back(Cat(name, " ", ShapeText(tensor->shape), " is not in this model"));
  if (wrong.empty()) return matched;
  std::string text;
  for (size_t i = 0; i < std::min(kNamed, wrong.size()); ++i)
    text += Cat(i == 0 ? "" : "; ", wrong[i]);
  if (wrong.size() > kNamed) text += Cat("; and ", wrong.size() - kNamed, " more");
  return absl::InvalidArgumentError(Cat("the file and the model do not fit: ", text));
}

}  // namespace

absl::Status CheckInitFile(const std::string& path, const ModelSpec& spec) {
  HF_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(path));
  return Annotate(Match(*file, spec).status(), path);
}

absl::Status InitializeFrom(const std::string& path, const std::string& digest, State* state) {
  HF_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(path));
  HF_ASSIGN_OR_RETURN(const std::string found, file->Digest());
  if (found != digest) {
    return absl::FailedPreconditionError(Cat("--init-from ", path, " has changed: its digest is ",
                                             found, ", the run was begun with ", digest));
  }
  const StatePlan& plan = state->plan();
  const auto matched = Match(*file, plan.spec);
  if (!matched.ok()) return Annotate(matched.status(), path);
  state->marked = true;
  std::vector<float> piece;
  for (size_t i = 0; i < plan.spec.tensors.size(); ++i) {
    const int trained = plan.trained_of[i];
    float* to = trained >= 0 ? state->values() + plan.trained[trained].offset
                             : state->others() + plan.others[plan.other_of[i]].offset;
    const FileTensor& from = *(*matched)[i];
    for (int64_t first = 0; first < from.elements(); first += kPieceElements) {
      const int64_t count = std::min(kPieceElements, from.elements() - first);
      piece.resize(static_cast<size_t>(count));
      HF_RETURN_IF_ERROR(file->ReadFloats(from, first, piece));
      HF_RETURN_IF_ERROR(state->Write(to + first, piece));
    }
  }
  HF_RETURN_IF_ERROR(state->Redigest());
  state->marked = false;
  return absl::OkStatus();
}

}  // namespace holdfast
