// Coming to share memory: who says no, who lies, who is a stranger. Whatever happens, all members
// go on over the same carrier.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <tuple>

#include "runtime/base/text.h"
#include "runtime/collectives/shm_setup.h"
#include "tests/collectives/world.h"

namespace holdfast {
namespace {

std::vector<ShmOffer> Offers(size_t count) {
  std::vector<ShmOffer> offers(count);
  for (ShmOffer& offer : offers) {
    offer.able = 1;
    offer.host = {1, 2};
  }
  return offers;
}

TEST(ShmOffers, AllMustBeAbleWillingAndOnOneHost) {
  auto offers = Offers(3);
  EXPECT_EQ(WhyNoShm(offers), "");
  offers[1].host.high = 3;
  EXPECT_NE(WhyNoShm(offers).find("rank 1 is on another host"), std::string::npos);
  offers = Offers(3);
  offers[2].wish = static_cast<uint8_t>(Transport::kTcp);
  EXPECT_EQ(WhyNoShm(offers), "rank 2 was started with --transport tcp");
  offers = Offers(3);
  offers[0].able = 0;
  std::strcpy(offers[0].why_not, "no\nseals");
  EXPECT_EQ(WhyNoShm(offers), "rank 0: no?seals");
}

TEST(ShmSetup, OneMemberWithTcpIsEnoughForTcp) {
  World world(3);
  std::vector<std::unique_ptr<Communicator>> members(3);
  world.Run([&](int r) {
    auto group = world.Group(r);
    group.transport = r == 1 ? Transport::kTcp : Transport::kAuto;
    auto built = world.endpoints[r]->Build(group, nullptr);
    ASSERT_TRUE(built.ok()) << built.status();
    EXPECT_EQ((*built)->Carrier(), "tcp (rank 1 was started with --transport tcp)");
    members[r] = std::move(*built);
  });
  CheckAllReduce(world, members, 50'000, 1);
}

TEST(ShmSetup, WhoInsistsOnShmIsRefusedAndTheOthersFail) {
  World world(2);
  std::vector<std::unique_ptr<Communicator>> members(2);
  world.Run([&](int r) {
    auto group = world.Group(r);
    group.transport = r == 1 ? Transport::kTcp : Transport::kShm;
    auto built = world.endpoints[r]->Build(group, nullptr);
    if (r == 1) {  // may have been ready before rank 0 gave up
      if (built.ok()) members[r] = std::move(*built);
      return;
    }
    EXPECT_EQ(built.status().code(), absl::StatusCode::kFailedPrecondition) << built.status();
    EXPECT_NE(built.status().message().find("--transport auto"), absl::string_view::npos);
  });
}

TEST(ShmSetup, AutoTakesShmOnOneHost) {
  World world(4);
  for (const auto& member : world.Build()) EXPECT_EQ(member->Carrier(), "shm");
}

// What rank 1 gives to rank 0 instead of what it should.
enum class Lie {
  kUnsealed,
  kShort,
  kNoMemoryFile,
  kOtherGeneration,
  kOtherRank,
  kNoDoorbell,
  kUnsealedBlock,
  kFewerDescriptors,
  kNeverMaps,
  kNothing
};

Fd MemoryFile(int64_t bytes, bool sealed) {
  Fd fd(memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
  if (sealed) {
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS,
                    F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL),
              0);
  }
  return fd;
}

// The other side of ShmSetup, by hand, up to the votes.
void TellLies(Communicator& comm, const TcpEndpoint::GroupOptions& group, Lie lie) {
  const int world = static_cast<int>(group.peers.size()), me = group.rank;
  int turn = 0;
  const auto gather = [&](auto& parts) {
    std::vector<int64_t> borders;
    const auto bytes = std::as_writable_bytes(std::span(parts));
    for (int r = 0; r <= world; ++r)
      borders.push_back(static_cast<int64_t>(bytes.size()) / world * r);
    ASSERT_TRUE(comm.Wait(comm.AllGather(bytes, borders, {-1, ++turn, 0}), Long()).ok())
        << comm.Health();
  };
  auto door = ShmDoor::Open();
  ASSERT_TRUE(door.ok());
  // The host is copied from rank 0: the lie that only the memory itself can uncover.
  std::vector<ShmOffer> offers(static_cast<size_t>(world));
  offers[me].able = 1;
  std::copy(door->name().begin(), door->name().end(), offers[me].door);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat net = {};
  ASSERT_EQ(stat("/proc/self/ns/net", &net), 0);
  const std::string host = Cat(boot, " ", net.st_dev, " ", net.st_ino);
  offers[me].host = Hash128Of(host.data(), host.size());
  gather(offers);
  ASSERT_EQ(WhyNoShm(offers), "");
  auto segment = MakeShmSegment(lie == Lie::kOtherGeneration ? group.nonce - 1 : group.nonce,
                                lie == Lie::kOtherRank ? 0 : me, world);
  ASSERT_TRUE(segment.ok());
  const Fd other = lie == Lie::kUnsealed       ? MemoryFile(kShmSegmentBytes, false)
                   : lie == Lie::kShort        ? MemoryFile(4096, true)
                   : lie == Lie::kNoMemoryFile ? Fd(open("/dev/zero", O_RDWR | O_CLOEXEC))
                                               : Fd();
  const Fd bell(lie == Lie::kNoDoorbell ? open("/dev/null", O_RDWR | O_CLOEXEC)
                                        : eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const Fd block = MemoryFile(1 << 20, lie != Lie::kUnsealedBlock);
  std::vector<int> fds = {other.valid() ? other.get() : segment->fd(), bell.get(), block.get()};
  if (lie == Lie::kFewerDescriptors) fds.pop_back();
  for (int r = 0; r < world && lie != Lie::kNothing; ++r) {
    if (r == me) continue;
    ASSERT_TRUE(
        door->Send({offers[r].door, kDoorNameBytes}, ShmLetterText(group, me, r, 1, offers), fds)
            .ok());
  }
  std::vector<ShmVote> votes(static_cast<size_t>(world));
  votes[me].yes = 1;
  gather(votes);
  const bool all = std::all_of(votes.begin(), votes.end(), [](const ShmVote& v) { return v.yes; });
  EXPECT_EQ(all, lie == Lie::kNeverMaps);
  if (!all) return;
  std::vector<ShmVote> seen(static_cast<size_t>(world));
  seen[me].yes = 1;
  gather(seen);
}

class Liars : public testing::TestWithParam<std::tuple<Lie, const char*>> {};

TEST_P(Liars, AllGoOnOverTcp) {
  const auto [lie, text] = GetParam();
  World world(3);
  std::vector<std::unique_ptr<Communicator>> members(3);
  world.Run([&](int r) {
    auto group = world.Group(r);
    group.agree_on_transport = r != 1;
    if (lie == Lie::kNothing) group.connect_ms = 4000;  // half of it is waited for the letter
    auto built = world.endpoints[r]->Build(group, nullptr);
    ASSERT_TRUE(built.ok()) << built.status();
    if (r == 1) {
      ASSERT_NO_FATAL_FAILURE(TellLies(**built, group, lie));
    } else {
      EXPECT_EQ((*built)->Carrier().substr(0, 3), "tcp");
      EXPECT_NE((*built)->Carrier().find(text), std::string::npos) << (*built)->Carrier();
    }
    members[r] = std::move(*built);
  });
  CheckAllReduce(world, members, 50'000, 3);
}

INSTANTIATE_TEST_SUITE_P(
    Lies, Liars,
    testing::Values(std::tuple(Lie::kUnsealed, "rank 1: its memory is not sealed"),
                    std::tuple(Lie::kShort, "rank 1: its memory has 4096 bytes instead of"),
                    std::tuple(Lie::kNoMemoryFile, "rank 1: its descriptor is no memory file"),
                    std::tuple(Lie::kOtherGeneration, "rank 1: its segment is not that of this"),
                    std::tuple(Lie::kOtherRank, "rank 1: its segment is not that of this"),
                    std::tuple(Lie::kNoDoorbell, "rank 1: its doorbell is none"),
                    std::tuple(Lie::kUnsealedBlock, "rank 1: its memory is not sealed"),
                    std::tuple(Lie::kFewerDescriptors, "rank 1: its descriptors did not arrive"),
                    std::tuple(Lie::kNeverMaps, "rank 1 does not see this rank's memory"),
                    std::tuple(Lie::kNothing, "descriptors did not come in time")));

// Names of the doors that are open now, as anybody on this host can see them.
std::vector<std::string> DoorsOfOthers() {
  std::vector<std::string> names;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const size_t at = line.find("@holdfast-");
    if (at != std::string::npos) names.push_back(line.substr(at + 1));
  }
  return names;
}

int OpenDescriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

// A stranger writes garbage, with descriptors, to every door that it can see.
TEST(ShmSetup, StrangersLettersChangeNothingAndCostNoDescriptors) {
  World world(3, Transport::kShm);
  // With one generation alive and no stranger about.
  const auto descriptors = [&world](uint64_t generation) {
    const auto members = world.Build(generation);
    return OpenDescriptors();
  };
  const int before = descriptors(1);
  std::atomic<bool> stop{false};
  std::atomic<int> written{0};
  std::thread stranger([&] {
    const auto door = ShmDoor::Open();  // for its way of sending
    while (!stop) {
      for (const std::string& name : DoorsOfOthers()) {
        std::string binary;
        for (size_t i = 9; i + 1 < name.size(); i += 2)
          binary += static_cast<char>(std::stoi(name.substr(i, 2), nullptr, 16));
        if (binary == door->name()) continue;
        if (door->Send(binary, std::string(44, 'x'), {door->fd(), door->fd()}).ok()) ++written;
      }
      std::this_thread::yield();
    }
  });
  for (uint64_t generation = 2; generation <= 30; ++generation) {
    const auto members = world.Build(generation);  // checks that it is shm
    CheckAllReduce(world, members, 1000, generation);
  }
  stop = true;
  stranger.join();
  EXPECT_EQ(descriptors(31), before);
  std::printf("%d letters of the stranger got through\n", written.load());
  EXPECT_GT(written, 0);
}

}  // namespace
}  // namespace holdfast
