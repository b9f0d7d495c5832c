#include "runtime/session/state.h"

#include <algorithm>
#include <cstring>

#include "kernels/ops.h"
#include "runtime/base/bytes.h"
#include "runtime/base/digest.h"
#include "runtime/base/status.h"
#include "runtime/models/model_spec.h"

namespace holdfast {

std::string StateScalars::Encode() const {
  ByteWriter w;
  w.Put<uint32_t>(scales_loss ? 2 : 1);  // version
  w.Put(step);
  w.Put(skipped);
  w.Put(skipped_in_a_row);
  w.Put(updates);
  w.Put<uint32_t>(static_cast<uint32_t>(exponent.size()));
  for (const int16_t k : exponent) w.Put(k);
  for (const uint16_t q : quiet) w.Put(q);
  w.Put<uint32_t>(static_cast<uint32_t>(cursors.size()));
  for (const std::string& c : cursors) w.PutString(c);
  if (scales_loss) {
    w.Put<int32_t>(loss_scale_log2);
    w.Put(good_steps);
  }
  return w.Take();
}

void StateScalars::Grow() {
  if (!scales_loss || ++good_steps < kGoodSteps) return;
  good_steps = 0;
  loss_scale_log2 = std::min(kLargestLossScaleLog2, loss_scale_log2 + 1);
}

void StateScalars::Shrink() {
  if (!scales_loss) return;
  good_steps = 0;
  loss_scale_log2 = std::max(0, loss_scale_log2 - 1);
}

absl::StatusOr<StateScalars> StateScalars::Decode(std::string_view bytes, size_t tensors) {
  ByteReader r(bytes);
  StateScalars s;
  const uint32_t version = r.Get<uint32_t>();
  if (version != 1 && version != 2)
    return absl::DataLossError(Cat("state scalars: version ", version, ", expected 1 or 2"));
  s.scales_loss = version == 2;
  s.step = r.Get<int64_t>();
  s.skipped = r.Get<int64_t>();
  s.skipped_in_a_row = r.Get<int64_t>();
  s.updates = r.Get<int64_t>();
  const uint32_t count = r.Get<uint32_t>();
  if (count != tensors) return absl::DataLossError("state scalars: other number of tensors");
  for (uint32_t i = 0; i < count; ++i) s.exponent.push_back(r.Get<int16_t>());
  for (uint32_t i = 0; i < count; ++i) s.quiet.push_back(r.Get<uint16_t>());
  const uint32_t cursors = r.Get<uint32_t>();
  if (cursors > 4096) return absl::DataLossError("state scalars: too many cursors");
  for (uint32_t i = 0; i < cursors && r.ok(); ++i) s.cursors.push_back(r.GetString(256));
  if (s.scales_loss) {
    s.loss_scale_log2 = r.Get<int32_t>();
    s.good_steps = r.Get<int64_t>();
    if (s.loss_scale_log2 < 0 || s.loss_scale_log2 > kLargestLossScaleLog2)
      return absl::DataLossError("state scalars: impossible loss scale");
  }
  if (!r.AtEnd()) return absl::DataLossError("state scalars: damaged");
  return s;
}

uint64_t FullDigest(uint64_t regions_digest, std::string_view scalars) {
  return regions_digest + Mix64(Hash64(scalars, 0x5343414C));
}

State::State(const StatePlan& plan, kernels::Device& device)
    : plan_(plan), device_(device), stream_(device.NewStream()), grid_(plan.Regions()) {}

// Memory is freed by who has waited for the work that uses it.
State::~State() { (void)stream_->Synchronize(Deadline::After(kDeviceWaitMs)); }

absl::StatusOr<std::unique_ptr<State>> State::Allocate(const StatePlan& plan,
                                                       kernels::Device& device) {
  std::unique_ptr<State> state(new State(plan, device));
  auto zeroed = [&](int64_t elements) -> absl::StatusOr<kernels::Buffer> {
    auto buffer = device.Allocate(std::max<int64_t>(elements, 16) * 4);
    // Gaps are zero; pages are touched now.
    if (buffer.ok()) device.Zero(*state->stream_, buffer->data(), buffer->bytes());
    return buffer;
  };
  HF_ASSIGN_OR_RETURN(state->values_, zeroed(plan.flat_elements));
  HF_ASSIGN_OR_RETURN(state->others_, zeroed(plan.other_elements));
  for (int s = 0; s < plan.max_slots; ++s) {
    HF_ASSIGN_OR_RETURN(auto buffer, zeroed(plan.flat_elements));
    state->slots_.push_back(std::move(buffer));
  }
  for (const TrainedTensor& t : plan.trained) {
    state->value_regions_.push_back(static_cast<int64_t>(state->region_data_.size()));
    state->region_data_.push_back(state->values() + t.offset);
    for (int s = 0; s < t.slots; ++s) state->region_data_.push_back(state->slot(s) + t.offset);
  }
  for (const OtherTensor& t : plan.others) {
    state->value_regions_.push_back(static_cast<int64_t>(state->region_data_.size()));
    state->region_data_.push_back(state->others() + t.offset);
  }
  const auto words = static_cast<int64_t>(state->region_data_.size() * sizeof(uint64_t));
  HF_ASSIGN_OR_RETURN(state->device_digests_, device.Allocate(words));
  HF_ASSIGN_OR_RETURN(state->host_digests_, device.AllocateHost(words));
  HF_RETURN_IF_ERROR(state->Settle());
  return state;
}

// Never a reason to regroup: what fails here fails by itself.
absl::Status State::Settle() {
  const absl::Status status = stream_->Synchronize(Deadline::After(kDeviceWaitMs));
  return status.ok() ? status : absl::InternalError(Cat("device: ", StdView(status.message())));
}

absl::Status State::Write(float* to, std::span<const float> from) {
  device_.Copy(*stream_, to, from.data(), static_cast<int64_t>(from.size_bytes()));
  return Settle();
}

absl::Status State::Read(const float* from, std::span<float> to) {
  device_.Copy(*stream_, to.data(), from, static_cast<int64_t>(to.size_bytes()));
  return Settle();
}

absl::Status State::Initialise(uint64_t seed, int64_t streams, bool scales_loss) {
  marked = true;
  auto fill = [&](const TensorSpec& spec, float* to, int64_t elements) {
    return InitializeTensor(*stream_, spec, seed, 0, elements, to);
  };
  for (const TrainedTensor& t : plan_.trained) {
    HF_RETURN_IF_ERROR(fill(plan_.spec.tensors[t.spec], values() + t.offset, t.elements));
  }
  for (const OtherTensor& t : plan_.others) {
    HF_RETURN_IF_ERROR(fill(plan_.spec.tensors[t.spec], others() + t.offset, t.elements));
  }
  for (auto& s : slots_) device_.Zero(*stream_, s.data(), s.bytes());
  scalars = StateScalars();
  scalars.exponent.assign(plan_.trained.size(), kFirstExponent);
  scalars.quiet.assign(plan_.trained.size(), 0);
  scalars.cursors.assign(streams, "");
  scalars.scales_loss = scales_loss;
  if (scales_loss) scalars.loss_scale_log2 = kFirstLossScaleLog2;
  HF_RETURN_IF_ERROR(Redigest());
  marked = false;
  valid = true;
  return absl::OkStatus();
}

uint64_t State::Digest() const { return FullDigest(regions_digest_, scalars.Encode()); }

absl::Status State::DigestRegions(bool parameters_only) {
  const auto& regions = grid_.regions();
  const auto digest = [&](size_t i) {
    kernels::Digest(*stream_, region_data_[i], regions[i].words, i, 0,
                    device_digests_.as<uint64_t>() + i);
  };
  if (parameters_only) {
    for (const int64_t i : value_regions_) digest(static_cast<size_t>(i));
  } else {
    for (size_t i = 0; i < regions.size(); ++i) digest(i);
  }
  device_.Copy(*stream_, host_digests_.data(), device_digests_.data(), host_digests_.bytes());
  return Settle();
}

uint64_t State::SumOfParameters() const {
  uint64_t sum = 0;
  for (const int64_t i : value_regions_) sum += host_digests_.as<uint64_t>()[i];
  return sum;
}

absl::Status State::Redigest() {
  if (absl::Status status = DigestRegions(/*parameters_only=*/false); !status.ok()) {
    marked = true;
    return status;
  }
  regions_digest_ = 0;
  for (size_t i = 0; i < region_data_.size(); ++i)
    regions_digest_ += host_digests_.as<uint64_t>()[i];
  recorded_parameters_ = SumOfParameters();
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> State::ParametersDigest() {
  HF_RETURN_IF_ERROR(DigestRegions(/*parameters_only=*/true));
  return SumOfParameters();
}

}  // namespace holdfast
