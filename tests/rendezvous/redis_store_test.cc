// The fences of each operation, on a real Redis: what comes late, twice, or from another history
// changes nothing.
#include "rendezvous/redis_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/digest.h"
#include "tests/rendezvous/builders.h"
#include "tests/rendezvous/redis_server.h"

namespace holdfast::rendezvous {
namespace {

class RedisStoreTest : public testing::Test {
 protected:
  RedisStoreTest() {
    RedisStoreOptions o;
    o.endpoint = server_.Endpoint();
    o.run = std::string("r");
    o.lease_ms = 60'000;
    o.redis_outage_ms = 60'000;
    store_ = MakeRedisStore(o);
    EXPECT_EQ(*store_->Found("uuid-1", "secret", 0), Outcome::kApplied);
  }
  Record Read(std::string_view asking = "") {
    auto record = store_->Read(asking, false);
    EXPECT_TRUE(record.ok()) << record.status();
    return *record;
  }
  Fence Now() {
    const Record r = Read();
    return {r.uuid, r.store_id, r.generation, r.nonce};
  }
  // Seals a generation of `ids`, which have joined.
  void SealOf(const std::vector<std::string>& ids) {
    for (const std::string& id : ids)
      ASSERT_EQ(*store_->Join(Now(), MakeWaiting(id)), Outcome::kApplied);
    const Record r = Read();
    ASSERT_EQ(*store_->Seal(Now(), r.seq, PlanOf(r, ids), RandomNonce()), Outcome::kApplied);
  }
  static SealPlan PlanOf(const Record& r, const std::vector<std::string>& ids) {
    SealPlan plan;
    plan.generation = r.generation + 1;
    for (const std::string& id : ids) {
      Member m;
      m.id = id;
      plan.sealed.members.push_back(m);
    }
    return plan;
  }

