// Strangers at the listening port in every phase: they connect and hold, send garbage, half a
// hello, a hello without the secret, a recorded hello. Nothing that they do may delay or end a
// build, change a result or make anything grow.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>

#include "runtime/base/digest.h"
#include "runtime/collectives/hello.h"
#include "runtime/collectives/socket.h"
#include "tests/collectives/world.h"

namespace holdfast {

int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const timeval limit = {30, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

namespace {

Hello HelloOf(const TcpEndpoint::GroupOptions& group, int from, int to) {
  Hello hello;
  hello.run = Hash128Of(group.run.data(), group.run.size());
  hello.generation = group.generation;
  hello.nonce = group.nonce;
  hello.from = from;
  hello.to = to;
  hello.world = static_cast<int32_t>(group.peers.size());
  hello.challenge = RandomBytes(kChallengeBytes);
  return hello;
}

std::string ReceiveExactly(int fd, size_t size) {
  std::string bytes(size, '\0');
  const ssize_t n = recv(fd, bytes.data(), size, MSG_WAITALL);
  bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return bytes;
}

void Send(int fd, const std::string& bytes) {
  [[maybe_unused]] const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// What strangers send, each on a connection of its own that stays open.
std::vector<std::string> Garbage(const TcpEndpoint::GroupOptions& group) {
  const std::string hello = EncodeHello(HelloOf(group, 1, 0));
  Hello later = HelloOf(group, 1, 0);
  later.generation += 1;
  Hello nonsense = HelloOf(group, 1 << 30, -5);
  nonsense.world = -1;
  return {"",
          "GET /metrics HTTP/1.1\r\nHost: worker\r\n\r\n",
          std::string(4096, '\0'),
          RandomBytes(4096),
          hello.substr(0, 8),
          hello.substr(0, 40),
          hello,                                  // and never a proof
          hello + std::string(kProofBytes, 'x'),  // a wrong proof
          hello + RandomBytes(100'000),
          EncodeHello(later),
          EncodeHello(nonsense)};
}

// Keeps on visiting `port` with everything above until stopped; connections stay open, up to a
// bound of its own.
class Visitors {
 public:
  Visitors(int port, const TcpEndpoint::GroupOptions& group)
      : thread_([this, port, group] { Run(port, group); }) {}
  ~Visitors() { Stop(); }
  void AwaitRound() const {
    while (rounds_ < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run(int port, const TcpEndpoint::GroupOptions& group) {
    std::vector<int> open;
    while (!stop_) {
      for (const std::string& bytes : Garbage(group)) {
        open.push_back(ConnectTo(port));
        Send(open.back(), bytes);
        if (open.size() > 200) {
          close(open.front());
          open.erase(open.begin());
        }
      }
      ++rounds_;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (const int fd : open) close(fd);
  }
  std::atomic<bool> stop_{false};
  std::atomic<int> rounds_{0};
  std::thread thread_;
};

TEST(Strangers, NeitherBuildNorReductionIsTouched) {
  World world(3);
  std::vector<std::unique_ptr<Visitors>> visitors;
  for (int r = 0; r < 3; ++r)
    visitors.push_back(std::make_unique<Visitors>(world.peers[r].port, world.Group(0)));
  for (const auto& one : visitors)
    one->AwaitRound();  // before the first build: no secret is known yet
  for (uint64_t generation = 1; generation <= 5; ++generation) {
    const auto members = world.Build(generation);
    for (int i = 0; i < 4; ++i) CheckAllReduce(world, members, 150'000, generation);
    CheckAllReduce(world, members, 16, generation);
    world.Run([&](int r) { EXPECT_TRUE(members[r]->Close(Long()).ok()) << members[r]->Health(); });
  }
}

TEST(Strangers, HoldersAreBoundedInNumberAndTime) {
  World world(1, {.hello_ms = 300, .max_unproved = 10});
  const auto open_fds = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  const auto before = open_fds();
  std::vector<int> holders;
  for (int i = 0; i < 100; ++i) holders.push_back(ConnectTo(world.peers[0].port));
  // Own ends are 100; the endpoint may hold 10. All but the newest 10 are dropped at once, these
  // after hello_ms.
  for (int i = 0; i < 90; ++i) EXPECT_EQ(ReceiveExactly(holders[i], 1), "");
  EXPECT_LE(open_fds(), before + 100 + 10);
  for (const int fd : holders) {
    EXPECT_EQ(ReceiveExactly(fd, 1), "");
    close(fd);
  }
  EXPECT_EQ(open_fds(), before);
}

TEST(Strangers, WrongSecretIsNeverAnswered) {
  World world(2);
  std::thread listener([&] {
    auto group = world.Group(0);
    group.connect_ms = 400;
    EXPECT_EQ(world.endpoints[0]->Build(group, nullptr).status().code(),
              absl::StatusCode::kDeadlineExceeded);
  });
  auto group = world.Group(1);
  group.secret = "another secret";
  group.connect_ms = 400;
  const auto built = world.endpoints[1]->Build(group, nullptr);
  EXPECT_EQ(built.status().code(), absl::StatusCode::kDeadlineExceeded) << built.status();
  EXPECT_NE(built.status().message().find("other secret"), absl::string_view::npos)
      << built.status();
  listener.join();
}

// A false listener records a whole hello of rank 1 (its proof included); the replay at the real
// rank 0 must fail, because the challenge is another one, and the real rank 1 must still be seated.
TEST(Strangers, ReplayedHelloIsRefused) {
  World world(2);
  const int false_listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(false_listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(false_listener, 8), 0);

  auto fooled = TcpEndpoint::Listen({});
  ASSERT_TRUE(fooled.ok());
  std::atomic<bool> cancel{false};
  std::thread dialer([&] {
    auto group = world.Group(1);
    group.peers[0].port = LocalPort(false_listener);
    EXPECT_EQ((*fooled)->Build(group, &cancel).status().code(), absl::StatusCode::kCancelled);
  });
  const int fd = accept(false_listener, nullptr, nullptr);
  const std::string hello = ReceiveExactly(fd, kHelloBytes);
  Send(fd, EncodeChallenge(RandomBytes(kChallengeBytes)));
  const std::string proof = ReceiveExactly(fd, kProofBytes);
  ASSERT_EQ(proof.size(), kProofBytes);
  cancel = true;
  dialer.join();
  close(fd);
  close(false_listener);

  absl::StatusOr<std::unique_ptr<Communicator>> at_listener;
  std::thread listener([&] { at_listener = world.endpoints[0]->Build(world.Group(0), nullptr); });
  for (int i = 0; i < 3; ++i) {
    const int replay = ConnectTo(world.peers[0].port);
    Send(replay, hello);
    EXPECT_EQ(ReceiveExactly(replay, kChallengeMessageBytes).size(), kChallengeMessageBytes);
    Send(replay, proof);
    EXPECT_EQ(ReceiveExactly(replay, kAnswerBytes), "");
    close(replay);
  }
  const auto built = world.endpoints[1]->Build(world.Group(1), nullptr);
  listener.join();
  EXPECT_TRUE(built.ok()) << built.status();
  EXPECT_TRUE(at_listener.ok()) << at_listener.status();
}

TEST(Strangers, AnswerIsBoundToSecretVerdictAndTranscript) {
  World world(2);
  auto group = world.Group(1);
  const Hello hello = HelloOf(group, 1, 0);
  const std::string challenge = RandomBytes(kChallengeBytes);
  const Transcript right{group.run, hello, challenge};
  Verdict verdict;
  const std::string answer = EncodeAnswer(group.secret, right, Verdict::kSeatTaken);
  EXPECT_TRUE(DecodeAnswer(answer, group.secret, right, &verdict));
  EXPECT_EQ(verdict, Verdict::kSeatTaken);
  // Neither another secret, another verdict, another challenge nor the dialer's own proof passes as
  // an answer.
  EXPECT_FALSE(
      DecodeAnswer(EncodeAnswer("another secret", right, verdict), group.secret, right, &verdict));
  std::string accepted = answer;
  accepted[0] = 0;
  EXPECT_FALSE(DecodeAnswer(accepted, group.secret, right, &verdict));
  EXPECT_FALSE(DecodeAnswer(answer, group.secret, {group.run, hello, RandomBytes(kChallengeBytes)},
                            &verdict));
  EXPECT_FALSE(DecodeAnswer(answer, group.secret, {"run-2", hello, challenge}, &verdict));
  EXPECT_FALSE(DecodeAnswer(std::string(4, '\0') + DialerProof(group.secret, right), group.secret,
                            right, &verdict));
}

TEST(Strangers, EveryTruncatedOrFlippedHelloIsRefused) {
  World world(2);
  const std::string good = EncodeHello(HelloOf(world.Group(1), 1, 0));
  ASSERT_EQ(good.size(), kHelloBytes);
  Hello out;
  for (size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(DecodeHello(good.substr(0, n), &out));
  EXPECT_FALSE(DecodeHello(good + "x", &out));
  for (size_t i = 0; i < 12; ++i) {
    std::string bad = good;
    bad[i] ^= 1;
    EXPECT_FALSE(DecodeHello(bad, &out)) << i;
  }
}

}  // namespace
}  // namespace holdfast
