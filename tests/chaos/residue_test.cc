#include "chaos/residue.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "chaos/process.h"
#include "runtime/base/digest.h"
#include "runtime/base/text.h"

namespace holdfast::chaos {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Residue, FindsWhatIsLeft) {
  const std::string dir = Cat(::testing::TempDir(), "residue_", Hex64(RandomNonce()));
  std::filesystem::create_directories(dir + "/slots");
  const Residue residue;
  auto child = ChildProcess::Start(
      {.args = {"/bin/sh", "-c", "exec sleep 100"}, .output_path = dir + "/output"});
  ASSERT_TRUE(child.ok());
  const std::string mark = (*child)->mark();
  const std::string shared = Cat("/dev/shm/holdfast-residue-test-", mark);
  std::ofstream(dir + "/slots/x.tmp") << "x";
  std::ofstream(shared) << "x";
  ASSERT_TRUE(WaitUntil(Deadline::After(20'000), [&] { return !MarkedProcesses(mark).empty(); }));

  const auto left = residue.Check(mark, dir, Deadline::After(50));
  EXPECT_THAT(left, Contains(HasSubstr("sleep 100")));
  EXPECT_THAT(left, Contains(HasSubstr("x.tmp")));
  EXPECT_THAT(left, Contains(shared));

  child->reset();
  std::filesystem::remove(shared);
  std::filesystem::remove(dir + "/slots/x.tmp");
  EXPECT_THAT(residue.Check(mark, dir, Deadline::After(10'000)), IsEmpty());
  std::filesystem::remove_all(dir);
}

TEST(Residue, SeesAListeningPort) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(fd, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int port = ntohs(address.sin_port);
  EXPECT_THAT(ListeningPorts(getpid()), Not(Contains(port)));
  ASSERT_EQ(listen(fd, 1), 0);
  EXPECT_THAT(ListeningPorts(getpid()), Contains(port));
  close(fd);
}

}  // namespace
}  // namespace holdfast::chaos
