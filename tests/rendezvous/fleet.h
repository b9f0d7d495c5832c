// Workers of a test as threads: each joins, confirms, and waits for orders. Not thread-safe itself.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/membership.h"
#include "runtime/base/text.h"
#include "tests/rendezvous/redis_server.h"

namespace holdfast::rendezvous {

inline MembershipOptions TestOptions(const RedisServer& server, const std::string& id, int slot,
                                     const std::string& machine = "host-a") {
  MembershipOptions o;
  o.redis_port = server.port();
  o.redis_password = server.password();
  o.run = std::string("test-run");
  o.member_id = id;
  o.machine = machine;
  o.slot = slot;
  o.may_found = true;
  o.lease_ms = 1500;
  o.renew_ms = 100;
  return o;
}

inline Offer TestOffer(int expected = 0) {
  Offer o;
  o.address = std::string("127.0.0.1");
  o.port = 1000;
  o.fingerprint = std::string("f");
  o.fingerprint_text = std::string("learning_rate = 0.1\nseed = 7\n");
  o.probe = std::string("p");
  o.compute_class = std::string("avx2");
  o.expected_local_workers = expected;
  return o;
}

inline Offer StateOffer(int64_t step, uint64_t digest = 99) {
  Offer o = TestOffer();
  o.has_state = true;
  o.step = step;
  o.digest = digest;
  o.vouched = true;
  o.progress = step;
  return o;
}

struct Worker {
  explicit Worker(const MembershipOptions& o, std::shared_ptr<MapMarks> slot_marks = nullptr)
      : options(o), marks(slot_marks ? std::move(slot_marks) : std::make_shared<MapMarks>()) {
    auto started = Membership::Start(o, marks.get(), Deadline::After(20'000));
    EXPECT_TRUE(started.ok()) << started.status();
    if (started.ok()) membership = *std::move(started);
  }
  // In a thread of its own: Join, then Confirm.
  std::future<absl::StatusOr<Roster>> JoinAsync(const Offer& offer, int64_t deadline_ms = 30'000) {
    return std::async(std::launch::async, [this, offer, deadline_ms]() -> absl::StatusOr<Roster> {
      while (true) {
        auto roster = membership->Join(offer, "test", cancel, Deadline::After(deadline_ms));
        if (!roster.ok()) return roster;
        const absl::Status confirmed = membership->Confirm(*roster);
        if (confirmed.ok()) return roster;
        if (confirmed.code() != absl::StatusCode::kAborted) return confirmed;
      }
    });
  }
  MembershipOptions options;
  std::shared_ptr<MapMarks> marks;
  std::atomic<bool> cancel{false};
  std::unique_ptr<Membership> membership;
};

using Workers = std::vector<std::unique_ptr<Worker>>;

inline Workers StartWorkers(const RedisServer& server, int count) {
  Workers workers;
  for (int i = 0; i < count; ++i) {
    workers.push_back(std::make_unique<Worker>(TestOptions(server, Cat("w", i), i)));
  }
  return workers;
}

// All join at once; the rosters must agree. Gives that of worker 0.
inline Roster FormWorld(Workers& workers, const Offer& offer) {
  std::vector<std::future<absl::StatusOr<Roster>>> joins;
  for (auto& worker : workers) joins.push_back(worker->JoinAsync(offer));
  Roster first;
  for (size_t i = 0; i < joins.size(); ++i) {
    auto roster = joins[i].get();
    EXPECT_TRUE(roster.ok()) << roster.status();
    if (!roster.ok()) continue;
    if (i == 0) first = *roster;
    EXPECT_EQ(roster->generation, first.generation);
    EXPECT_EQ(roster->nonce, first.nonce);
    EXPECT_EQ(roster->members.size(), workers.size());
  }
  return first;
}

// Polls until `done` or 20 s are over.
template <typename F>
bool Eventually(const F& done) {
  const Deadline deadline = Deadline::After(20'000);
  while (!done()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace holdfast::rendezvous
