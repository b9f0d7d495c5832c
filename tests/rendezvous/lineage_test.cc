// Branches: what belongs to a history, and what a round makes of a changed schedule.
#include "rendezvous/lineage.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/seal.h"
#include "tests/rendezvous/builders.h"

namespace holdfast::rendezvous {
namespace {

using testing::HasSubstr;
using Kind = Decision::Kind;

constexpr int64_t kNow = 1'000'000;
const char kSlow[] = "learning_rate = 0.001\nwarmup_steps = 10\n";
const char kFast[] = "learning_rate = 0.01\nwarmup_steps = 10\n";

Lineage Two() { return {{0, 0, kSlow}, {1, 100, kFast}}; }

TEST(LineageTest, WhatBelongsToAHistory) {
  const Lineage two = Two();
  EXPECT_EQ(LastStepOn(two, 0), 100);
  EXPECT_EQ(LastStepOn(two, 1), INT64_MAX);
  EXPECT_EQ(LastStepOn(two, 2), -1);
  EXPECT_EQ(LastStepOn({}, 0), INT64_MAX);
  EXPECT_EQ(LastStepOn({}, 1), -1);
  // A third branch that forks before the second: all of both beyond it is left behind.
  Lineage three = two;
  three.push_back({2, 40, kSlow});
  EXPECT_EQ(LastStepOn(three, 0), 40);
  EXPECT_EQ(LastStepOn(three, 1), 40);
  EXPECT_EQ(RulerOf(three, 40), 0u);
  EXPECT_EQ(RulerOf(three, 41), 2u);
  EXPECT_EQ(RulerOf(two, 100), 0u);
  EXPECT_EQ(RulerOf(two, 101), 1u);
  EXPECT_EQ(RulerOf({}, 7), 0u);
}

TEST(LineageTest, Prefixes) {
  const Lineage two = Two();
  EXPECT_TRUE(IsPrefix({}, two));
  EXPECT_TRUE(IsPrefix({two[0]}, two));
  EXPECT_TRUE(IsPrefix(two, two));
  EXPECT_FALSE(IsPrefix(two, {two[0]}));
  Lineage other = two;
  other[1].step = 99;
  EXPECT_FALSE(IsPrefix(other, two));
}

TEST(LineageTest, TextThereAndBack) {
  for (const Lineage& lineage : {Lineage{}, Two(), Lineage{{0, 0, ""}}}) {
    const auto back = DecodeLineage(EncodeLineage(lineage));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, lineage);
  }
  const std::string text = EncodeLineage(Two());
  for (size_t cut = 0; cut + 1 < text.size(); ++cut) {
    const auto back = DecodeLineage(text.substr(0, cut));
    EXPECT_TRUE(!back.ok() || back->size() < 2) << cut;
  }
  for (const char* bad :
       {"", "lineage 2\n", "lineage 1\nbranch 0 -1 0\n", "lineage 1\nbranch 0 0 9\n",
        "lineage 1\nbranch 1 0 0\nbranch 1 5 0\n", "lineage 1\nfork 0 0 0\n"}) {
    EXPECT_FALSE(DecodeLineage(bad).ok()) << bad;
  }
}

Decision Decide(const Record& r) {
  return DecideSeal(r, {kNow - 100'000, kNow - 100'000}, SealOptions(), kNow);
}

// A process that wants `schedule` and knows `lineage`; its checkpoint of branch 0, step 100, whole.
Waiting Wants(const std::string& id, int slot, const char* schedule, Lineage lineage) {
  Waiting w = MakeWaiting(id, "a", slot);
  w.offer.fingerprint_text = Cat("seed = 7\n", schedule);
  w.offer.fingerprint = w.offer.fingerprint_text;
  w.offer.schedule = schedule;
  w.offer.branch = NewestBranch(lineage);
  w.offer.lineage = std::move(lineage);
  w.offer.checkpoints = {MakeCheckpoint(100, {{0, 10}})};
  return w;
}

Record Cold(const std::vector<Waiting>& joiners) {
  Record r = MakeRecord(3, {"dead"});
  r.deaths["dead"] = "SIGKILL";
  for (const Waiting& w : joiners) AddJoin(&r, w);
  return r;
}

TEST(LineageTest, TheFirstRoundMakesBranchZero) {
  Waiting w = Wants("a", 0, kSlow, {});
  w.offer.checkpoints.clear();
  const Decision d = Decide(Cold({w}));
  ASSERT_EQ(d.kind, Kind::kSeal);
  EXPECT_EQ(d.plan.sealed.lineage, (Lineage{{0, 0, kSlow}}));
  EXPECT_EQ(d.plan.sealed.branch, 0u);
}

TEST(LineageTest, ANewScheduleOpensABranchWhereTheStateIs) {
  const Lineage before = {{0, 0, kSlow}};
  const Decision d = Decide(Cold({Wants("a", 0, kFast, before), Wants("b", 1, kFast, {})}));
  ASSERT_EQ(d.kind, Kind::kSeal);
  EXPECT_EQ(d.plan.sealed.lineage, Two());
  EXPECT_EQ(d.plan.sealed.branch, 1u);
  EXPECT_EQ(d.plan.sealed.checkpoint.branch, 0u) << "the state is read under its own id";
  EXPECT_EQ(d.plan.sealed.members.size(), 2u);
  const auto back = DecodeSealed(EncodeSealed(d.plan.sealed));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->lineage, Two());
}

