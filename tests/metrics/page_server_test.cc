// The metrics end point over real sockets: what a client gets, and what strangers cannot do.
#include "runtime/metrics/page_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/text.h"

namespace holdfast::metrics {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Client {
 public:
  explicit Client(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~Client() { close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  bool Send(std::string_view text) const {
    return send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  // Everything until the server closes, at most 20 s.
  std::string Read() const {
    std::string text;
    char buffer[4096];
    const Deadline deadline = Deadline::After(20'000);
    while (!deadline.passed()) {
      pollfd ready{fd_, POLLIN, 0};
      if (poll(&ready, 1, static_cast<int>(deadline.left_ms()) + 1) <= 0) continue;
      const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
      if (n <= 0) return text;
      text.append(buffer, static_cast<size_t>(n));
    }
    ADD_FAILURE() << "the server neither answers nor closes";
    return text;
  }

 private:
  const int fd_;
};

class Server : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = PageServer::Listen("127.0.0.1", 0);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    server_->SetPage("holdfast_step 1\n");
    ASSERT_TRUE(server_->Start().ok());
  }
  std::string Ask(std::string_view request) const {
    const Client client(server_->port());
    EXPECT_TRUE(client.Send(request));
    return client.Read();
  }
  std::string Get(std::string_view path) const {
    return Ask(Cat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"));
  }
  std::unique_ptr<PageServer> server_;
};

TEST_F(Server, AnswersWithTheNewestPage) {
  EXPECT_EQ(Get("/metrics"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            "Content-Length: 16\r\nConnection: close\r\nCache-Control: no-store\r\n\r\n"
            "holdfast_step 1\n");
  server_->SetPage(std::string(1'000'000, 'x'));
  EXPECT_THAT(Get("/metrics?x=1"), EndsWith(std::string(1'000'000, 'x')));
}

TEST_F(Server, OtherRequestsGetTheirProperAnswer) {
  EXPECT_THAT(Get("/"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("/metrics")));
  EXPECT_THAT(Get("/etc/passwd"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask("HEAD /metrics HTTP/1.0\r\n\r\n"),
              AllOf(HasSubstr("Content-Length: 16"), EndsWith("\r\n\r\n")));
  EXPECT_THAT(Ask("POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"),
              StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Ask("nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask(std::string("\0\xff\x16\x03 / HTTP/1.1\n\n", 19)), StartsWith("HTTP/1.1 405"));
}

TEST_F(Server, ARequestInPiecesIsOne) {
  const Client client(server_->port());
  for (const char* part : {"GE", "T /metr", "ics HTTP/1.1\r", "\n\r", "\n"})
    ASSERT_TRUE(client.Send(part));
  EXPECT_THAT(client.Read(), StartsWith("HTTP/1.1 200"));
}

TEST_F(Server, HugeRequestsAreRefusedAndDropped) {
  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\nX: " + std::string(5000, 'x')),
              StartsWith("HTTP/1.1 431"));
  const Client flood(server_->port());
  const std::string megabyte(1 << 20, 'x');
  int sent = 0;
  while (sent < 64 && flood.Send(megabyte)) ++sent;
  EXPECT_LT(sent, 64);  // the connection ends long before
  EXPECT_THAT(Get("/metrics"), StartsWith("HTTP/1.1 200"));
}

TEST_F(Server, SlowOnesAreEndedAndNeverInTheWay) {
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 40; ++i) {
    slow.push_back(std::make_unique<Client>(server_->port()));
    (void)slow.back()->Send("GET /metrics HT");
  }
  // More than there is room for: a client that asks is served all the same.
  EXPECT_THAT(Get("/metrics"), StartsWith("HTTP/1.1 200"));
  for (const auto& client : slow) EXPECT_EQ(client->Read(), "");
}

TEST_F(Server, AFloodOfConnectionsIsServedInTheEnd) {
  for (int i = 0; i < 150; ++i) Client(server_->port());
  EXPECT_THAT(Get("/metrics"), StartsWith("HTTP/1.1 200"));
}

TEST_F(Server, ItsEndClosesEverything) {
  const Client client(server_->port());
  ASSERT_TRUE(client.Send("GET"));
  const int port = server_->port();
  server_.reset();
  EXPECT_EQ(client.Read(), "");
  EXPECT_TRUE(PageServer::Listen("127.0.0.1", port).ok());  // free again at once
}

TEST(ServerStart, ATakenPortAndAnAddressThatIsNotHere) {
  const auto first = PageServer::Listen("127.0.0.1", 0);
  ASSERT_TRUE(first.ok());
  const auto second = PageServer::Listen("127.0.0.1", (*first)->port());
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
  EXPECT_TRUE(absl::IsInvalidArgument(PageServer::Listen("192.0.2.1", 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(PageServer::Listen("no such host", 0).status()));
  EXPECT_TRUE(PageServer::Listen("localhost", 0).ok());
}

}  // namespace
}  // namespace holdfast::metrics
