// The state of a run in memory of one worker: everything that the next step depends on, and the
// arrays that a step needs. Owned and changed by the main thread; compute threads read `values` and
// `others` during a step.
//
// A marked state is half changed (an update or a transfer was under way) and is no state: it is
// never saved, offered or trained on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "runtime/session/plan.h"

namespace holdfast {

inline constexpr int kFirstExponent = 40;  // k of every tensor at step 0
inline constexpr int kExponentStep = 8;
inline constexpr int kQuietSteps = 256;  // until k is raised again

// What of the state is no array. Encoded into the manifest and digested with the state.
struct StateScalars {
  int64_t step = 0;
  int64_t skipped = 0, skipped_in_a_row = 0;
  int64_t updates = 0;               // optimizer steps taken: step - skipped
  std::vector<int16_t> exponent;     // k per trained tensor
  std::vector<uint16_t> quiet;       // steps without a loud element, per trained tensor
  std::vector<std::string> cursors;  // one per micro-batch for a streaming source, else empty

  std::string Encode() const;
  // kDataLoss when the bytes do not fit a state of `tensors` trained tensors.
  static absl::StatusOr<StateScalars> Decode(std::string_view bytes, size_t tensors);
};

class State {
 public:
  static absl::StatusOr<std::unique_ptr<State>> Allocate(const StatePlan& plan);

  // Step 0: the initial values, pure in (plan, seed).
  absl::Status Initialise(uint64_t seed, int64_t streams);

  const StatePlan& plan() const { return plan_; }
  const storage::ChunkGrid& grid() const { return grid_; }
  StateScalars scalars;
  bool valid = false;  // holds a whole state
  bool marked = true;  // half changed

  float* values() { return values_.as<float>(); }
  float* slot(int s) { return slots_[s].as<float>(); }
  float* others() { return others_.as<float>(); }
  // Memory of region `index` of grid().regions().
  float* RegionData(int64_t index) { return region_data_[index]; }

  // Digests (runtime/base/digest.h). Region digests add up; the full digest adds the scalars.
  uint64_t RegionsDigest() const { return regions_digest_; }
  uint64_t Digest() const;
  // Recomputes the regions' digest from memory, and the part of it that the parameters make.
  void Redigest();
  // Of all that a forward pass reads (parameters, frozen tensors, buffers), from memory, now.
  uint64_t ParametersDigest() const;
  uint64_t recorded_parameters() const { return recorded_parameters_; }

 private:
  explicit State(const StatePlan& plan);
  StatePlan plan_;
  storage::ChunkGrid grid_;
  kernels::Buffer values_, others_;
  std::vector<kernels::Buffer> slots_;
  std::vector<float*> region_data_;
  std::vector<int64_t> value_regions_;  // regions that a forward pass reads, ascending
  uint64_t regions_digest_ = 0, recorded_parameters_ = 0;
};

// The full digest of a state from its two parts: of the regions, and of the encoded scalars.
uint64_t FullDigest(uint64_t regions_digest, std::string_view scalars);

}  // namespace holdfast
