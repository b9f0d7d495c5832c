// Which state a generation starts from: every rule of PROTOCOL.md, "Where the state comes from".
#include "rendezvous/source.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/rendezvous/builders.h"

namespace holdfast::rendezvous {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Kind = SourceChoice::Kind;

SourceChoice Choose(const std::vector<Waiting>& joiners, bool may_wait = false,
                    int64_t progress = 0, std::set<std::string> in_generation = {}) {
  std::vector<const Waiting*> pointers;
  for (const Waiting& w : joiners) pointers.push_back(&w);
  return ChooseSource(pointers, in_generation, progress, may_wait);
}

void ExpectMemory(const SourceChoice& c, int64_t step, uint64_t digest) {
  EXPECT_EQ(c.kind, Kind::kUse);
  EXPECT_EQ(c.source, Source::kMemory);
  EXPECT_EQ(c.step, step);
  EXPECT_EQ(c.digest, digest);
}

Waiting Holds(Waiting w, HeldCheckpoint c) {
  w.offer.checkpoints.push_back(std::move(c));
  return w;
}

TEST(SourceTest, NothingAnywhereIsAFreshStart) {
  const SourceChoice c = Choose({MakeWaiting("a"), MakeWaiting("b")});
  EXPECT_EQ(c.kind, Kind::kUse);
  EXPECT_EQ(c.source, Source::kFresh);
  EXPECT_EQ(c.step, 0);
}

TEST(SourceTest, TheHighestVouchedStepWinsMemberOrNot) {
  const SourceChoice c = Choose({WithState(MakeWaiting("member"), 7, 70, true),
                                 WithState(MakeWaiting("outsider"), 9, 90, true)},
                                false, 0, {"member"});
  ExpectMemory(c, 9, 90);
}

TEST(SourceTest, ALoneStepBesideAVouchedOneIsDropped) {
  const SourceChoice c =
      Choose({WithState(MakeWaiting("a"), 8, 80, false), WithState(MakeWaiting("b"), 7, 70, true)});
  ExpectMemory(c, 7, 70);
  EXPECT_THAT(c.why, HasSubstr("step 8"));
}

TEST(SourceTest, ALoneStepBesideAnUnvouchedPredecessorIsDroppedToo) {
  // Whoever applied 8 saw the table in which all agreed on 7.
  ExpectMemory(Choose({WithState(MakeWaiting("a"), 8, 80, false),
                       WithState(MakeWaiting("b"), 7, 70, false)}),
               7, 70);
}

TEST(SourceTest, TwoWithOneDigestVouchForEachOther) {
  ExpectMemory(
      Choose({WithState(MakeWaiting("a"), 8, 80, false), WithState(MakeWaiting("b"), 8, 80, false),
              WithState(MakeWaiting("c"), 7, 70, true)}),
      8, 80);
}

TEST(SourceTest, WhatAnotherSawAgreedIsVouched) {
  Waiting a = WithState(MakeWaiting("a"), 9, 90, false);
  a.offer.agreed_step = 8;
  a.offer.agreed_digest = 80;
  ExpectMemory(Choose({a, WithState(MakeWaiting("b"), 8, 80, false),
                       WithState(MakeWaiting("c"), 7, 70, true)}),
               8, 80);
}

TEST(SourceTest, ALoneSurvivorOfTheGenerationGoesOnWithWhatItHas) {
  ExpectMemory(Choose({WithState(MakeWaiting("a"), 501, 1, false)}), 501, 1);
  // A sleeper that wakes with an old vouched state does not set the run back by hundreds of steps.
  ExpectMemory(
      Choose({WithState(MakeWaiting("a"), 501, 1, false), WithState(MakeWaiting("z"), 3, 2, true)},
             false, 0, {"a"}),
      501, 1);
  // A stranger's lone state does not count against a vouched one.
  ExpectMemory(
      Choose({WithState(MakeWaiting("s"), 501, 1, false), WithState(MakeWaiting("b"), 3, 2, true)},
             false, 0, {"b"}),
      3, 2);
}

TEST(SourceTest, DifferentDigestsAtOneStepNeedAStrictMajority) {
  ExpectMemory(
      Choose({WithState(MakeWaiting("a"), 8, 1, true), WithState(MakeWaiting("b"), 8, 2, true),
              WithState(MakeWaiting("c"), 8, 2, true)}),
      8, 2);
  const Waiting a = Holds(WithState(MakeWaiting("a"), 8, 1, true), MakeCheckpoint(4, {{0, 10}}));
  const SourceChoice tie = Choose({a, WithState(MakeWaiting("b"), 8, 2, true)});
  EXPECT_EQ(tie.source, Source::kCheckpoint);
  EXPECT_EQ(tie.step, 4);
  EXPECT_THAT(tie.why, HasSubstr("without a majority"));
}

TEST(SourceTest, ATieWithoutACheckpointRefusesAndNeverStartsAtZero) {
  const SourceChoice c =
      Choose({WithState(MakeWaiting("a"), 8, 1, true), WithState(MakeWaiting("b"), 8, 2, true)});
  EXPECT_EQ(c.kind, Kind::kRefuse);
}

TEST(SourceTest, AStaleMemoryDoesNotBeatADisk) {
  const SourceChoice c =
      Choose({Holds(WithState(MakeWaiting("z"), 100, 1, true), MakeCheckpoint(600, {{0, 10}}))});
  EXPECT_EQ(c.source, Source::kCheckpoint);
  EXPECT_EQ(c.step, 600);
}

TEST(SourceTest, TheUnionOfWhatTheJoinersHoldCovers) {
  const SourceChoice c = Choose({Holds(MakeWaiting("a"), MakeCheckpoint(20, {{0, 5}})),
                                 Holds(MakeWaiting("b", "b"), MakeCheckpoint(20, {{4, 10}}))});
  EXPECT_EQ(c.source, Source::kCheckpoint);
  EXPECT_EQ(c.digest, 1020u);
}

TEST(SourceTest, AnIncompleteNewestIsWaitedForByNameThenPassedOverAloud) {
  HeldCheckpoint newest = MakeCheckpoint(20, {{0, 5}});
  newest.hosts = {"a", "host-3"};
  const std::vector<Waiting> joiners = {
      Holds(Holds(MakeWaiting("a"), newest), MakeCheckpoint(10, {{0, 10}}))};
  const SourceChoice wait = Choose(joiners, /*may_wait=*/true);
  EXPECT_EQ(wait.kind, Kind::kWait);
  EXPECT_THAT(wait.why, HasSubstr("host-3"));
  EXPECT_THAT(wait.why, testing::Not(HasSubstr("missing: a")));
  const SourceChoice older = Choose(joiners, /*may_wait=*/false);
  EXPECT_EQ(older.step, 10);
  EXPECT_THAT(older.why, HasSubstr("step 20"));
}

TEST(SourceTest, ProgressWithoutAStateWaitsThenRefuses) {
  Waiting w = MakeWaiting("a");
  w.offer.progress = 40;
  EXPECT_EQ(Choose({w}, true).kind, Kind::kWait);
  EXPECT_EQ(Choose({w}, false).kind, Kind::kRefuse);
  EXPECT_THAT(Choose({w}, false).why, HasSubstr("step 40"));
  // Progress that only the record proves counts as well, and so does a checkpoint of step 0 that
  // cannot be read.
  EXPECT_EQ(Choose({MakeWaiting("a")}, false, 40).kind, Kind::kRefuse);
  EXPECT_EQ(Choose({Holds(MakeWaiting("a"), MakeCheckpoint(0, {}))}).kind, Kind::kRefuse);
}

TEST(SourceTest, OnlyTheNewestBranchCounts) {
  Waiting old = Holds(WithState(MakeWaiting("old"), 500, 1, true), MakeCheckpoint(480, {{0, 10}}));
  Waiting now = Holds(MakeWaiting("new"), MakeCheckpoint(100, {{0, 5}}));  // the fork's parent
  now.offer.branch = 1;
  HeldCheckpoint same = MakeCheckpoint(100, {{5, 10}});
  old.offer.checkpoints.push_back(same);
  const SourceChoice c = Choose({old, now});
  EXPECT_EQ(c.source, Source::kCheckpoint);
  EXPECT_EQ(c.step, 100);
}

TEST(SourceTest, OfTwoBranchesTheNewerCheckpointIsTakenThoughItsStepIsLower) {
  Waiting w = Holds(MakeWaiting("a"), MakeCheckpoint(100, {{0, 10}}));
  HeldCheckpoint branch1 = MakeCheckpoint(60, {{0, 10}});
  branch1.branch = 1;
  w.offer.branch = 1;
  const SourceChoice c = Choose({Holds(w, branch1)});
  EXPECT_EQ(c.branch, 1u);
  EXPECT_EQ(c.step, 60);
}

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

void ExpectEachOnce(const std::vector<Ranges>& held, const std::vector<Ranges>& given,
                    int64_t chunks) {
  std::vector<int> times(static_cast<size_t>(chunks), 0);
  for (size_t i = 0; i < given.size(); ++i) {
    for (const auto& [first, last] : given[i]) {
      for (int64_t c = first; c < last; ++c) {
        ++times[static_cast<size_t>(c)];
        const bool holds = std::any_of(held[i].begin(), held[i].end(),
                                       [c](const auto& r) { return r.first <= c && c < r.second; });
        EXPECT_TRUE(holds) << "reader " << i << " chunk " << c;
      }
    }
  }
  for (int64_t c = 0; c < chunks; ++c) EXPECT_EQ(times[static_cast<size_t>(c)], 1) << "chunk " << c;
}

TEST(AssignTest, EqualHoldersShareEvenly) {
  const std::vector<Ranges> held = {{{0, 10}}, {{0, 10}}, {{0, 10}}};
  const auto given = AssignRanges(held, 10);
  ExpectEachOnce(held, given, 10);
  EXPECT_THAT(given, ElementsAre(Ranges{{0, 4}}, Ranges{{4, 7}}, Ranges{{7, 10}}));
}

TEST(AssignTest, WhoHoldsWhatNobodyElseHasReadsLessOfTheRest) {
  const std::vector<Ranges> held = {{{0, 6}}, {{4, 10}}};
  const auto given = AssignRanges(held, 10);
  ExpectEachOnce(held, given, 10);
  EXPECT_THAT(given, ElementsAre(Ranges{{0, 5}}, Ranges{{5, 10}}));
}

TEST(AssignTest, RandomHoldingsGiveEachChunkOnce) {
  uint64_t seed = 1;
  const auto draw = [&seed](int64_t n) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int64_t>((seed >> 33) % static_cast<uint64_t>(n));
  };
  for (int round = 0; round < 200; ++round) {
    const int64_t chunks = 1 + draw(40);
    std::vector<Ranges> held(static_cast<size_t>(1 + draw(6)));
    for (Ranges& ranges : held) {
      for (int64_t k = draw(4); k > 0; --k) {
        const int64_t first = draw(chunks);
        ranges.emplace_back(first, first + 1 + draw(chunks - first));
      }
    }
    held[0].emplace_back(0, chunks);
    ExpectEachOnce(held, AssignRanges(held, chunks), chunks);
  }
}

TEST(AssignTest, CoversFindsHoles) {
  EXPECT_TRUE(Covers({{5, 10}, {0, 5}}, 10));
  EXPECT_FALSE(Covers({{6, 10}, {0, 5}}, 10));
  EXPECT_FALSE(Covers({{0, 9}}, 10));
  EXPECT_TRUE(Covers({}, 0));
}

}  // namespace
}  // namespace holdfast::rendezvous