TEST(LineageTest, TheSameScheduleOpensNothing) {
  const Decision d = Decide(Cold({Wants("a", 0, kFast, Two())}));
  ASSERT_EQ(d.kind, Kind::kSeal);
  EXPECT_EQ(d.plan.sealed.lineage, Two());
}

// Two that slept through the change are more than the one who knows of it, and come first by place:
// they are refused all the same, or the abandoned history would come back.
TEST(LineageTest, WhoSleptThroughAChangeIsRefusedWhateverTheirNumber) {
  const Lineage before = {{0, 0, kSlow}};
  const Decision d = Decide(Cold(
      {Wants("a", 0, kSlow, before), Wants("b", 1, kSlow, before), Wants("c", 2, kFast, Two())}));
  ASSERT_EQ(d.kind, Kind::kRefuse);
  ASSERT_EQ(d.refusals.size(), 2u);
  EXPECT_EQ(d.refusals[0].id, "a");
  EXPECT_THAT(d.refusals[0].why, HasSubstr("learning_rate is 0.001 here, 0.01 in the run"));
}

TEST(LineageTest, AnotherHistoryOfTheSameNumberIsRefused) {
  Lineage other = Two();
  other[1].step = 60;
  Record r = MakeRecord(3, {"a"});
  r.sealed.lineage = Two();
  r.sealed.fingerprint = r.sealed.fingerprint_text = Cat("seed = 7\n", kFast);
  AddJoin(&r, WithState(Wants("a", 0, kFast, Two()), 120, 9, true));
  AddJoin(&r, Wants("b", 1, kFast, other));
  const Decision d = Decide(r);
  ASSERT_EQ(d.kind, Kind::kRefuse);
  ASSERT_EQ(d.refusals.size(), 1u);
  EXPECT_EQ(d.refusals[0].id, "b");
  EXPECT_THAT(d.refusals[0].why, HasSubstr("branch 1 from step 60 here, branch 1 from step 100"));
}

// Somebody has the new branch on record, died, and comes back beside one who has not.
TEST(LineageTest, ABranchThatOneHasOnRecordIsTakenUpByAll) {
  const Lineage before = {{0, 0, kSlow}};
  const Decision d = Decide(Cold({Wants("a", 0, kFast, before), Wants("b", 1, kFast, Two())}));
  ASSERT_EQ(d.kind, Kind::kSeal);
  EXPECT_EQ(d.plan.sealed.lineage, Two());
}

TEST(LineageTest, TheNumberOfBranchesHasABound) {
  Lineage many = {{0, 0, kSlow}};
  while (many.size() < kMaxBranches)
    many.push_back({static_cast<uint32_t>(many.size()), 1, many.size() % 2 ? kFast : kSlow});
  const char* other = many.back().schedule == kFast ? kSlow : kFast;
  EXPECT_EQ(Decide(Cold({Wants("a", 0, many.back().schedule.c_str(), many)})).kind, Kind::kSeal);
  const Decision d = Decide(Cold({Wants("a", 0, other, many)}));
  ASSERT_EQ(d.kind, Kind::kRefuse);
  EXPECT_THAT(d.refusals[0].why, HasSubstr("99 accepted changes"));
}

}  // namespace
}  // namespace holdfast::rendezvous
