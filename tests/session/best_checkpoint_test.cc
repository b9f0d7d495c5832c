#include "runtime/session/best_checkpoint.h"

#include <cmath>

#include "gtest/gtest.h"

namespace holdfast {
namespace {

BestCheckpoint Best(int64_t step, double loss, int64_t items = 100) {
  return {true, {0, step, 1}, loss, items};
}

TEST(BestCheckpoint, ACandidateBecomesTheBestWhenItsOwnStepIsSaved) {
  BestTracker t;
  ASSERT_TRUE(t.Better(2.5, 100));
  t.Propose(250, 2.5, 100);
  EXPECT_FALSE(t.Saved({0, 200, 1})) << "a checkpoint of another step says nothing about it";
  EXPECT_FALSE(t.best().known);
  EXPECT_TRUE(t.Saved({0, 250, 3}));
  EXPECT_EQ(t.best(), (BestCheckpoint{true, {0, 250, 3}, 2.5, 100}));
  EXPECT_EQ(t.candidate().step, -1);
  EXPECT_FALSE(t.Saved({0, 250, 4})) << "once";
}

// The save of one candidate is still under way when the next one evaluates.
TEST(BestCheckpoint, ACandidateDoesNotCostTheOneBeforeIt) {
  BestTracker t;
  t.Propose(21, 4.6, 100);
  EXPECT_FALSE(t.Better(4.7, 100)) << "worse than what is being saved";
  ASSERT_TRUE(t.Better(4.3, 100));
  t.Propose(28, 4.3, 100);
  EXPECT_TRUE(t.Saved({0, 21, 1}));
  EXPECT_EQ(t.best().id.step, 21);
  EXPECT_EQ(t.candidate().step, 28);
  t.Failed(28);
  EXPECT_EQ(t.best().id.step, 21) << "a save that fails costs only itself";
  EXPECT_TRUE(t.Better(4.4, 100)) << "and does not stand in the way of the next";
  t.Propose(35, 4.4, 100);
  t.Propose(42, 4.2, 100);
  EXPECT_TRUE(t.Saved({0, 42, 1}));
  EXPECT_FALSE(t.Saved({0, 35, 1})) << "a late one that is worse";
  EXPECT_EQ(t.best().id.step, 42);
}

TEST(BestCheckpoint, OnlyASmallerLossIsBetter) {
  BestTracker t;
  t.Merge(Best(250, 2.5), {});
  EXPECT_FALSE(t.Better(2.5, 100)) << "the older of equal ones stays";
  EXPECT_FALSE(t.Better(2.6, 100));
  EXPECT_FALSE(t.Better(std::nan(""), 100));
  EXPECT_FALSE(t.Better(INFINITY, 100));
  EXPECT_TRUE(t.Better(2.4, 100));
  EXPECT_TRUE(t.Better(9.0, 50)) << "over other data: not to be compared, begins anew";
}

TEST(BestCheckpoint, MergingIsTheSameInAnyOrder) {
  const BestCheckpoint known[] = {Best(10, 3), Best(20, 2), Best(30, 2), Best(40, 5, 7), {}};
  for (const BestCheckpoint& a : known) {
    EXPECT_EQ(BetterOf(a, a), a);
    for (const BestCheckpoint& b : known) EXPECT_EQ(BetterOf(a, b), BetterOf(b, a));
  }
  EXPECT_EQ(BetterOf(Best(10, 3), Best(20, 2)), Best(20, 2));
  EXPECT_EQ(BetterOf(Best(30, 2), Best(20, 2)), Best(20, 2));
  EXPECT_EQ(BetterOf(Best(10, 3), Best(40, 5, 7)), Best(40, 5, 7)) << "later data";
}

// One rank saw the evaluation end, the others did not, when a worker died.
TEST(BestCheckpoint, WhatOneMemberSawHoldsForAll) {
  BestTracker saw, other;
  saw.Propose(250, 2.5, 100);
  other.Merge(saw.best(), saw.candidate());
  saw.Merge(BestCheckpoint(), BestTracker::Candidate());
  for (BestTracker* t : {&saw, &other}) {
    t->BeginAt(250, {});
    EXPECT_EQ(t->candidate().step, 250);
  }
  // One rank saw "saved", the other did not.
  EXPECT_TRUE(saw.Saved({0, 250, 1}));
  other.Merge(saw.best(), saw.candidate());
  other.BeginAt(250, {});
  EXPECT_EQ(other.best(), saw.best());
  EXPECT_EQ(other.candidate().step, -1) << "it is the best already";
}

TEST(BestCheckpoint, ACandidateWhoseStateIsGoneIsDropped) {
  BestTracker t;
  t.Propose(250, 2.5, 100);
  t.BeginAt(251, {});
  EXPECT_EQ(t.candidate().step, -1);
}

TEST(BestCheckpoint, ABestOfAHistoryThatWasLeftBehindIsForgotten) {
  const rendezvous::Lineage forked = {{0, 0, ""}, {1, 200, ""}};
  BestTracker before, after;
  before.Merge(Best(200, 2.5), {});
  before.BeginAt(210, forked);
  EXPECT_EQ(before.best(), Best(200, 2.5)) << "both histories have it";
  after.Merge(Best(250, 2.5), {});
  after.BeginAt(210, forked);
  EXPECT_FALSE(after.best().known);
  EXPECT_TRUE(after.Better(3.0, 100));
}

TEST(BestCheckpoint, TheRecordReadsBackAndDamageIsSeen) {
  const BestCheckpoint best{true, {3, 250, 7}, 1.8789542, 12345};
  const std::string bytes = best.Encode();
  ASSERT_TRUE(BestCheckpoint::Decode(bytes).ok());
  EXPECT_EQ(*BestCheckpoint::Decode(bytes), best);
  EXPECT_FALSE(BestCheckpoint::Decode(bytes.substr(1)).ok());
  EXPECT_FALSE(BestCheckpoint::Decode(bytes + "x").ok());
  EXPECT_FALSE(BestCheckpoint::Decode("").ok());
}

}  // namespace
}  // namespace holdfast
