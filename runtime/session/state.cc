#include "runtime/session/state.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/bytes.h"
#include "runtime/base/digest.h"
#include "runtime/base/status.h"
#include "runtime/models/model_spec.h"

namespace holdfast {

std::string StateScalars::Encode() const {
  ByteWriter w;
  w.Put<uint32_t>(1);  // version
  w.Put(step);
  w.Put(skipped);
  w.Put(skipped_in_a_row);
  w.Put(updates);
  w.Put<uint32_t>(static_cast<uint32_t>(exponent.size()));
  for (const int16_t k : exponent) w.Put(k);
  for (const uint16_t q : quiet) w.Put(q);
  w.Put<uint32_t>(static_cast<uint32_t>(cursors.size()));
  for (const std::string& c : cursors) w.PutString(c);
  return w.Take();
}

absl::StatusOr<StateScalars> StateScalars::Decode(std::string_view bytes, size_t tensors) {
  ByteReader r(bytes);
  StateScalars s;
  const uint32_t version = r.Get<uint32_t>();
  if (version != 1)
    return absl::DataLossError(Cat("state scalars: version ", version, ", expected 1"));
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
  if (!r.AtEnd()) return absl::DataLossError("state scalars: damaged");
  return s;
}

uint64_t FullDigest(uint64_t regions_digest, std::string_view scalars) {
  return regions_digest + Mix64(Hash64(scalars, 0x5343414C));
}

State::State(const StatePlan& plan) : plan_(plan), grid_(plan.Regions()) {}

absl::StatusOr<std::unique_ptr<State>> State::Allocate(const StatePlan& plan) {
  std::unique_ptr<State> state(new State(plan));
  auto zeroed = [](int64_t elements) -> absl::StatusOr<kernels::Buffer> {
    auto buffer = kernels::CpuDevice().Allocate(std::max<int64_t>(elements, 16) * 4);
    if (buffer.ok())
      std::memset(buffer->data(), 0, buffer->bytes());  // gaps are zero; pages are touched now
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
  return state;
}

absl::Status State::Initialise(uint64_t seed, int64_t streams) {
  marked = true;
  const auto stream = kernels::CpuDevice().NewStream();
  auto fill = [&](const TensorSpec& spec, float* to, int64_t elements) {
    return InitializeTensor(*stream, spec, seed, 0, elements, to);
  };
  for (const TrainedTensor& t : plan_.trained) {
    HF_RETURN_IF_ERROR(fill(plan_.spec.tensors[t.spec], values() + t.offset, t.elements));
  }
  for (const OtherTensor& t : plan_.others) {
    HF_RETURN_IF_ERROR(fill(plan_.spec.tensors[t.spec], others() + t.offset, t.elements));
  }
  for (auto& s : slots_) std::memset(s.data(), 0, s.bytes());
  scalars = StateScalars();
  scalars.exponent.assign(plan_.trained.size(), kFirstExponent);
  scalars.quiet.assign(plan_.trained.size(), 0);
  scalars.cursors.assign(streams, "");
  Redigest();
  marked = false;
  valid = true;
  return absl::OkStatus();
}

uint64_t State::Digest() const { return FullDigest(regions_digest_, scalars.Encode()); }

void State::Redigest() {
  regions_digest_ = 0;
  recorded_parameters_ = 0;
  const auto& regions = grid_.regions();
  size_t next_value = 0;
  for (size_t i = 0; i < regions.size(); ++i) {
    const uint64_t d = DigestWords(region_data_[i], regions[i].words, i, 0);
    regions_digest_ += d;
    if (next_value < value_regions_.size() &&
        value_regions_[next_value] == static_cast<int64_t>(i)) {
      recorded_parameters_ += d;
      ++next_value;
    }
  }
}

uint64_t State::ParametersDigest() const {
  uint64_t digest = 0;
  for (const int64_t i : value_regions_) {
    digest += DigestWords(region_data_[i], grid_.regions()[i].words, static_cast<uint64_t>(i), 0);
  }
  return digest;
}

}  // namespace holdfast
