// The layout of a run's state, derived from the model's description: a pure function of the
// ModelSpec and the optimizers' slot counts, equal on all workers.
//
// Trained tensors lie one after the other in flat arrays (values, slots, gradients, sums), in order
// of declaration, each starting on a multiple of 16 elements; the gap is zero and stays zero.
// Buckets are runs of whole tensors: the unit of a reduction. Frozen tensors and buffers lie
// behind, in an array of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/models/model.h"
#include "storage/checkpoint_store.h"

namespace holdfast {

struct TrainedTensor {
  int spec = 0;        // index into ModelSpec::tensors
  int64_t offset = 0;  // elements, into the flat arrays
  int64_t elements = 0;
  int optimizer = 0;  // index into ModelSpec::optimizers
  int slots = 2;
  int bucket = 0;
};

struct OtherTensor {  // frozen or buffer
  int spec = 0;
  int64_t offset = 0;  // elements, into the array of the others
  int64_t elements = 0;
  bool buffer = false;
};

struct Bucket {
  int64_t begin = 0, end = 0;             // elements of the flat arrays
  int first_tensor = 0, last_tensor = 0;  // half-open, indices into trained
};

struct StatePlan {
  ModelSpec spec;
  std::vector<TrainedTensor> trained;
  std::vector<OtherTensor> others;
  std::vector<int> trained_of;  // spec index -> index into trained, or -1
  std::vector<int> other_of;    // spec index -> index into others, or -1
  std::vector<Bucket> buckets;  // in order of declaration
  int64_t flat_elements = 0, other_elements = 0;
  int max_slots = 0;
  std::vector<int64_t> statistic_offset;  // elements; one more entry than statistics
  int loss_shift = 0;  // c: gradients and loss leave a micro-batch times 2^-c, 2^c >= max_weight

  // The state as regions for storage, transfer and digest: "NAME/value", then "NAME/slot0",
  // "NAME/slot1".
  std::vector<storage::Region> Regions() const;
};

// Elements of one bucket, at most, unless a single tensor is larger.
inline constexpr int64_t kBucketElements = 262'144;

// slots_of(rule): fp32 values kept per parameter, or -1 for an unknown rule. kInvalidArgument names
// the tensor at fault.
// What MakePlan asks, for a trainer: the built-in rules and his own.
int SlotsOfRule(const Trainer& trainer, const std::string& rule);
absl::StatusOr<StatePlan> MakePlan(const ModelSpec& spec,
                                   const std::function<int(const std::string& rule)>& slots_of);

}  // namespace holdfast
