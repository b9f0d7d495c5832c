// Membership against a real Redis: founding, death, joining, draining, ends.
#include "rendezvous/membership.h"

#include <nlohmann/json.hpp>

#include "runtime/base/clock.h"
#include "tests/rendezvous/fleet.h"

namespace holdfast::rendezvous {
namespace {

std::unique_ptr<Observer> Observe(const RedisServer& server,
                                  const std::string& machine = "host-a") {
  auto observer =
      Observer::Connect(TestOptions(server, "observer", 0, machine), Deadline::After(20'000));
  EXPECT_TRUE(observer.ok()) << observer.status();
  return observer.ok() ? *std::move(observer) : nullptr;
}

TEST(MembershipTest, FourStartedTogetherFormOneWorldAtOnce) {
  RedisServer server;
  Workers workers = StartWorkers(server, 4);
  const Roster roster = FormWorld(workers, TestOffer(4));
  EXPECT_EQ(roster.generation, 1u);
  EXPECT_EQ(roster.source, Source::kFresh);
  EXPECT_FALSE(roster.secret.empty());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(roster.members[static_cast<size_t>(i)].id, Cat("w", i));
}

TEST(MembershipTest, TheExpectationIsNotWaitedForForever) {
  RedisServer server;
  Workers workers = StartWorkers(server, 2);
  const int64_t begin = BootMs();
  const Roster roster = FormWorld(workers, TestOffer(3));
  EXPECT_EQ(roster.members.size(), 2u);
  EXPECT_GE(BootMs() - begin, 1900);
}

TEST(MembershipTest, ACertifiedDeathReseatsTheSurvivorsInOrder) {
  RedisServer server;
  Workers workers = StartWorkers(server, 4);
  FormWorld(workers, TestOffer(4));
  auto observer = Observe(server);
  workers.erase(workers.begin() + 1);  // its threads end as a killed process's would: no farewell
  const int64_t begin = BootMs();
  ASSERT_TRUE(observer->CertifyDeath("w1", "SIGKILL").ok());
  const Roster roster = FormWorld(workers, StateOffer(10));
  const int64_t took_ms = BootMs() - begin;
  RecordProperty("reseal_ms", static_cast<int>(took_ms));
  std::printf("reseal among 3 after a certified death: %d ms\n", static_cast<int>(took_ms));
  EXPECT_LT(took_ms, 10'000);
  EXPECT_EQ(roster.generation, 2u);
  EXPECT_EQ(roster.source, Source::kMemory);
  EXPECT_EQ(roster.step, 10);
  EXPECT_EQ(roster.members[0].id, "w0");
  EXPECT_EQ(roster.members[1].id, "w2");
  EXPECT_EQ(roster.members[2].id, "w3");
  EXPECT_TRUE(roster.members[1].has_state);
}

TEST(MembershipTest, WithoutACertificateTheLapsedLeaseLetsTheSurvivorsGoOn) {
  RedisServer server;
  Workers workers = StartWorkers(server, 3);
  FormWorld(workers, TestOffer(3));
  workers.pop_back();
  const Roster roster = FormWorld(workers, StateOffer(10));
  EXPECT_EQ(roster.members.size(), 2u);
}

TEST(MembershipTest, ANewcomerIsNoticedAndTakenInAtTheEnd) {
  RedisServer server;
  Workers workers = StartWorkers(server, 2);
  FormWorld(workers, TestOffer(2));
  auto newcomer = std::make_unique<Worker>(TestOptions(server, "n", 0, "host-0"));
  auto joined = newcomer->JoinAsync(TestOffer());
  ASSERT_TRUE(Eventually([&] { return workers[0]->membership->notices().joiners == 1; }));
  EXPECT_FALSE(workers[0]->membership->notices().round_open);
  auto a = workers[0]->JoinAsync(StateOffer(5));
  ASSERT_TRUE(Eventually([&] { return workers[1]->membership->notices().round_open; }));
  auto b = workers[1]->JoinAsync(StateOffer(5));
  const auto roster = joined.get();
  ASSERT_TRUE(roster.ok()) << roster.status();
  ASSERT_TRUE(a.get().ok());
  ASSERT_TRUE(b.get().ok());
  EXPECT_EQ(roster->rank, 2);
  EXPECT_EQ(roster->step, 5);
  EXPECT_FALSE(roster->members[2].has_state);
  EXPECT_TRUE(roster->members[0].has_state);
}

TEST(MembershipTest, LeavingEndsWhenTheOthersHaveSealedTheirNext) {
  RedisServer server;
  Workers workers = StartWorkers(server, 3);
  FormWorld(workers, TestOffer(3));
  auto leaving = std::async(std::launch::async,
                            [&] { return workers[2]->membership->Leave(Deadline::After(20'000)); });
  ASSERT_TRUE(Eventually([&] { return workers[0]->membership->notices().round_open; }));
  auto a = workers[0]->JoinAsync(StateOffer(5)), b = workers[1]->JoinAsync(StateOffer(5));
  EXPECT_TRUE(leaving.get().ok());
  const auto roster = a.get();
  ASSERT_TRUE(roster.ok()) << roster.status();
  EXPECT_EQ(roster->members.size(), 2u);
  EXPECT_TRUE(b.get().ok());
}

TEST(MembershipTest, AllLeaveAtOnceAndNothingStaysBehind) {
  RedisServer server;
  Workers workers = StartWorkers(server, 3);
  FormWorld(workers, TestOffer(3));
  std::vector<std::future<absl::Status>> leaving;
  for (auto& w : workers) {
    leaving.push_back(std::async(std::launch::async,
                                 [&w] { return w->membership->Leave(Deadline::After(20'000)); }));
  }
  for (auto& l : leaving) EXPECT_TRUE(l.get().ok());
  workers.clear();
  auto observer = Observe(server);
  ASSERT_TRUE(observer->CleanUp("host-a").ok());
  EXPECT_THAT(server.Keys(), testing::ElementsAre("holdfast:{test-run}:ended"));
  EXPECT_GT(server.Admin({"PTTL", "holdfast:{test-run}:ended"}).integer, 0);
  // A later start of the same run goes on above the old generation numbers.
  Workers again = StartWorkers(server, 1);
  EXPECT_EQ(FormWorld(again, TestOffer(1)).generation, 2u);
}

TEST(MembershipTest, EveryKeyExpires) {
  RedisServer server;
  Workers workers = StartWorkers(server, 2);
  FormWorld(workers, TestOffer(2));
  workers[0]->membership->SetStatus("training", 3, 2, 1.5);
  for (const std::string& key : server.Keys()) {
    EXPECT_GT(server.Admin({"PTTL", key}).integer, 0) << key;
  }
}

TEST(MembershipTest, AFinishedRunTellsNewcomers) {
  RedisServer server;
  Workers workers = StartWorkers(server, 2);
  FormWorld(workers, TestOffer(2));
  ASSERT_TRUE(workers[0]->membership->Finish(2000, 0xABC).ok());
  ASSERT_TRUE(workers[1]->membership->Finish(2000, 0xABC).ok());  // again: harmless
  ASSERT_TRUE(Eventually([&] { return workers[1]->membership->notices().finished; }));
  Worker late(TestOptions(server, "late", 9));
  auto status = late.JoinAsync(TestOffer()).get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("finished at step 2000"));
  EXPECT_EQ(late.membership->notices().finished_step, 2000);
  EXPECT_EQ(late.membership->notices().finished_digest, 0xABCu);
  for (auto& w : workers) EXPECT_TRUE(w->membership->Leave(Deadline::After(5000)).ok());
  workers.clear();
  auto observer = Observe(server);
  ASSERT_TRUE(observer->CleanUp("host-a").ok());
  Worker later(TestOptions(server, "later", 9));
  EXPECT_EQ(later.JoinAsync(TestOffer()).get().status().code(), absl::StatusCode::kAlreadyExists);
  MembershipOptions further =
      TestOptions(server, "further", 9);  // a higher last step goes on from there
  further.target_step = 3000;
  Worker goes_on(further);
  EXPECT_TRUE(goes_on.JoinAsync(StateOffer(2000)).get().ok());
}

TEST(MembershipTest, AboveMaxWorkersThereAreSparesThatStepIn) {
  RedisServer server;
  Workers workers;
  for (int i = 0; i < 3; ++i) {
    MembershipOptions o = TestOptions(server, Cat("w", i), i);
    o.max_workers = 2;
    workers.push_back(std::make_unique<Worker>(o));
  }
  std::vector<std::future<absl::StatusOr<Roster>>> joins;
  for (auto& w : workers) joins.push_back(w->JoinAsync(TestOffer(3)));
  ASSERT_TRUE(joins[0].get().ok());
  ASSERT_TRUE(joins[1].get().ok());
  EXPECT_EQ(joins[2].wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  EXPECT_EQ(workers[0]->membership->notices().joiners, 0);
  auto observer = Observe(server);
  workers[1].reset();
  ASSERT_TRUE(observer->CertifyDeath("w1", "SIGKILL").ok());
  auto survivor = workers[0]->JoinAsync(StateOffer(7));
  const auto spare = joins[2].get();
  ASSERT_TRUE(spare.ok()) << spare.status();
  EXPECT_EQ(spare->rank, 1);
  EXPECT_TRUE(survivor.get().ok());
}

TEST(MembershipTest, OtherSettingsAndOtherBitsAreRefusedByName) {
  RedisServer server;
  Workers workers = StartWorkers(server, 1);
  FormWorld(workers, TestOffer(1));
  Offer other = TestOffer();
  other.fingerprint = std::string("g");
  other.fingerprint_text = std::string("learning_rate = 0.2\nseed = 7\n");
  Worker stranger(TestOptions(server, "s", 5));
  auto refused = stranger.JoinAsync(other);
  Offer class2 = TestOffer();
  class2.probe = std::string("q");
  class2.compute_class = std::string("avx512");
  Worker machine2(TestOptions(server, "m", 6));
  auto refused2 = machine2.JoinAsync(class2);
  ASSERT_TRUE(Eventually([&] { return workers[0]->membership->notices().joiners == 2; }));
  EXPECT_TRUE(workers[0]->JoinAsync(StateOffer(3)).get().ok());
  const absl::Status a = refused.get().status(), b = refused2.get().status();
  EXPECT_EQ(a.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(a.message()),
              testing::HasSubstr("learning_rate is 0.2 here, 0.1 in the run"));
  EXPECT_THAT(std::string(b.message()), testing::HasSubstr("avx512"));
}

TEST(MembershipTest, StopReachesAllAndIsServedOnce) {
  RedisServer server;
  Workers workers = StartWorkers(server, 2);
  FormWorld(workers, TestOffer(2));
  auto observer = Observe(server);
  ASSERT_TRUE(observer->RequestStop("a person asked").ok());
  for (auto& w : workers) {
    ASSERT_TRUE(Eventually([&] { return w->membership->notices().stop; }));
  }
  Worker late(TestOptions(server, "late", 9));
  EXPECT_EQ(late.JoinAsync(TestOffer()).get().status().code(), absl::StatusCode::kAlreadyExists);
  // Killed before they could clean up: the next start is not bound by the old wish.
  workers.clear();
  ASSERT_TRUE(observer->CertifyMachine("host-a", "its supervisor was killed").ok());
  Worker next(TestOptions(server, "next", 0));
  const auto roster = next.JoinAsync(StateOffer(4)).get();
  ASSERT_TRUE(roster.ok()) << roster.status();
  EXPECT_FALSE(next.membership->notices().stop);
}

TEST(MembershipTest, ATotalLossWithCertificatesDoesNotWait) {
  RedisServer server;
  Workers workers = StartWorkers(server, 3);
  FormWorld(workers, TestOffer(3));
  workers.clear();
  auto observer = Observe(server);
  Worker early(TestOptions(server, "n0", 0));
  auto first = early.JoinAsync(TestOffer(2));
  EXPECT_EQ(first.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(observer->CertifyDeath(Cat("w", i), "SIGKILL").ok());
  Worker second(TestOptions(server, "n1", 1));
  auto joined = second.JoinAsync(TestOffer(2));
  const auto roster = first.get();
  ASSERT_TRUE(roster.ok()) << roster.status();
  EXPECT_EQ(roster->members.size(), 2u);
  EXPECT_EQ(roster->generation, 2u);
  EXPECT_TRUE(joined.get().ok());
}

TEST(MembershipTest, StatusNamesMembersAndWaiting) {
  RedisServer server;
  Workers workers = StartWorkers(server, 2);
  FormWorld(workers, TestOffer(2));
  workers[0]->membership->SetStatus("training", 17, 2, 2.5);
  auto observer = Observe(server);
  nlohmann::json json;
  ASSERT_TRUE(Eventually([&] {
    json = nlohmann::json::parse(*observer->StatusJson());
    return json["members"][0].value("step", 0) == 17;
  }));
  EXPECT_EQ(json["members"].size(), 2u);
  EXPECT_EQ(json["members"][1]["machine"], "host-a");
  EXPECT_TRUE(json["members"][1]["confirmed"]);
  EXPECT_EQ(json["generation"], 1);
  EXPECT_TRUE(json["finished"].is_null());
  EXPECT_EQ(json.dump().find(server.password()), std::string::npos);
}

TEST(MembershipTest, WhoCannotBeReachedIsLeftOutNextTime) {
  RedisServer server;
  Workers workers = StartWorkers(server, 2);
  FormWorld(workers, TestOffer(2));
  Worker bad(TestOptions(server, "bad", 7));
  std::atomic<bool> never{false};
  auto offered = std::async(std::launch::async, [&] {
    return bad.membership->Join(TestOffer(), "test", never, Deadline::After(20'000));
  });
  ASSERT_TRUE(Eventually([&] { return workers[0]->membership->notices().joiners == 1; }));
  std::vector<std::future<absl::StatusOr<Roster>>> joins;
  for (auto& w : workers) {
    joins.push_back(std::async(std::launch::async, [&w, &never] {
      return w->membership->Join(StateOffer(5), "join", never, Deadline::After(20'000));
    }));
  }
  std::vector<Roster> rosters;
  for (auto& j : joins) rosters.push_back(*j.get());
  ASSERT_TRUE(offered.get().ok());
  ASSERT_EQ(rosters[0].members.size(), 3u);
  // Nobody reaches rank 2; it joins again like the others.
  for (size_t i = 0; i < 2; ++i) workers[i]->membership->ReportFailedBuild(rosters[i], {2});
  auto waiting = bad.JoinAsync(TestOffer());
  const Roster next = FormWorld(workers, StateOffer(5));
  EXPECT_EQ(next.members.size(), 2u);
  EXPECT_THAT(next.note, testing::HasSubstr("host-a/7"));
  EXPECT_EQ(workers[0]->membership->notices().joiners, 0);  // held back: no reason for a round
  bad.cancel = true;
  EXPECT_EQ(waiting.get().status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace holdfast::rendezvous