  RedisServer server_;
  std::unique_ptr<Store> store_;
};

TEST_F(RedisStoreTest, OnlyTheFirstFoundsAndItsRepeatIsHarmless) {
  EXPECT_EQ(*store_->Found("uuid-1", "secret", 0), Outcome::kApplied);
  EXPECT_EQ(*store_->Found("uuid-2", "other", 0), Outcome::kConflict);
  EXPECT_EQ(Read().secret, "secret");
}

TEST_F(RedisStoreTest, AnotherRunOrStoreIsUntrusted) {
  Fence other_run = Now(), other_store = Now();
  other_run.uuid = std::string("uuid-2");
  other_store.store_id = std::string("0123456789abcdef");
  for (const Fence& fence : {other_run, other_store}) {
    EXPECT_EQ(*store_->Join(fence, MakeWaiting("a")), Outcome::kUntrusted);
    EXPECT_EQ(*store_->Enter(fence, "a"), Outcome::kUntrusted);
    EXPECT_EQ(*store_->Seal(fence, 1, PlanOf(Read(), {"a"}), 7), Outcome::kUntrusted);
    EXPECT_EQ(*store_->Certify(fence, {"a"}, "x"), Outcome::kUntrusted);
    EXPECT_EQ(*store_->Finish(fence, 1, 1), Outcome::kUntrusted);
  }
  EXPECT_TRUE(Read().joins.empty());
}

TEST_F(RedisStoreTest, AJoinThatComesAfterASealOpensNothing) {
  SealOf({"a", "b"});
  const Fence first = Now();
  SealOf({"a", "b"});
  EXPECT_EQ(*store_->Join(first, MakeWaiting("a")), Outcome::kConflict);
  EXPECT_EQ(Read().round, 0u);
  EXPECT_TRUE(Read().joins.empty());
}

TEST_F(RedisStoreTest, AMembersJoinOpensTheRoundANewcomersDoesNot) {
  SealOf({"a"});
  const uint64_t seq = Read().seq;
  EXPECT_EQ(*store_->Join(Now(), MakeWaiting("n")), Outcome::kApplied);
  EXPECT_EQ(*store_->Join(Now(), MakeWaiting("n")), Outcome::kApplied);  // again
  EXPECT_EQ(Read().seq, seq + 1);
  EXPECT_EQ(Read().round, 0u);
  EXPECT_EQ(*store_->Join(Now(), MakeWaiting("a")), Outcome::kApplied);
  EXPECT_EQ(Read().round, 2u);
}

TEST_F(RedisStoreTest, ASealNeedsTheExactRecordAndMayBeSentTwice) {
  ASSERT_EQ(*store_->Join(Now(), MakeWaiting("a")), Outcome::kApplied);
  const Record seen = Read();
  const Fence fence = Now();
  ASSERT_EQ(*store_->Join(Now(), MakeWaiting("b")), Outcome::kApplied);
  EXPECT_EQ(*store_->Seal(fence, seen.seq, PlanOf(seen, {"a"}), 7), Outcome::kConflict);
  const uint64_t seq = Read().seq;
  EXPECT_EQ(*store_->Seal(fence, seq, PlanOf(seen, {"a"}), 7), Outcome::kApplied);
  EXPECT_EQ(*store_->Seal(fence, seq, PlanOf(seen, {"a"}), 7), Outcome::kApplied);
  EXPECT_EQ(*store_->Seal(fence, seq, PlanOf(seen, {"b"}), 8), Outcome::kConflict);
  const Record r = Read();
  EXPECT_EQ(r.generation, 1u);
  EXPECT_EQ(r.nonce, 7u);
  EXPECT_EQ(r.joins.count("a"), 0u);
  EXPECT_EQ(r.joins.count("b"), 1u);
}

TEST_F(RedisStoreTest, ATakeOverIsRefusedWhileAMemberHasRenewed) {
  SealOf({"a"});
  ASSERT_EQ(*store_->Join(Now(), MakeWaiting("n")), Outcome::kApplied);
  SealPlan plan = PlanOf(Read(), {"n"});
  plan.take_over = true;
  EXPECT_EQ(*store_->Seal(Now(), Read().seq, plan, 7), Outcome::kConflict);
  server_.Admin({"DEL", "holdfast:{r}:alive"});
  EXPECT_EQ(*store_->Seal(Now(), Read().seq, plan, 7), Outcome::kApplied);
}

TEST_F(RedisStoreTest, NobodyEntersLate) {
  SealOf({"a", "b"});
  const Fence first = Now();
  EXPECT_EQ(*store_->Enter(first, "a"), Outcome::kApplied);
  EXPECT_EQ(*store_->Enter(first, "a"), Outcome::kApplied);
  EXPECT_EQ(*store_->Enter(first, "n"), Outcome::kConflict);
  ASSERT_EQ(*store_->Join(first, MakeWaiting("a")), Outcome::kApplied);  // opens the next round
  EXPECT_EQ(*store_->Enter(first, "b"), Outcome::kConflict);
  EXPECT_EQ(*store_->Confirm(first, "b"), Outcome::kConflict);
  SealOf({"a"});
  EXPECT_EQ(*store_->Enter(first, "b"), Outcome::kConflict);
  EXPECT_EQ(*store_->Enter(Now(), "b"), Outcome::kConflict);
}

TEST_F(RedisStoreTest, TheDeadChangeNothing) {
  SealOf({"a", "b"});
  EXPECT_EQ(*store_->Certify(Now(), {"b"}, "SIGKILL"), Outcome::kApplied);
  const uint64_t seq = Read().seq;
  EXPECT_EQ(*store_->Certify(Now(), {"b"}, "SIGKILL"), Outcome::kApplied);
  EXPECT_EQ(Read().seq, seq);
  EXPECT_EQ(*store_->Join(Now(), MakeWaiting("b")), Outcome::kDead);
  EXPECT_EQ(*store_->Enter(Now(), "b"), Outcome::kDead);
  EXPECT_EQ(*store_->Confirm(Now(), "b"), Outcome::kDead);
  EXPECT_FALSE(store_->Beat(Now(), "b", "{}")->Leased("b"));
}

TEST_F(RedisStoreTest, CleaningUpSparesTheRunWhileAnybodyIsLeft) {
  SealOf({"a", "b"});
  EXPECT_EQ(*store_->Certify(Now(), {"a"}, "x"), Outcome::kApplied);
  EXPECT_EQ(*store_->CleanUp(Now(), {"a"}), Outcome::kApplied);
  EXPECT_TRUE(Read().exists);
  EXPECT_EQ(*store_->Leave(Now(), "b"), Outcome::kApplied);
  EXPECT_EQ(*store_->CleanUp(Now(), {"b"}), Outcome::kApplied);
  const Record r = Read();
  EXPECT_FALSE(r.exists);
  EXPECT_EQ(r.ended_uuid, "uuid-1");
  EXPECT_EQ(r.ended_generation, 1u);
  EXPECT_FALSE(r.finished);
}

TEST_F(RedisStoreTest, ADamagedRecordIsAnErrorNotACrash) {
  SealOf({"a"});
  for (const char* damage : {"", "{", "[]", "{\"members\": 3}", "\xff\xfe"}) {
    server_.Admin({"HSET", "holdfast:{r}:joins", "x", damage});
    EXPECT_EQ(store_->Read("", false).status().code(), absl::StatusCode::kDataLoss) << damage;
  }
  server_.Admin({"HDEL", "holdfast:{r}:joins", "x"});
  server_.Admin({"HSET", "holdfast:{r}:record", "generation", "many"});
  EXPECT_EQ(store_->Read("", false).status().code(), absl::StatusCode::kDataLoss);
  server_.Admin({"DEL", "holdfast:{r}:record"});
  server_.Admin({"SET", "holdfast:{r}:record", "not a hash"});
  EXPECT_FALSE(store_->Read("", false).ok());
}

}  // namespace
}  // namespace holdfast::rendezvous
