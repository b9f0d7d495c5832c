#include "runtime/session/accumulator.h"

#include <algorithm>
#include <limits>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "runtime/session/state.h"

namespace holdfast {
namespace {

constexpr int kMicroBatches = 8;

StatePlan Plan() {
  ModelSpec spec;
  spec.tensors = {{.name = "a", .shape = {kBucketElements}},
                  {.name = "b", .shape = {50}},
                  {.name = "never", .shape = {20}},
                  {.name = "c", .shape = {kBucketElements}}};
  spec.metrics = {"m"};
  spec.statistics = {{.name = "s", .shape = {2}}};
  return *MakePlan(spec, [](const std::string&) { return 2; });
}

const StatePlan& ThePlan() {
  static const StatePlan plan = Plan();
  return plan;
}

std::vector<float> Gradient(int micro_batch, int trained) {
  std::mt19937 random(static_cast<unsigned>(micro_batch * 10 + trained));
  std::vector<float> g(ThePlan().trained[trained].elements);
  for (float& x : g) x = (static_cast<float>(random() % 20001) - 10000) * 1.7e-4f;
  return g;
}

class AccumulatorTest : public testing::Test {
 protected:
  std::unique_ptr<Accumulator> Make(bool fast = false) {
    auto a = Accumulator::Allocate(ThePlan(), kMicroBatches, fast);
    EXPECT_TRUE(a.ok()) << a.status();
    (*a)->Reset(exponents_);
    return *std::move(a);
  }
  // As a compute thread does it: everything but the tensor "never".
  static void AddOne(Accumulator& a, int j) {
    const auto stream = kernels::CpuDevice().NewStream();
    MicroBatchResult result;
    result.index = j;
    result.weight = 10 + j;
    result.loss = 1000 * j;
    result.metrics = {j};
    result.statistics = {j, -j};
    const std::vector<bool> added = {true, true, false, true};
    for (const int t : {3, 1, 0}) AddTensor(a, *stream, t, Gradient(j, t), added, &result);
    a.Finish(std::move(result), added);
  }
  // One tensor, judged by itself.
  static void AddTensor(Accumulator& a, kernels::Stream& stream, int tensor, std::vector<float> g,
                        const std::vector<bool>& added, MicroBatchResult* result) {
    std::vector<kernels::FixedFlags> flags(added.size());
    a.Add(stream, tensor, g.data(), &flags[tensor]);
    a.Judge(flags.data(), added, result);
  }
  static void AddAll(Accumulator& a, const std::vector<int>& order) {
    a.Begin(static_cast<int>(order.size()));
    for (const int j : order) AddOne(a, j);
    Seal(a);
  }
  static void Seal(Accumulator& a) {
    for (size_t b = 0; b < ThePlan().buckets.size(); ++b) {
      EXPECT_TRUE(a.WaitBucket(static_cast<int>(b), 0));
      a.SealBucket(static_cast<int>(b), *kernels::CpuDevice().NewStream());
    }
  }
  static std::vector<int64_t> Words(Accumulator& a) {
    return {a.sums(), a.sums() + ThePlan().flat_elements};
  }
  std::vector<int16_t> exponents_ = std::vector<int16_t>(4, kFirstExponent);
};

TEST_F(AccumulatorTest, TheOrderDoesNotMatter) {
  std::vector<int> order = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto straight = Make();
  AddAll(*straight, order);
  std::mt19937 random(7);
  for (int round = 0; round < 3; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    const auto shuffled = Make();
    AddAll(*shuffled, order);
    EXPECT_EQ(Words(*shuffled), Words(*straight));
    EXPECT_EQ(shuffled->Scalars(), straight->Scalars());
    EXPECT_EQ(shuffled->held_count(), kMicroBatches);
  }
}

TEST_F(AccumulatorTest, TheSplitDoesNotMatter) {
  const auto whole = Make();
  AddAll(*whole, {0, 1, 2, 3, 4, 5, 6, 7});
  for (const std::vector<int>& first : {std::vector<int>{5, 0, 3}, std::vector<int>{}}) {
    std::vector<int> second;
    for (int j = kMicroBatches - 1; j >= 0; --j) {
      if (std::find(first.begin(), first.end(), j) == first.end()) second.push_back(j);
    }
    const auto left = Make(), right = Make();
    AddAll(*left, first);
    AddAll(*right, second);
    auto sum = Words(*left), scalars = left->Scalars();
    const auto more = Words(*right), more_scalars = right->Scalars();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
    for (size_t i = 0; i < scalars.size(); ++i) scalars[i] += more_scalars[i];
    EXPECT_EQ(sum, Words(*whole));
    EXPECT_EQ(scalars, whole->Scalars());
  }
}

TEST_F(AccumulatorTest, ThreadsDoNotMatterAndMoreMayBeAddedLater) {
  const auto whole = Make();
  AddAll(*whole, {0, 1, 2, 3, 4, 5, 6, 7});
  const auto shared = Make();
  shared->Begin(6);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      AddOne(*shared, t);
      AddOne(*shared, t + 3);
    });
  }
  for (auto& t : threads) t.join();
  Seal(*shared);
  AddAll(*shared, {6, 7});  // those of a member that was lost
  EXPECT_EQ(Words(*shared), Words(*whole));
  EXPECT_EQ(shared->Scalars(), whole->Scalars());
}

TEST_F(AccumulatorTest, TensorsThatAreNeverDoneAreZeroAlsoAfterAFormerStep) {
  const auto a = Make();
  const TrainedTensor& never = ThePlan().trained[2];
  std::fill_n(a->sums() + never.offset, never.elements, 99);
  AddAll(*a, {1});
  for (int64_t i = 0; i < never.elements; ++i) EXPECT_EQ(a->sums()[never.offset + i], 0);
  a->Reset(exponents_);
  EXPECT_EQ(a->held_count(), 0);
  AddAll(*a, {});
  for (int64_t i = 0; i < ThePlan().flat_elements; ++i) ASSERT_EQ(a->sums()[i], 0);
  for (const int64_t w : a->Scalars()) EXPECT_EQ(w, 0);
}

