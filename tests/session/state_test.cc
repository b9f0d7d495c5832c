#include "runtime/session/state.h"

#include "gtest/gtest.h"
#include "runtime/base/digest.h"

namespace holdfast {
namespace {

StatePlan Plan() {
  ModelSpec spec;
  spec.tensors = {{.name = "a", .shape = {100, 70}},
                  {.name = "frozen", .shape = {7}, .role = Role::kFrozen, .init = "ones"},
                  {.name = "b", .shape = {33}, .group = "plain", .init = "uniform:0.5"},
                  {.name = "buffer", .shape = {5}, .role = Role::kBuffer, .init = "zeros"}};
  spec.optimizers = {{.group = "default"}, {.group = "plain", .rule = "sgd"}};
  return *MakePlan(spec, [](const std::string& rule) { return rule == "adamw" ? 2 : 0; });
}

std::unique_ptr<State> Fresh(uint64_t seed = 1) {
  auto state = State::Allocate(Plan());
  EXPECT_TRUE(state.ok()) << state.status();
  EXPECT_TRUE((*state)->Initialise(seed, 2).ok());
  return *std::move(state);
}

TEST(State, AllocatedIsNoState) {
  const auto state = State::Allocate(Plan());
  ASSERT_TRUE(state.ok());
  EXPECT_TRUE((*state)->marked);
  EXPECT_FALSE((*state)->valid);
}

TEST(State, InitialValuesAreAFunctionOfTheSeed) {
  const auto one = Fresh(1), again = Fresh(1), other = Fresh(2);
  EXPECT_TRUE(one->valid);
  EXPECT_FALSE(one->marked);
  EXPECT_EQ(one->Digest(), again->Digest());
  EXPECT_NE(one->Digest(), other->Digest());
  EXPECT_EQ(one->scalars.exponent, (std::vector<int16_t>{kFirstExponent, kFirstExponent}));
  EXPECT_EQ(one->scalars.cursors.size(), 2u);
  EXPECT_EQ(one->others()[0], 1.0f);
}

TEST(State, DigestIsTheSumOfRegionsAndScalars) {
  const auto state = Fresh();
  uint64_t sum = 0;
  const auto& regions = state->grid().regions();
  for (size_t i = 0; i < regions.size(); ++i) {
    sum += DigestWords(state->RegionData(static_cast<int64_t>(i)), regions[i].words, i, 0);
  }
  EXPECT_EQ(state->RegionsDigest(), sum);
  EXPECT_EQ(state->Digest(), FullDigest(sum, state->scalars.Encode()));
  const uint64_t before = state->Digest();
  ++state->scalars.skipped;
  EXPECT_NE(state->Digest(), before);
}

TEST(State, EveryWordOfEveryRegionMovesTheDigest) {
  const auto state = Fresh();
  const uint64_t before = state->Digest();
  const auto& regions = state->grid().regions();
  for (size_t i = 0; i < regions.size(); ++i) {
    auto* words = reinterpret_cast<uint32_t*>(state->RegionData(static_cast<int64_t>(i)));
    for (const int64_t at : {int64_t{0}, regions[i].words - 1}) {
      words[at] ^= 1;
      EXPECT_TRUE(state->Redigest().ok());
      EXPECT_NE(state->Digest(), before) << regions[i].name << " " << at;
      words[at] ^= 1;
    }
  }
  EXPECT_TRUE(state->Redigest().ok());
  EXPECT_EQ(state->Digest(), before);
}

TEST(State, ParametersAsUsedAreAllThatAForwardPassReads) {
  const auto state = Fresh();
  EXPECT_EQ(*state->ParametersDigest(), state->recorded_parameters());
  int read = 0;
  const auto& regions = state->grid().regions();
  for (size_t i = 0; i < regions.size(); ++i) {
    auto* words = reinterpret_cast<uint32_t*>(state->RegionData(static_cast<int64_t>(i)));
    words[0] ^= 1u << 22;
    const bool seen = *state->ParametersDigest() != state->recorded_parameters();
    words[0] ^= 1u << 22;
    const bool value = regions[i].name.find("/value") != std::string::npos;
    EXPECT_EQ(seen, value) << regions[i].name;
    read += seen;
  }
  EXPECT_EQ(read, 4) << "a, b, frozen, buffer";
}

StateScalars Scalars() {
  StateScalars s;
  s.step = 1234;
  s.skipped = 3;
  s.skipped_in_a_row = 2;
  s.updates = 1231;
  s.exponent = {40, -16, 32};
  s.quiet = {0, 255, 7};
  s.cursors = {"", "12", std::string(256, 'x')};
  return s;
}

TEST(StateScalars, RoundTrip) {
  const auto back = StateScalars::Decode(Scalars().Encode(), 3);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->Encode(), Scalars().Encode());
  EXPECT_EQ(back->step, 1234);
  EXPECT_EQ(back->exponent, Scalars().exponent);
  EXPECT_EQ(back->quiet, Scalars().quiet);
  EXPECT_EQ(back->cursors, Scalars().cursors);
}

TEST(StateScalars, TheLossScaleComesBack) {
  StateScalars s = Scalars();
  s.scales_loss = true;
  s.loss_scale_log2 = 11;
  s.good_steps = 1999;
  auto back = StateScalars::Decode(s.Encode(), 3);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->Encode(), s.Encode());
  back->Grow();
  EXPECT_EQ(back->loss_scale_log2, 12) << "doubled after 2,000 good steps, counted across a resume";
  EXPECT_EQ(back->good_steps, 0);
  for (int i = 0; i < 12; ++i) {
    EXPECT_FALSE(back->AtLowestScale());
    back->Shrink();
  }
  EXPECT_TRUE(back->AtLowestScale());
  back->Shrink();
  EXPECT_EQ(back->loss_scale_log2, 0);
  s.loss_scale_log2 = 999;
  EXPECT_TRUE(absl::IsDataLoss(StateScalars::Decode(s.Encode(), 3).status()));
}

TEST(StateScalars, EveryTruncationAndEveryExtensionIsRefused) {
  const std::string bytes = Scalars().Encode();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(StateScalars::Decode(bytes.substr(0, size), 3).status())) << size;
  }
  EXPECT_TRUE(absl::IsDataLoss(StateScalars::Decode(bytes + "x", 3).status()));
  EXPECT_TRUE(absl::IsDataLoss(StateScalars::Decode(bytes, 2).status())) << "another model";
  std::string version = bytes;
  version[0] = 9;
  EXPECT_TRUE(absl::IsDataLoss(StateScalars::Decode(version, 3).status()));
}

}  // namespace
}  // namespace holdfast
