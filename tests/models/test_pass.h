// The runtime's side of a micro-batch, for tests of models: every piece of scratch is filled with
// NaN first, gradients are filled with NaN again once they are done, and calls that the interface
// forbids fail the test. Works on an asynchronous stream too, where a model that reads results
// early would read NaN.
#pragma once

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "runtime/base/digest.h"
#include "runtime/models/model.h"
#include "runtime/models/model_spec.h"

namespace holdfast::testing_models {

using Floats = std::vector<float>;
using Values = std::vector<Floats>;  // one for each tensor of the spec

// The first parameters of a run.
inline Values InitialValues(const ModelSpec& spec, uint64_t seed, kernels::Stream& stream) {
  Values values;
  for (const TensorSpec& t : spec.tensors) {
    values.emplace_back(static_cast<size_t>(ElementsOf(t)));
    EXPECT_TRUE(InitializeTensor(stream, t, seed, 0, ElementsOf(t), values.back().data()).ok());
  }
  EXPECT_TRUE(stream.Synchronize(Deadline::After(60'000)).ok());
  return values;
}

class TestRandom final : public Random {
 public:
  TestRandom(uint64_t seed, const MicroBatch& batch)
      : base_(Mix64(Mix64(seed) ^ static_cast<uint64_t>(batch.step * 4099 + batch.index))) {}
  uint64_t Key(uint32_t site) const override { return Mix64(base_ ^ (uint64_t{site} << 32)); }

 private:
  uint64_t base_;
};

class TestPass final : public Pass {
 public:
  TestPass(const ModelSpec& spec, Values* values, kernels::Stream& stream, const MicroBatch& batch,
           float scale = 1.0f)
      : spec_(spec), stream_(stream), scale_(scale), random_(/*seed=*/11, batch) {
    for (size_t i = 0; i < spec.tensors.size(); ++i) {
      values_.push_back(Tensor{.data = (*values)[i].data(), .shape = spec.tensors[i].shape});
      scratch_.emplace_back((*values)[i].size(), kNan);
      gradients.emplace_back();
    }
    metrics.resize(spec.metrics.size());
    statistics.resize(spec.statistics.size());
  }

  kernels::Stream& stream() override { return stream_; }
  const Tensor& Value(int tensor) const override { return values_.at(static_cast<size_t>(tensor)); }
  Tensor Gradient(int tensor) override {
    const auto i = static_cast<size_t>(tensor);
    EXPECT_EQ(spec_.tensors.at(i).role, Role::kTrained);
    EXPECT_TRUE(gradients[i].empty()) << "Gradient after Done: " << spec_.tensors[i].name;
    return Tensor{.data = scratch_[i].data(), .shape = spec_.tensors[i].shape};
  }
  void Done(int tensor) override {
    const auto i = static_cast<size_t>(tensor);
    EXPECT_TRUE(gradients.at(i).empty()) << "Done twice: " << spec_.tensors[i].name;
    done.push_back(tensor);
    gradients[i].resize(scratch_[i].size());
    stream_.Launch([to = &gradients[i], from = &scratch_[i]] {
      std::swap(*to, *from);
      from->assign(to->size(), kNan);
    });
  }
  float scale() const override { return scale_; }
  void Loss(const Tensor& terms, int64_t counted) override {
    ++loss_calls;
    weight = counted;
    EXPECT_GE(counted, 0);
    EXPECT_LE(counted, spec_.max_weight);
    Keep(terms, &losses);
  }
  void Metric(int metric, const Tensor& terms) override {
    Keep(terms, &metrics.at(static_cast<size_t>(metric)));
  }
  void Statistic(int statistic, const Tensor& value) override {
    Keep(value, &statistics.at(static_cast<size_t>(statistic)));
  }
  Tensor Workspace(int64_t bytes) override {
    auto buffer = kernels::CpuDevice().Allocate(bytes);
    EXPECT_TRUE(buffer.ok());
    std::memset(buffer->data(), 0xff, static_cast<size_t>(bytes));  // NaN
    workspaces_.push_back(*std::move(buffer));
    return Tensor{.data = workspaces_.back().data(), .type = Type::kU8, .shape = {bytes}};
  }
  Random& random() override { return random_; }
  bool cancelled() const override { return cancel; }

  double loss() const {
    return kernels::SumTerms(static_cast<int64_t>(losses.size()), losses.data());
  }

  Values gradients;       // empty: Done was not called
  std::vector<int> done;  // in the order of the calls
  Floats losses;
  Values metrics, statistics;
  int64_t weight = -1;
  int loss_calls = 0;
  bool cancel = false;

 private:
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

  void Keep(const Tensor& terms, Floats* out) {
    out->resize(static_cast<size_t>(terms.elements()));
    stream_.Launch(
        [out, from = terms.as<const float>()] { std::copy_n(from, out->size(), out->data()); });
  }

  const ModelSpec& spec_;
  kernels::Stream& stream_;
  const float scale_;
  TestRandom random_;
  std::vector<Tensor> values_;
  std::deque<Floats> scratch_;
  std::vector<kernels::Buffer> workspaces_;
};

// |a - b| / |b|, Euclidean norms.
inline double RelativeError(const Floats& a, const Floats& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

inline bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline bool SameBits(const Values& a, const Values& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!SameBits(a[i], b[i])) return false;
  }
  return true;
}

}  // namespace holdfast::testing_models
