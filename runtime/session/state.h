// The state of a run in memory of one worker: everything that the next step depends on, and the
// arrays that a step needs. Owned and changed by the main thread; compute threads read `values` and
// `others` during a step. The arrays lie in the memory of the worker's device; pointers to them are
// followed by operations on streams only, and by Read and Write. All that the main thread does to
// them goes through stream(), in order.
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

// How long work that was launched may take before the device counts as lost.
inline constexpr int64_t kDeviceWaitMs = 600'000;

inline constexpr int kFirstExponent = 40;  // k of every tensor at step 0
inline constexpr int kExponentStep = 8;
inline constexpr int kQuietSteps = 256;  // until k is raised again
inline constexpr int kFirstLossScaleLog2 = 16, kLargestLossScaleLog2 = 24;
inline constexpr int64_t kGoodSteps = 2000;

// What of the state is no array. Encoded into the manifest and digested with the state.
struct StateScalars {
  int64_t step = 0;
  int64_t skipped = 0, skipped_in_a_row = 0;
  int64_t updates = 0;               // optimizer steps taken: step - skipped
  std::vector<int16_t> exponent;     // k per trained tensor
  std::vector<uint16_t> quiet;       // steps without a loud element, per trained tensor
  std::vector<std::string> cursors;  // one per micro-batch for a streaming source, else empty
  // --precision fp16: the loss is multiplied by 2^loss_scale_log2 before the backward pass; halved
  // by a step that is not finite, doubled after kGoodSteps in a row. Micikevicius et al. 2018.
  bool scales_loss = false;
  int loss_scale_log2 = 0;
  int64_t good_steps = 0;
  void Grow();    // a step was applied
  void Shrink();  // a step was skipped: not finite
  // Nothing is left to lower: what is not finite now would not be finite without a scale, either.
  bool AtLowestScale() const { return !scales_loss || loss_scale_log2 == 0; }

  std::string Encode() const;
  // kDataLoss when the bytes do not fit a state of `tensors` trained tensors.
  static absl::StatusOr<StateScalars> Decode(std::string_view bytes, size_t tensors);
};

class State {
 public:
  static absl::StatusOr<std::unique_ptr<State>> Allocate(
      const StatePlan& plan, kernels::Device& device = kernels::CpuDevice());
  ~State();

  // Step 0: the initial values, pure in (plan, seed). scales_loss: --precision fp16.
  absl::Status Initialise(uint64_t seed, int64_t streams, bool scales_loss = false);

  const StatePlan& plan() const { return plan_; }
  const storage::ChunkGrid& grid() const { return grid_; }
  StateScalars scalars;
  bool valid = false;  // holds a whole state
  bool marked = true;  // half changed

  float* values() { return values_.as<float>(); }
  float* slot(int s) { return slots_[s].as<float>(); }
  float* others() { return others_.as<float>(); }
  // Memory of region `index` of grid().regions(), on the device.
  float* RegionData(int64_t index) { return region_data_[index]; }
  // Between host memory and the device; they return when the copy is done.
  absl::Status Write(float* to, std::span<const float> from);
  absl::Status Read(const float* from, std::span<float> to);

  // Waits for all work of stream(). kInternal: the device failed, or did not finish in time.
  absl::Status Settle();

  kernels::Device& device() { return device_; }
  kernels::Stream& stream() { return *stream_; }  // the main thread's

  // Digests (runtime/base/digest.h). Region digests add up; the full digest adds the scalars.
  uint64_t RegionsDigest() const { return regions_digest_; }
  uint64_t Digest() const;
  // Recomputes the regions' digest from memory, and the part of it that the parameters make; waits
  // for all work of stream(). An error is the device's: the state is then marked.
  absl::Status Redigest();
  // Of all that a forward pass reads (parameters, frozen tensors, buffers), from memory, now.
  absl::StatusOr<uint64_t> ParametersDigest();
  uint64_t recorded_parameters() const { return recorded_parameters_; }

 private:
  State(const StatePlan& plan, kernels::Device& device);
  // The digests of all regions (or of those that a forward pass reads), in region_digests_.
  absl::Status DigestRegions(bool parameters_only);
  uint64_t SumOfParameters() const;

  StatePlan plan_;
  kernels::Device& device_;
  std::unique_ptr<kernels::Stream> stream_;
  storage::ChunkGrid grid_;
  kernels::Buffer values_, others_;
  std::vector<kernels::Buffer> slots_;
  kernels::Buffer device_digests_, host_digests_;  // one word for each region
  std::vector<float*> region_data_;
  std::vector<int64_t> value_regions_;  // regions that a forward pass reads, ascending
  uint64_t regions_digest_ = 0, recorded_parameters_ = 0;
};

// The full digest of a state from its two parts: of the regions, and of the encoded scalars.
uint64_t FullDigest(uint64_t regions_digest, std::string_view scalars);

}  // namespace holdfast
