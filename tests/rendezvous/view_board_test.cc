// What machines pin up for each other to see, on a real Redis.
#include "rendezvous/view_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "runtime/base/clock.h"
#include "tests/rendezvous/redis_server.h"

namespace holdfast::rendezvous {
namespace {

TEST(ViewBoard, ShowsTheNewestOfEachMachineWithItsAge) {
  const RedisServer server;
  ViewBoard a(server.Endpoint(), "r"), b(server.Endpoint(), "r"), other(server.Endpoint(), "q");
  ASSERT_TRUE(other.Publish("m", "of another run").ok());
  EXPECT_TRUE(a.Read()->empty());
  ASSERT_TRUE(a.Publish("machine-2", "old").ok());
  ASSERT_TRUE(a.Publish("machine-2", "two").ok());
  ASSERT_TRUE(b.Publish("machine-1", "one").ok());
  auto views = b.Read();
  ASSERT_TRUE(views.ok()) << views.status();
  ASSERT_EQ(views->size(), 2u);
  EXPECT_EQ((*views)[0].text, "one");
  EXPECT_EQ((*views)[1].text, "two");
  EXPECT_EQ((*views)[1].machine, "machine-2");
  // The age is counted by Redis, from the last Publish: here made 60 s by hand.
  server.Admin({"PEXPIRE", "holdfast:{r}:view:machine-2", std::to_string(kViewTtlMs - 60'000)});
  views = a.Read();
  EXPECT_GE((*views)[1].age_ms, 60'000);
  EXPECT_LT((*views)[1].age_ms, 120'000);
  EXPECT_LT((*views)[0].age_ms, 60'000);
}

TEST(ViewBoard, EverythingExpires) {
  const RedisServer server;
  ViewBoard board(server.Endpoint(), "r");
  ASSERT_TRUE(board.Publish("m", "x").ok());
  ASSERT_EQ(server.Keys().size(), 2u);
  for (const std::string& key : server.Keys()) {
    const int64_t left = server.Admin({"PTTL", key}).integer;
    EXPECT_GT(left, 0) << key;
    EXPECT_LE(left, kViewTtlMs) << key;
  }
  server.Admin({"DEL", "holdfast:{r}:view:m"});  // as if it had expired
  EXPECT_TRUE(board.Read()->empty());
}

TEST(ViewBoard, BoundedAuthenticatedAndNeverWaitedForLong) {
  RedisServer server;
  ViewBoard board(server.Endpoint(), "r");
  EXPECT_TRUE(absl::IsInvalidArgument(board.Publish("m", std::string(kViewBytesMax + 1, 'x'))));
  RedisEndpoint stranger = server.Endpoint();
  stranger.password = "wrong";
  ViewBoard without(stranger, "r");
  EXPECT_FALSE(without.Publish("m", "x").ok());
  EXPECT_FALSE(without.Read().ok());
  EXPECT_TRUE(server.Keys().empty());
  ASSERT_TRUE(board.Publish("m", "x").ok());
  server.Signal(SIGSTOP);
  const int64_t start_ms = BootMs();
  EXPECT_FALSE(board.Publish("m", "y").ok());
  EXPECT_LT(BootMs() - start_ms, 20'000);
  server.Signal(SIGCONT);
}

}  // namespace
}  // namespace holdfast::rendezvous
