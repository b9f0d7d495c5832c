// When a round may be sealed and with whom: every rule of PROTOCOL.md, "Sealing".
#include "rendezvous/seal.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/machine.h"
#include "rendezvous/source.h"
#include "tests/rendezvous/builders.h"

namespace holdfast::rendezvous {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Kind = Decision::Kind;

constexpr int64_t kNow = 1'000'000;

Observed LongHere() { return {kNow - 100'000, kNow - 100'000}; }
Observed JustHere() { return {kNow, kNow + 3000}; }

Decision Decide(const Record& r, Observed observed = LongHere(), SealOptions options = {}) {
  return DecideSeal(r, observed, options, kNow);
}

std::vector<std::string> Ids(const Decision& d) {
  std::vector<std::string> ids;
  for (const Member& m : d.plan.sealed.members) ids.push_back(m.id);
  return ids;
}

Waiting Held(const std::string& id, int64_t step = 5) {
  return WithState(MakeWaiting(id), step, 55, true);
}

TEST(SealTest, NeverWithoutAMemberWhileOneMayLive) {
  // Both members are cut from Redis and train on; a newcomer must not take their run.
  Record r = MakeRecord(1, {"a", "b"});
  r.lease_left_ms.clear();
  AddJoin(&r, MakeWaiting("n"));
  const Decision d = Decide(r);
  EXPECT_EQ(d.kind, Kind::kWait);
  EXPECT_TRUE(d.blocked);
  EXPECT_THAT(d.why, HasSubstr("a/0, a/1"));
}

TEST(SealTest, WithoutAnyMemberWhenAllAreCertified) {
  Record r = MakeRecord(1, {"a", "b"});
  r.deaths = {{"a", "SIGKILL"}, {"b", "SIGKILL"}};
  AddJoin(&r, MakeWaiting("n"));
  const Decision d = Decide(r);
  EXPECT_EQ(d.kind, Kind::kSeal);
  EXPECT_EQ(d.plan.generation, 2u);
  EXPECT_TRUE(d.plan.cold);
  EXPECT_FALSE(d.plan.take_over);
}

TEST(SealTest, WithoutAnyMemberAfterTheOutageOnlyIfTheStoreStillSaysSo) {
  Record r = MakeRecord(1, {"a", "b"});
  r.lease_left_ms.clear();
  r.alive = false;
  AddJoin(&r, MakeWaiting("n"));
  const Decision d = Decide(r);
  EXPECT_EQ(d.kind, Kind::kSeal);
  EXPECT_TRUE(d.plan.take_over);  // the script looks once more
}

TEST(SealTest, AMemberWaitsForTheOthersUntilLeaseOrCertificate) {
  Record r = MakeRecord(1, {"a", "b", "c"});
  AddJoin(&r, Held("a"));
  EXPECT_EQ(Decide(r).kind, Kind::kWait);
  r.deaths["b"] = std::string("SIGKILL");
  EXPECT_THAT(Decide(r).why, HasSubstr("a/2"));
  r.lease_left_ms.erase("c");
  const Decision d = Decide(r);
  EXPECT_EQ(d.kind, Kind::kSeal);
  EXPECT_THAT(Ids(d), ElementsAre("a"));
  EXPECT_FALSE(d.plan.cold);
}

TEST(SealTest, AMissingLeaseDoesNotCountRightAfterTheStoreWasAway) {
  Record r = MakeRecord(1, {"a", "b"});
  AddJoin(&r, Held("a"));
  r.lease_left_ms.erase("b");
  const Decision d = Decide(r, JustHere());
  EXPECT_EQ(d.kind, Kind::kWait);
  EXPECT_EQ(d.until_ms, kNow + 3000);
}

TEST(SealTest, AnElapsedLeaseAloneEvictsNobodyWhoIsInTheRound) {
  Record r = MakeRecord(1, {"a", "b"});
  AddJoin(&r, Held("a"));
  AddJoin(&r, Held("b"));
  r.lease_left_ms.erase("b");
  EXPECT_EQ(Decide(r, JustHere()).kind, Kind::kWait);
}

TEST(SealTest, ADeathInTheMiddleOfTheRoundCounts) {
  Record r = MakeRecord(1, {"a", "b"});
  AddJoin(&r, Held("a"));
  AddJoin(&r, Held("b"));
  AddJoin(&r, MakeWaiting("n"));
  r.deaths["b"] = std::string("SIGKILL");
  r.deaths["n"] = std::string("SIGKILL");
  const Decision d = Decide(r);
  EXPECT_THAT(Ids(d), ElementsAre("a"));
  EXPECT_THAT(d.plan.dropped, testing::UnorderedElementsAre("b", "n"));
}

TEST(SealTest, SurvivorsKeepTheirOrderNewcomersFollowByPlace) {
  Record r = MakeRecord(4, {"z", "y", "x"});
  r.deaths["y"] = std::string("SIGKILL");
  AddJoin(&r, Held("x"));
  AddJoin(&r, Held("z"));
  AddJoin(&r, MakeWaiting("n1", "b", 1));
  AddJoin(&r, MakeWaiting("n2", "b", 0));
  AddJoin(&r, MakeWaiting("n3", "a", 9));
  EXPECT_THAT(Ids(Decide(r)), ElementsAre("z", "x", "n3", "n2", "n1"));
}

TEST(SealTest, WhoLeftOnRequestIsNotWaitedFor) {
  Record r = MakeRecord(1, {"a", "b"});
  AddJoin(&r, Held("a"));
  r.deaths["b"] = kLeftOnRequest;
  EXPECT_EQ(Decide(r).kind, Kind::kSeal);
}

TEST(SealTest, BelowMinWorkersItWaitsAndSaysHowManyAreMissing) {
  Record r = MakeRecord(1, {"a", "b", "c"});
  r.deaths = {{"b", "x"}, {"c", "x"}};
  AddJoin(&r, Held("a"));
  SealOptions o;
  o.min_workers = 3;
  const Decision d = Decide(r, LongHere(), o);
  EXPECT_EQ(d.kind, Kind::kWait);
  EXPECT_THAT(d.why, HasSubstr("2 more needed"));
}

TEST(SealTest, AboveMaxWorkersTheRestAreSpares) {
  Record r = MakeRecord(1, {"a"});
  AddJoin(&r, Held("a"));
  AddJoin(&r, MakeWaiting("n1", "b", 0));
  AddJoin(&r, MakeWaiting("n2", "b", 1));
  SealOptions o;
  o.max_workers = 2;
  EXPECT_THAT(Ids(Decide(r, LongHere(), o)), ElementsAre("a", "n1"));
}

TEST(SealTest, ASpareThatAloneHoldsTheStateTakesAPlace) {
  Record r = MakeRecord(0, {});
  AddJoin(&r, MakeWaiting("n1", "a", 0));
  AddJoin(&r, MakeWaiting("n2", "a", 1));
  Waiting holder = MakeWaiting("n3", "a", 2);
  holder.offer.checkpoints.push_back(MakeCheckpoint(20, {{0, 10}}));
  AddJoin(&r, holder);
  SealOptions o;
  o.max_workers = 2;
  const Decision d = Decide(r, LongHere(), o);
  EXPECT_THAT(Ids(d), ElementsAre("n1", "n3"));
  EXPECT_THAT(d.plan.sealed.members[1].ranges,
              ElementsAre(std::make_pair(int64_t{0}, int64_t{10})));
}

TEST(SealTest, SpareOnlyIsTakenOnlyToReachMinWorkers) {
  Record r = MakeRecord(1, {"a"});
  AddJoin(&r, Held("a"));
  Waiting spare = MakeWaiting("n", "b");
  spare.offer.spare_only = true;
  AddJoin(&r, spare);
  EXPECT_THAT(Ids(Decide(r)), ElementsAre("a"));
  SealOptions o;
  o.min_workers = 2;
  EXPECT_THAT(Ids(Decide(r, LongHere(), o)), ElementsAre("a", "n"));
}

TEST(SealTest, AFirstRoundGathersThoseStartedTogether) {
  Record r = MakeRecord(0, {});
  Waiting w = MakeWaiting("n1");
  w.offer.expected_local_workers = 2;
  AddJoin(&r, w);
  Observed observed{kNow - 100, kNow + 3000};
  const Decision wait = Decide(r, observed);
  EXPECT_EQ(wait.kind, Kind::kWait);
  EXPECT_EQ(wait.until_ms, kNow + 1900);
  w.id = std::string("n2");
  AddJoin(&r, w);
  EXPECT_EQ(Decide(r, observed).kind, Kind::kSeal);
  r.joins.erase("n2");
  observed.open_since_ms = kNow - 2000;
  EXPECT_EQ(Decide(r, observed).kind, Kind::kSeal);
}

TEST(SealTest, OtherSettingsAreRefusedByTheirNames) {
  Record r = MakeRecord(1, {"a"});
  AddJoin(&r, Held("a"));
  Waiting w = MakeWaiting("n");
  w.offer.fingerprint = std::string("g");
  w.offer.fingerprint_text = std::string("seed = 8\n");
  AddJoin(&r, w);
  const Decision d = Decide(r);
  ASSERT_EQ(d.kind, Kind::kRefuse);
  ASSERT_EQ(d.refusals.size(), 1u);
  EXPECT_EQ(d.refusals[0].id, "n");
  EXPECT_THAT(d.refusals[0].why, HasSubstr("seed is 8 here, 7 in the run"));
}

TEST(SealTest, InAFirstRoundTheMajorityIsTheReference) {
  Record r = MakeRecord(0, {});
  Waiting odd = MakeWaiting("n0", "a", 0);
  odd.offer.probe = std::string("q");
  odd.offer.compute_class = std::string("avx512");
  AddJoin(&r, odd);
  AddJoin(&r, MakeWaiting("n1", "a", 1));
  AddJoin(&r, MakeWaiting("n2", "a", 2));
  const Decision d = Decide(r);
  ASSERT_EQ(d.kind, Kind::kRefuse);
  EXPECT_EQ(d.refusals[0].id, "n0");
  EXPECT_THAT(d.refusals[0].why, testing::AllOf(HasSubstr("avx512"), HasSubstr("avx2")));
}

TEST(SealTest, GenerationNumbersGoOnAboveAllThatIsKnown) {
  Record r = MakeRecord(0, {});
  Waiting w = MakeWaiting("n");
  w.known_generation = 17;
  AddJoin(&r, w);
  EXPECT_EQ(Decide(r).plan.generation, 18u);
}

TEST(SealTest, AnUnreachableNewcomerIsHeldBackAtOnceASurvivorAtItsSecondFailure) {
  Record r = MakeRecord(2, {"a", "b", "n"});
  r.sealed.newcomers = {"n"};
  r.confirmed.clear();
  Waiting a = Held("a"), b = Held("b");
  a.failed_generation = b.failed_generation = 2;
  a.unreachable = {"n"};
  b.unreachable = {"n"};
  AddJoin(&r, a);
  AddJoin(&r, b);
  AddJoin(&r, MakeWaiting("n"));
  r.store_ms = 50'000;
  const Decision d = Decide(r);
  EXPECT_THAT(Ids(d), ElementsAre("a", "b"));
  EXPECT_EQ(d.plan.sealed.failures.at("n").until_store_ms, 55'000);
  r.sealed.newcomers.clear();
  EXPECT_THAT(Ids(Decide(r)), ElementsAre("a", "b", "n"));
  r.sealed.failures["n"] = {1, 0};
  EXPECT_THAT(Ids(Decide(r)), ElementsAre("a", "b"));
}

TEST(SealTest, ANewcomerThatAloneDoesNotConfirmIsLeftOutNextTime) {
  Record r = MakeRecord(2, {"a", "b", "n"});
  r.sealed.newcomers = {"n"};
  r.confirmed = {"a", "b"};
  AddJoin(&r, Held("a"));
  AddJoin(&r, Held("b"));
  AddJoin(&r, MakeWaiting("n"));
  EXPECT_THAT(Ids(Decide(r)), ElementsAre("a", "b"));
  r.confirmed.clear();  // nobody did: it is nobody's fault
  EXPECT_THAT(Ids(Decide(r)), ElementsAre("a", "b", "n"));
}

TEST(SealTest, TheBackOffDoublesAndHasABound) {
  for (const auto& [count, seconds] :
       std::vector<std::pair<int, int64_t>>{{0, 5}, {1, 10}, {4, 80}, {5, 160}, {60, 160}}) {
    Record r = MakeRecord(2, {"a", "n"});
    r.sealed.newcomers = {"n"};
    r.confirmed = {"a"};
    r.sealed.failures["n"] = {count, 0};
    AddJoin(&r, Held("a"));
    AddJoin(&r, MakeWaiting("n"));
    EXPECT_EQ(Decide(r).plan.sealed.failures.at("n").until_store_ms, seconds * 1000) << count;
  }
}

TEST(SealTest, NoUsableStateRefusesAll) {
  Record r = MakeRecord(0, {});
  Waiting w = MakeWaiting("n");
  w.offer.progress = 30;
  AddJoin(&r, w);
  const Decision d = Decide(r);
  ASSERT_EQ(d.kind, Kind::kRefuse);
  EXPECT_THAT(d.refusals[0].why, HasSubstr("step 30"));
  EXPECT_THAT(d.refusals[0].why, ::testing::StartsWith(kNoUsableState));
  EXPECT_EQ(Decide(r, JustHere()).kind, Kind::kWait);  // restore_wait first
}

// Whoever knew of the progress lost its lease in the wait: what it said still counts.
TEST(SealTest, ProgressDoesNotEndWithTheLeaseOfWhoKnewOfIt) {
  Record r = MakeRecord(0, {});
  Waiting knows = MakeWaiting("knows");
  knows.offer.progress = 30;
  AddJoin(&r, knows);
  r.lease_left_ms.erase("knows");
  AddJoin(&r, MakeWaiting("empty"));
  const Decision d = Decide(r);
  ASSERT_EQ(d.kind, Kind::kRefuse) << "a start at step 0";
  EXPECT_THAT(d.refusals[0].why, HasSubstr("step 30"));
}

TEST(CoverTest, FewestThatCoverAllTiesToLaterRanks) {
  const std::vector<std::string> order = {"a", "b", "c", "d"};
  EXPECT_THAT(CoverBadPairs({{"a", "b"}}, order), ElementsAre("b"));
  EXPECT_THAT(CoverBadPairs({{"a", "b"}, {"a", "c"}, {"d", "a"}}, order), ElementsAre("a"));
  EXPECT_THAT(CoverBadPairs({{"a", "b"}, {"c", "d"}}, order), ElementsAre("b", "d"));
  EXPECT_THAT(CoverBadPairs({}, order), ElementsAre());
  std::vector<std::string> many;
  std::vector<std::pair<std::string, std::string>> pairs;
  for (int i = 0; i < 40; ++i) many.push_back(Cat("m", 100 + i));
  for (int i = 1; i < 40; ++i) pairs.emplace_back(many[static_cast<size_t>(i)], many[0]);
  EXPECT_THAT(CoverBadPairs(pairs, many), ElementsAre("m100"));
}

TEST(NoticeTest, JoinersAreThoseWhoCouldBeTakenIn) {
  Record r = MakeRecord(1, {"a", "b"});
  AddJoin(&r, MakeWaiting("n1"));
  AddJoin(&r, MakeWaiting("n2"));
  EXPECT_EQ(CountJoiners(r, 64), 2);
  EXPECT_EQ(CountJoiners(r, 3), 1);
  EXPECT_EQ(CountJoiners(r, 2), 0);
  r.lease_left_ms.erase("n2");
  EXPECT_EQ(CountJoiners(r, 64), 1);
  r.sealed.failures["n1"] = {1, 10};
  EXPECT_EQ(CountJoiners(r, 64), 0);
}

TEST(TrustTest, AnEmptiedReplacedOrOlderStoreIsNoticed) {
  Record r = MakeRecord(5, {"a"});
  Known known;
  std::string why;
  ASSERT_TRUE(Learn(r, &known, &why));
  EXPECT_TRUE(Learn(r, &known, &why));
  Record gone;
  gone.store_id = std::string("store");
  EXPECT_FALSE(Learn(gone, &known, &why));
  EXPECT_THAT(why, HasSubstr("lost the record"));
  Record other = r;
  other.store_id = other.founded_at = std::string("other");
  EXPECT_FALSE(Learn(other, &known, &why));
  Record older = MakeRecord(4, {"a"});
  EXPECT_FALSE(Learn(older, &known, &why));
  EXPECT_THAT(why, HasSubstr("generation 4"));
  Record twin = r;  // same number, other nonce: from another history
  twin.nonce ^= 1;
  EXPECT_FALSE(Learn(twin, &known, &why));
  Record restored = r;  // a newcomer meets a record that was copied from another store
  restored.founded_at = std::string("former");
  Known newcomer;
  EXPECT_FALSE(Learn(restored, &newcomer, &why));
  EXPECT_EQ(known.generation, 5u);
}

TEST(RecordTest, EncodingRoundTripsAndDamageIsAnError) {
  Waiting w = WithState(MakeWaiting("id", "host", 3), 9, 0xFFFFFFFFFFFFFFFFull, true);
  w.offer.checkpoints.push_back(MakeCheckpoint(5, {{0, 3}, {7, 9}}));
  w.offer.agreed_step = 8;
  w.unreachable = {"x"};
  w.failed_generation = 3;
  const std::string text = EncodeWaiting(w);
  const auto back = DecodeWaiting(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(EncodeWaiting(*back), text);
  EXPECT_EQ(back->offer.digest, 0xFFFFFFFFFFFFFFFFull);
  Record r = MakeRecord(3, {"a", "b"});
  r.sealed.failures["b"] = {2, 77};
  const std::string sealed = EncodeSealed(r.sealed);
  const auto sealed_back = DecodeSealed(sealed);
  ASSERT_TRUE(sealed_back.ok()) << sealed_back.status();
  EXPECT_EQ(EncodeSealed(*sealed_back), sealed);
  for (size_t cut = 0; cut < text.size(); cut += 7) {
    EXPECT_FALSE(DecodeWaiting(text.substr(0, cut)).ok()) << cut;
  }
  EXPECT_FALSE(DecodeWaiting("[]").ok());
  EXPECT_FALSE(DecodeWaiting("{\"id\": 3}").ok());
  EXPECT_FALSE(DecodeSealed("null").ok());
  EXPECT_FALSE(DecodeSealed("{}").ok());
}

}  // namespace
}  // namespace holdfast::rendezvous
