// What goes wrong among honest members: other tags, late members, aborts, ends out of order,
// generations out of order.
#include <atomic>
#include <chrono>
#include <tuple>

#include "runtime/base/text.h"
#include "tests/collectives/world.h"

namespace holdfast {
namespace {

using testing::Test;

// Waits until the member has seen an error.
absl::Status AwaitError(const Communicator& member) {
  const Deadline deadline = Long();
  while (member.Health().ok() && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return member.Health();
}

void ExpectAborted(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_NE(status.message().find(text), absl::string_view::npos) << status;
}

class OtherTags : public testing::TestWithParam<std::tuple<int64_t, Transport>> {};

TEST_P(OtherTags, IsAnErrorOnEveryMember) {
  World world(3, std::get<1>(GetParam()));
  const auto members = world.Build();
  world.Run([&](int r) {
    std::vector<int64_t> data(static_cast<size_t>(std::get<0>(GetParam())), r);
    const OpTag tag{7, r == 1 ? 1 : 0, 2};
    const absl::Status status = members[r]->Wait(members[r]->AllReduce(data, tag), Long());
    ExpectAborted(status, "step 7 attempt 1 bucket 2");
    EXPECT_FALSE(members[r]->Finished(2));
    EXPECT_GE(members[r]->FailedRank(), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(DirectAndBulk, OtherTags,
                         testing::Combine(testing::Values(4, 100'000),
                                          testing::Values(Transport::kTcp, Transport::kShm)));

// Over the links and over shared memory alike.
class Failure : public testing::TestWithParam<Transport> {};
INSTANTIATE_TEST_SUITE_P(Both, Failure, testing::Values(Transport::kTcp, Transport::kShm),
                         [](const auto& info) { return TransportText(info.param); });

TEST_P(Failure, OtherSizesAreAnErrorOnEveryMember) {
  for (const int64_t big : {10, 70'000}) {
    World world(3, GetParam());
    const auto members = world.Build();
    world.Run([&](int r) {
      std::vector<int64_t> data(r == 2 ? static_cast<size_t>(big) : 9, r);
      ExpectAborted(members[r]->Wait(members[r]->AllReduce(data, {}), Long()), "");
    });
  }
}

TEST_P(Failure, OtherOperationsAreAnErrorOnEveryMember) {
  for (const size_t count : {size_t{10}, size_t{100'000}}) {
    World world(4, GetParam());
    const auto members = world.Build();
    world.Run([&](int r) {
      std::vector<int64_t> data(count, r);
      const Ticket ticket = r == 0 ? members[r]->Barrier({}) : members[r]->AllReduce(data, {});
      ExpectAborted(members[r]->Wait(ticket, Long()), "barrier");
    });
  }
}

TEST_P(Failure, DeadlineNamesWhoIsMissingAndEndsAll) {
  for (const size_t count : {size_t{8}, size_t{100'000}}) {
    World world(3, GetParam());
    const auto members = world.Build();
    world.Run([&](int r) {
      std::vector<int64_t> data(count, 1);
      if (r == 2) {  // never enters
        ExpectAborted(AwaitError(*members[r]), "gave up");
        return;
      }
      const Ticket ticket = members[r]->AllReduce(data, {.step = 9});
      const absl::Status status = members[r]->Wait(ticket, r == 0 ? Deadline::After(50) : Long());
      if (r == 1) return ExpectAborted(status, "rank 2");
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      EXPECT_NE(status.message().find("waited for rank 2 (127.0.0.1"), absl::string_view::npos)
          << status;
      ExpectAborted(members[r]->Wait(ticket, Long()), "rank 2");
    });
  }
}

TEST_P(Failure, AbortFromAnotherThreadInTheMiddle) {
  World world(3, GetParam());
  const auto members = world.Build();
  std::atomic<int> entered{0};
  std::thread aborter([&] {
    while (entered < 3) std::this_thread::yield();
    members[1]->Abort(absl::InternalError("the user's own reason"));
    ExpectAborted(members[1]->Health(), "the user's own reason");
    members[1]->Abort(absl::InternalError("a later reason"));
  });
  world.Run([&](int r) {
    // More than the links take before anybody has read: cannot be over before the abort.
    std::vector<std::vector<int64_t>> data(40, std::vector<int64_t>(200'000, r));
    Ticket last = 0;
    for (auto& one : data) last = members[r]->AllReduce(one, {});
    ++entered;
    const absl::Status status = members[r]->Wait(last, Long());
    ExpectAborted(status, "the user's own reason");
    EXPECT_FALSE(members[r]->Finished(last));
    EXPECT_FALSE(members[r]->Finished(1));
    // Buffers are the owner's again: writing to them is no race.
    for (auto& one : data) one.assign(one.size(), -1);
  });
  aborter.join();
}

TEST_P(Failure, AbortedOperationIsNeverReportedAsFinished) {
  for (int trial = 0; trial < 50; ++trial) {
    World world(2, GetParam());
    const auto members = world.Build();
    std::atomic<bool> go{false};
    std::thread aborter([&] {
      while (!go) std::this_thread::yield();
      members[0]->Abort(absl::AbortedError("race"));
      EXPECT_FALSE(members[0]->Finished(2));
    });
    world.Run([&](int r) {
      std::vector<int64_t> data(16, 1);
      const Ticket ticket = members[r]->AllReduce(data, {});
      go = true;
      const absl::Status status = members[r]->Wait(ticket, Long());
      if (status.ok()) {
        EXPECT_EQ(data[0], 2);
      }
    });
    aborter.join();
  }
}

TEST_P(Failure, CloseWithoutAnyOperation) {
  World world(4, GetParam());
  const auto members = world.Build();
  world.Run([&](int r) {
    EXPECT_TRUE(members[r]->Close(Long()).ok());
    EXPECT_TRUE(members[r]->Health().ok());
    const absl::Status after = members[r]->Wait(members[r]->Barrier({}), Long());
    EXPECT_EQ(after.code(), absl::StatusCode::kFailedPrecondition) << after;
  });
}

TEST_P(Failure, LateCloserGetsNoError) {
  World world(3, GetParam());
  const auto members = world.Build();
  std::atomic<int> closing{0};
  world.Run([&](int r) {
    std::vector<int64_t> data(100'000, 1);
    ASSERT_TRUE(members[r]->Wait(members[r]->AllReduce(data, {}), Long()).ok());
    // The last one closes when the end frames of the others must have been there for a while.
    const Deadline deadline = Deadline::After(100);
    while (r == 2 && (closing < 2 || !deadline.passed()))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(members[r]->Health().ok());
    ++closing;
    EXPECT_TRUE(members[r]->Close(Long()).ok()) << members[r]->Health();
  });
}

TEST_P(Failure, CloseWhileOthersGoOnIsAnErrorForAll) {
  World world(3, GetParam());
  const auto members = world.Build();
  world.Run([&](int r) {
    std::vector<int64_t> data(10, 1);
    const absl::Status status = r == 0 ? members[r]->Close(Long())
                                       : members[r]->Wait(members[r]->AllReduce(data, {}), Long());
    ExpectAborted(status, "");
  });
}

// The others go on when the end frame has long been there: nobody may wait for who has ended.
TEST_P(Failure, OperationsAfterAnothersCloseAreAnErrorForAll) {
  World world(3, GetParam());
  const auto members = world.Build();
  world.Run([&](int r) {
    if (r == 0) return ExpectAborted(members[r]->Close(Long()), "");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::vector<int64_t> data(100'000, 1);
    ExpectAborted(members[r]->Wait(members[r]->AllReduce(data, {}), Long()), "closed before");
  });
}

TEST_P(Failure, DroppingACommunicatorIsAnErrorForTheOthers) {
  World world(3, GetParam());
  auto members = world.Build();
  members[1].reset();
  ExpectAborted(AwaitError(*members[0]), "rank 1");
  ExpectAborted(AwaitError(*members[2]), "rank 1");
}

TEST_P(Failure, WrongArgumentsEndTheCommunicator) {
  World world(2, GetParam());
  const auto members = world.Build();
  std::vector<int64_t> in(10), out(5);
  const absl::Status status =
      members[0]->Wait(members[0]->ReduceScatter(in, {{0, 5, 11}}, out, {}), Long());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  ExpectAborted(AwaitError(*members[1]), "borders");
  EXPECT_EQ(members[0]->Wait(99, Long()).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Generations, EarlierOneIsRefusedAtOnce) {
  World world(2);
  world.Build(5);
  // Rank 0 is in generation 5; a member of generation 4 comes late.
  auto late = TcpEndpoint::Listen({});
  ASSERT_TRUE(late.ok());
  const auto built = (*late)->Build(world.Group(1, 4), nullptr);
  ExpectAborted(built.status(), "rank 0 refused this rank 1: it is in a later generation");
  EXPECT_EQ((*late)->Unreached(), std::vector<int>{0});
  EXPECT_EQ(world.endpoints[0]->Build(world.Group(0, 5), nullptr).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Generations, OtherNonceIsRefused) {
  World world(2);
  std::thread listener([&] {
    auto group = world.Group(0, 1);
    group.connect_ms = 3000;
    EXPECT_FALSE(world.endpoints[0]->Build(group, nullptr).ok());
  });
  auto group = world.Group(1, 1);
  group.nonce += 1;
  ExpectAborted(world.endpoints[1]->Build(group, nullptr).status(), "another nonce");
  listener.join();
}

TEST(Generations, LaterOneIsHeldUntilItIsBuilt) {
  World world(3);
  const auto first = world.Build(1);
  // The others' hellos of generation 2 come, and wait, while generation 1 works on at rank 0.
  std::atomic<bool> may_build{false};
  std::thread holder([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(first[0]->Health().ok());
    may_build = true;
  });
  std::vector<std::unique_ptr<Communicator>> second(3);
  world.Run([&](int r) {
    while (r == 0 && !may_build) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    auto built = world.endpoints[r]->Build(world.Group(r, 2), nullptr);
    EXPECT_TRUE(may_build);
    ASSERT_TRUE(built.ok()) << built.status();
    second[r] = std::move(*built);
  });
  holder.join();
  CheckAllReduce(world, second, 100, 1);
}

TEST(Generations, MissingMemberIsNamedAndCancelEnds) {
  World world(3);
  world.Run([&](int r) {
    if (r == 1) return;
    auto group = world.Group(r);
    group.connect_ms = 200;
    const auto built = world.endpoints[r]->Build(group, nullptr);
    // The second to give up may have been told by the first.
    EXPECT_TRUE(absl::IsDeadlineExceeded(built.status()) || absl::IsAborted(built.status()))
        << built.status();
    EXPECT_NE(built.status().message().find("rank 1 ("), absl::string_view::npos) << built.status();
    EXPECT_EQ(world.endpoints[r]->Unreached(), std::vector<int>{1});
  });
  std::atomic<bool> cancel{false};
  std::thread canceller([&] { cancel = true; });
  EXPECT_EQ(world.endpoints[0]->Build(world.Group(0, 2), &cancel).status().code(),
            absl::StatusCode::kCancelled);
  canceller.join();
}

// A process that has ended listens no more: a build with it ends at once, whoever dials whom.
TEST(Generations, AMemberThatHasEndedEndsTheBuildLongBeforeItsDeadline) {
  for (const int gone : {0, 1, 2}) {
    World world(3);
    world.endpoints[static_cast<size_t>(gone)].reset();
    world.Run([&](int r) {
      if (r == gone) return;
      const auto built = world.endpoints[static_cast<size_t>(r)]->Build(world.Group(r), nullptr);
      ExpectAborted(built.status(), "its process has ended");
      ExpectAborted(built.status(), Cat("rank ", gone, " ("));
      EXPECT_EQ(world.endpoints[static_cast<size_t>(r)]->Unreached(), std::vector<int>{gone});
    });
  }
}

TEST(Generations, WorldOfOneNeedsNobody) {
  World world(1);
  const auto members = world.Build();
  EXPECT_EQ(members[0]->world_size(), 1);
}

}  // namespace
}  // namespace holdfast