TEST_F(AccumulatorTest, ABucketIsReadyWhenAllPendingHaveAddedItsTensors) {
  const auto a = Make();
  const auto stream = kernels::CpuDevice().NewStream();
  ASSERT_EQ(ThePlan().buckets.size(), 3u);  // a | b, never | c
  a->Begin(2);
  MicroBatchResult first, second;
  first.index = 0, second.index = 1;
  const std::vector<bool> added = {false, true, false, true};
  AddTensor(*a, *stream, 3, Gradient(0, 3), added, &first);
  EXPECT_FALSE(a->WaitBucket(2, 0));
  AddTensor(*a, *stream, 3, Gradient(1, 3), added, &second);
  EXPECT_TRUE(a->WaitBucket(2, 0));
  EXPECT_FALSE(a->WaitBucket(0, 0));
  AddTensor(*a, *stream, 1, Gradient(0, 1), added, &first);
  AddTensor(*a, *stream, 1, Gradient(1, 1), added, &second);
  EXPECT_FALSE(a->WaitBucket(1, 0)) << "\"never\" may still come";
  a->Finish(first, added);
  a->Finish(second, added);
  EXPECT_TRUE(a->WaitBucket(1, 0));
  EXPECT_TRUE(a->WaitBucket(0, 0));
}

TEST_F(AccumulatorTest, FlagsNonFiniteAndOutOfRangeApart) {
  const auto stream = kernels::CpuDevice().NewStream();
  const ScalarLayout at(ThePlan());
  auto with = [&](float value, int16_t exponent) {
    exponents_[1] = exponent;
    const auto a = Make();
    a->Begin(1);
    MicroBatchResult result;
    std::vector<float> g(50, 0.5f);
    g[7] = value;
    AddTensor(*a, *stream, 1, g, {false, true, false, false}, &result);
    const bool nonfinite = result.nonfinite;
    a->Finish(result, {false, true, false, false});
    std::vector<int64_t> s = a->Scalars();
    EXPECT_EQ(nonfinite, s[at.nonfinite + 1] == 1);
    return std::vector<int64_t>{s[at.nonfinite + 1], s[at.out_of_range + 1], s[at.loud + 1]};
  };
  EXPECT_EQ(with(1.0f, 16), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(with(std::numeric_limits<float>::quiet_NaN(), 16), (std::vector<int64_t>{1, 0, 0}));
  EXPECT_EQ(with(-std::numeric_limits<float>::infinity(), 16), (std::vector<int64_t>{1, 0, 0}));
  EXPECT_EQ(with(1e30f, 40), (std::vector<int64_t>{0, 1, 1}));
  EXPECT_EQ(with(2048.0f, 40), (std::vector<int64_t>{0, 1, 1})) << "2^11 * 2^40 is the bound";
  EXPECT_EQ(with(2047.0f, 40), (std::vector<int64_t>{0, 0, 1}));
  EXPECT_EQ(with(2048.0f, 32), (std::vector<int64_t>{0, 0, 1})) << "a smaller scale takes it";
}

TEST_F(AccumulatorTest, TheHashOfNonFiniteIsAFunctionOfTheMicroBatch) {
  const auto stream = kernels::CpuDevice().NewStream();
  auto bits = [&](int tensor, int count) {
    const auto a = Make();
    a->Begin(1);
    MicroBatchResult result;
    std::vector<float> g(ThePlan().trained[tensor].elements, 1.0f);
    for (int i = 0; i < count; ++i) g[i] = std::numeric_limits<float>::quiet_NaN();
    std::vector<bool> added(ThePlan().trained.size(), false);
    added[tensor] = true;
    AddTensor(*a, *stream, tensor, g, added, &result);
    return result.bits;
  };
  EXPECT_EQ(bits(1, 3), bits(1, 3));
  EXPECT_NE(bits(1, 3), bits(1, 4));
  EXPECT_NE(bits(1, 3), bits(2, 3));
}

TEST_F(AccumulatorTest, ALossScaleLeavesTheSumsAsTheyAre) {
  const auto stream = kernels::CpuDevice().NewStream();
  auto words = [&](int loss_scale_log2) {
    const auto a = Make();
    a->Reset(exponents_, loss_scale_log2);
    a->Begin(1);
    std::vector<float> g = Gradient(0, 1);
    for (float& x : g) x = std::ldexp(x, loss_scale_log2);
    MicroBatchResult result;
    AddTensor(*a, *stream, 1, g, {false, true, false, false}, &result);
    a->Finish(result, {false, true, false, false});
    Seal(*a);
    return Words(*a);
  };
  EXPECT_EQ(words(0), words(16));
}

TEST_F(AccumulatorTest, ABrokenOffMicroBatchNeedsAReset) {
  const auto a = Make();
  a->MarkDirty();
  EXPECT_TRUE(a->dirty());
  a->Reset(exponents_);
  EXPECT_FALSE(a->dirty());
  AddAll(*a, {0, 1});
}

TEST_F(AccumulatorTest, FastSumsInFloat) {
  const auto a = Make(/*fast=*/true);
  AddAll(*a, {2, 3});
  const std::vector<float> g = Gradient(2, 1), h = Gradient(3, 1);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(a->fast_sums()[ThePlan().trained[1].offset + i], g[i] + h[i]);
  }
  EXPECT_EQ(a->Scalars()[0], 12 + 13);
}

}  // namespace
}  // namespace holdfast
