#include "runtime/session/plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast {
namespace {

using testing::HasSubstr;

int Slots(const std::string& rule) { return rule == "adamw" ? 2 : rule == "sgd" ? 0 : -1; }

ModelSpec Spec() {
  ModelSpec spec;
  spec.tensors = {{.name = "a", .shape = {3, 5}},
                  {.name = "frozen", .shape = {7}, .role = Role::kFrozen},
                  {.name = "b", .shape = {16}, .group = "plain"},
                  {.name = "buffer", .shape = {2}, .role = Role::kBuffer},
                  {.name = "c", .shape = {1}}};
  spec.optimizers = {{.group = "default"}, {.group = "plain", .rule = "sgd"}};
  spec.statistics = {{.name = "s", .shape = {4}}, {.name = "t", .shape = {2, 3}}};
  spec.max_weight = 100;
  return spec;
}

TEST(Plan, OffsetsAreAlignedAndInOrderOfDeclaration) {
  const auto plan = MakePlan(Spec(), Slots);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->trained.size(), 3u);
  EXPECT_EQ(plan->trained[0].offset, 0);
  EXPECT_EQ(plan->trained[1].offset, 16);
  EXPECT_EQ(plan->trained[2].offset, 32);
  EXPECT_EQ(plan->flat_elements, 48);
  EXPECT_EQ(plan->trained_of, (std::vector<int>{0, -1, 1, -1, 2}));
  EXPECT_EQ(plan->other_of, (std::vector<int>{-1, 0, -1, 1, -1}));
  EXPECT_FALSE(plan->others[0].buffer);
  EXPECT_TRUE(plan->others[1].buffer);
  EXPECT_EQ(plan->others[1].offset, 16);
  EXPECT_EQ(plan->trained[1].slots, 0);
  EXPECT_EQ(plan->max_slots, 2);
  EXPECT_EQ(plan->statistic_offset, (std::vector<int64_t>{0, 4, 10}));
  EXPECT_EQ(plan->loss_shift, 7) << "2^7 is the first power of two that is at least 100";
}

TEST(Plan, RegionsNameEveryComponent) {
  const auto plan = MakePlan(Spec(), Slots);
  ASSERT_TRUE(plan.ok());
  std::vector<std::string> names;
  for (const auto& r : plan->Regions()) names.push_back(r.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"a/value", "a/slot0", "a/slot1", "b/value", "c/value",
                                      "c/slot0", "c/slot1", "frozen/value", "buffer/value"}));
  EXPECT_EQ(plan->Regions()[1].words, 15);
}

TEST(Plan, BucketsAreRunsOfWholeTensors) {
  ModelSpec spec;
  const int64_t sizes[] = {kBucketElements / 2, kBucketElements / 2, 1, 3 * kBucketElements, 5, 6};
  for (size_t i = 0; i < std::size(sizes); ++i) {
    spec.tensors.push_back(
        {.name = std::string(1, static_cast<char>('a' + i)), .shape = {sizes[i]}});
  }
  const auto plan = MakePlan(spec, Slots);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->buckets.size(), 4u);
  int64_t end = 0;
  int tensor = 0;
  for (size_t b = 0; b < plan->buckets.size(); ++b) {
    const Bucket& bucket = plan->buckets[b];
    EXPECT_EQ(bucket.begin, end);
    EXPECT_EQ(bucket.first_tensor, tensor);
    end = bucket.end;
    tensor = bucket.last_tensor;
    for (int t = bucket.first_tensor; t < bucket.last_tensor; ++t) {
      EXPECT_EQ(plan->trained[t].bucket, static_cast<int>(b));
    }
  }
  EXPECT_EQ(end, plan->flat_elements);
  EXPECT_EQ(tensor, 6);
  EXPECT_EQ(plan->buckets[0].last_tensor, 2) << "two halves fill the first exactly";
}

TEST(Plan, ErrorsNameTheTensor) {
  auto refused = [](auto change) {
    ModelSpec spec = Spec();
    change(spec);
    const auto plan = MakePlan(spec, Slots);
    EXPECT_TRUE(absl::IsInvalidArgument(plan.status())) << plan.status();
    return std::string(plan.status().message());
  };
  EXPECT_THAT(refused([](ModelSpec& s) { s.tensors[2].name = "a"; }), HasSubstr("'a'"));
  EXPECT_THAT(refused([](ModelSpec& s) { s.tensors[2].name = ""; }), HasSubstr("unique"));
  EXPECT_THAT(refused([](ModelSpec& s) { s.tensors[2].shape = {4, 0}; }), HasSubstr("'b'"));
  EXPECT_THAT(refused([](ModelSpec& s) {
                s.tensors[2].shape = {int64_t{1} << 21, 1 << 20};
              }),
              HasSubstr("2^40"));
  EXPECT_THAT(refused([](ModelSpec& s) { s.tensors[2].group = "nowhere"; }), HasSubstr("nowhere"));
  EXPECT_THAT(refused([](ModelSpec& s) { s.optimizers[1].rule = "lion"; }), HasSubstr("lion"));
  EXPECT_THAT(refused([](ModelSpec& s) { s.max_weight = 0; }), HasSubstr("max_weight"));
  EXPECT_THAT(refused([](ModelSpec& s) {
                for (auto& t : s.tensors) t.role = Role::kFrozen;
              }),
              HasSubstr("no tensor is trained"));
}

}  // namespace
}  // namespace holdfast
