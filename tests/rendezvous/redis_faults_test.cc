// What can be wrong with Redis: not there, wrong password, a replica, emptied, replaced, hung,
// connections cut.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>

#include "rendezvous/membership.h"
#include "rendezvous/redis_connection.h"
#include "runtime/base/clock.h"
#include "runtime/base/digest.h"
#include "tests/rendezvous/fleet.h"

namespace holdfast::rendezvous {
namespace {

using testing::HasSubstr;

absl::Status StartStatus(const MembershipOptions& options, int64_t deadline_ms) {
  MapMarks marks;
  return Membership::Start(options, &marks, Deadline::After(deadline_ms)).status();
}

TEST(RedisFaultsTest, NotThereIsRetriedUntilTheDeadlineAndNamed) {
  RedisServer server;
  MembershipOptions o = TestOptions(server, "w0", 0);
  o.redis_port = FreePort();
  const int64_t begin = BootMs();
  const absl::Status status = StartStatus(o, 500);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Cat("127.0.0.1:", o.redis_port)));
  EXPECT_GE(BootMs() - begin, 500);
}

TEST(RedisFaultsTest, ARedisThatComesLaterIsFound) {  // K06, variant
  MembershipOptions o;
  o.redis_port = FreePort();
  o.redis_password = Hex(RandomBytes(16));
  o.run = std::string("test-run");
  o.member_id = std::string("w0");
  auto started = std::async(std::launch::async, [&] { return StartStatus(o, 20'000); });
  EXPECT_EQ(started.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  RedisServer server(o.redis_port, "", o.redis_password);
  const absl::Status status = started.get();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(RedisFaultsTest, AWrongOrMissingPasswordEndsAtOnceAndIsNeverShown) {
  RedisServer server;
  MembershipOptions o = TestOptions(server, "w0", 0);
  o.redis_password = std::string("not-the-password");
  const absl::Status wrong = StartStatus(o, 20'000);
  EXPECT_EQ(wrong.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(wrong.message().find("not-the-password"), absl::string_view::npos);
  o.redis_password.clear();
  EXPECT_EQ(StartStatus(o, 20'000).code(), absl::StatusCode::kUnauthenticated);
}

TEST(RedisFaultsTest, AReadOnlyReplicaIsNamed) {  // K08, one endpoint
  RedisServer primary;
  RedisServer replica;
  replica.Admin({"CONFIG", "SET", "masterauth", primary.password()});
  replica.Admin({"REPLICAOF", "127.0.0.1", Cat(primary.port())});
  ASSERT_TRUE(Eventually([&] {
    return replica.Admin({"INFO", "replication"}).text.find("master_link_status:up") !=
           std::string::npos;
  }));
  const absl::Status status = StartStatus(TestOptions(replica, "w0", 0), 20'000);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("read-only replica"));
}

TEST(RedisFaultsTest, ErrorRepliesBecomeTypedStatuses) {
  const auto code = [](std::string_view error) { return StatusOfRedisError(error, "h:1").code(); };
  EXPECT_EQ(code("LOADING Redis is loading the dataset in memory"), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code("ERR max number of clients reached"), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code("OOM command not allowed when used memory > 'maxmemory'."),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("MISCONF Redis is configured to save RDB snapshots"),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("NOAUTH Authentication required."), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code("ERR Protocol error: unauthenticated multibulk length"),
            absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code("WRONGPASS invalid username-password pair"), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(
      code("READONLY You can't write against a read only replica. script: f, on @user_script:1."),
      absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("ERR something new"), absl::StatusCode::kUnavailable);
}

TEST(RedisFaultsTest, OutOfMemoryIsNamed) {
  RedisServer server(0, "maxmemory 1\nmaxmemory-policy noeviction");
  MembershipOptions o = TestOptions(server, "w0", 0);
  const absl::Status status = StartStatus(o, 300);
  EXPECT_THAT(std::string(status.message()), HasSubstr("out of memory"));
}

// Redis is emptied or replaced under a running generation: it is noticed, and nothing is founded
// anew.
void ExpectReplacedIsNoticed(Workers& workers, const char* text) {
  for (auto& w : workers) {
    ASSERT_TRUE(Eventually([&] { return w->membership->notices().store_replaced; }));
    EXPECT_THAT(w->membership->notices().store_text, HasSubstr(text));
    const absl::Status status = w->JoinAsync(StateOffer(5)).get().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

TEST(RedisFaultsTest, AFlushIsNoticedAndNothingIsFoundedAnew) {
  RedisServer server;
  Workers workers = StartWorkers(server, 2);
  FormWorld(workers, TestOffer(2));
  server.Admin({"FLUSHALL"});
  ExpectReplacedIsNoticed(workers, "lost the record");
}

TEST(RedisFaultsTest, AnEmptyRestartIsNoticed) {
  auto server = std::make_unique<RedisServer>();
  Workers workers = StartWorkers(*server, 2);
  FormWorld(workers, TestOffer(2));
  const int port = server->port();
  const std::string password = server->password();
  server->Kill();
  RedisServer again(port, "", password);
  ExpectReplacedIsNoticed(workers, "lost the record");
  EXPECT_THAT(again.Keys(), testing::Each(HasSubstr(":lease:")));
}

TEST(RedisFaultsTest, AShortOutageLeavesTheGenerationAlone) {
  RedisServer server;
  Workers workers = StartWorkers(server, 2);
  const Roster before = FormWorld(workers, TestOffer(2));
  server.Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return workers[0]->membership->notices().contact_age_ms > 1800; }));
  server.Signal(SIGCONT);
  for (auto& w : workers) {
    ASSERT_TRUE(Eventually([&] { return w->membership->notices().contact_age_ms < 300; }));
    EXPECT_FALSE(w->membership->notices().round_open);
    EXPECT_FALSE(w->membership->notices().store_replaced);
  }
  // All leases lapsed meanwhile; nobody is evicted for it.
  const Roster after = FormWorld(workers, StateOffer(5));
  EXPECT_EQ(after.generation, before.generation + 1);
  EXPECT_EQ(after.members.size(), 2u);
}

TEST(RedisFaultsTest, AHungRedisIsBounded) {
  RedisServer server;
  Workers workers = StartWorkers(server, 1);
  FormWorld(workers, TestOffer(1));
  server.Signal(SIGSTOP);
  const int64_t begin = BootMs();
  const absl::Status status = workers[0]->JoinAsync(StateOffer(5), 1500).get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_LT(BootMs() - begin, 15'000);
  server.Signal(SIGCONT);
  EXPECT_TRUE(workers[0]->JoinAsync(StateOffer(5)).get().ok());
}

TEST(RedisFaultsTest, StormsOfCutConnectionsAreSurvived) {  // K07
  RedisServer server;
  Workers workers;
  for (int i = 0; i < 3; ++i) {
    MembershipOptions o = TestOptions(server, Cat("w", i), i);
    o.lease_ms = 20'000;  // on a busy machine a lease may lapse in a storm, which evicts rightly
    workers.push_back(std::make_unique<Worker>(o));
  }
  FormWorld(workers, TestOffer(3));
  std::atomic<bool> stop{false};
  std::thread storm([&] {
    while (!stop) {
      server.Admin({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  uint64_t generation = 1;
  for (int round = 0; round < 5; ++round) {
    const Roster roster = FormWorld(workers, StateOffer(round));
    EXPECT_EQ(roster.members.size(), 3u);
    EXPECT_GT(roster.generation, generation);
    generation = roster.generation;
  }
  stop = true;
  storm.join();
  EXPECT_FALSE(workers[0]->membership->notices().store_replaced);
}

TEST(RedisFaultsTest, FlushedScriptsAreSentAgain) {
  RedisServer server;
  Workers workers = StartWorkers(server, 2);
  FormWorld(workers, TestOffer(2));
  server.Admin({"SCRIPT", "FLUSH"});
  EXPECT_EQ(FormWorld(workers, StateOffer(1)).generation, 2u);
}

TEST(RedisFaultsTest, AStarterCrowdAgainstFewPlacesForms) {  // K06
  RedisServer server(0, "tcp-backlog 2\nmaxclients 12");
  Workers workers;
  std::vector<std::future<std::unique_ptr<Worker>>> starts;
  for (int i = 0; i < 8; ++i) {
    starts.push_back(std::async(std::launch::async, [&server, i] {
      return std::make_unique<Worker>(TestOptions(server, Cat("w", i), i));
    }));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ASSERT_TRUE(Eventually([&] {
    RedisConnection connection(server.Endpoint());
    return connection.Command({"CONFIG", "SET", "maxclients", "200"}).ok();
  }));
  for (auto& s : starts) workers.push_back(s.get());
  EXPECT_EQ(FormWorld(workers, TestOffer(8)).members.size(), 8u);
  // At most two connections a worker.
  const std::string clients = server.Admin({"INFO", "clients"}).text;
  const size_t at = clients.find("connected_clients:");
  ASSERT_NE(at, std::string::npos);
  EXPECT_LE(std::stoi(clients.substr(at + 18)), 2 * 8 + 1);
}

TEST(RedisFaultsTest, AStrangerWatchesAnEmptyStoreBeforeItFounds) {
  RedisServer server;
  MembershipOptions o = TestOptions(server, "w0", 0);
  o.may_found = false;
  o.found_window_ms = 700;
  Worker worker(o);
  const int64_t begin = BootMs();
  const auto roster = worker.JoinAsync(TestOffer(1)).get();
  ASSERT_TRUE(roster.ok()) << roster.status();
  EXPECT_GE(BootMs() - begin, 700);
}

TEST(RedisFaultsTest, ATraceOfAForeignGenerationForbidsFounding) {
  RedisServer server;
  auto marks = std::make_shared<MapMarks>();
  MembershipOptions o = TestOptions(server, "w0", 0);
  {
    Worker other(TestOptions(server, "o", 0, "host-b"));
    Worker worker(o, marks);
    auto a = other.JoinAsync(TestOffer(1)), b = worker.JoinAsync(TestOffer(1));
    ASSERT_TRUE(Eventually([&] {
      // They may form one world or two in turn; in the end both are members.
      if (other.membership->notices().joiners > 0 || worker.membership->notices().joiners > 0 ||
          other.membership->notices().round_open || worker.membership->notices().round_open) {
        if (a.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
          a = other.JoinAsync(StateOffer(0));
        if (b.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
          b = worker.JoinAsync(StateOffer(0));
      }
      auto mark = marks->Get("rendezvous.generation");
      return mark.ok() && mark->find("\"all_local\":false") != std::string::npos;
    }));
    other.cancel = worker.cancel = true;
  }
  server.Admin({"FLUSHALL"});
  o.member_id = std::string("w1");
  o.may_found = false;
  o.found_window_ms = 100;
  Worker again(o, marks);
  const absl::Status status = again.JoinAsync(StateOffer(3), 1000).get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  o.member_id = std::string("w2");
  o.may_found = true;  // this supervisor started the store: numbers go on above the marks
  Worker owner(o, marks);
  const auto roster = owner.JoinAsync(StateOffer(3)).get();
  ASSERT_TRUE(roster.ok()) << roster.status();
  EXPECT_GT(roster->generation, 1u);
}

TEST(RedisFaultsTest, SomethingElseOnThePortIsAnErrorNotAHang) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(fd, 16), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::atomic<bool> stop{false};
  std::thread stranger([&] {  // speaks, but not Redis
    while (!stop) {
      const int client = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) return;
      const char text[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
      (void)!send(client, text, sizeof text - 1, MSG_NOSIGNAL);
      close(client);
    }
  });
  MembershipOptions o;
  o.redis_port = ntohs(address.sin_port);
  o.run = std::string("r");
  o.member_id = std::string("w");
  const absl::Status status = StartStatus(o, 500);
  EXPECT_FALSE(status.ok());
  stop = true;
  shutdown(fd, SHUT_RDWR);
  stranger.join();
  close(fd);
}

}  // namespace
}  // namespace holdfast::rendezvous
