// Shared memory between members: input read where it lies, what may overlap what, who has left,
// and members that lie about their memory. The operations themselves are in operations_test.cc.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <tuple>

#include "runtime/collectives/shm_channel.h"
#include "tests/collectives/world.h"

namespace holdfast {
namespace {

SharedBlock Block(int64_t bytes, bool shareable = true) {
  auto block = SharedBlock::Create(bytes, shareable);
  EXPECT_TRUE(block.ok()) << block.status();
  EXPECT_EQ(block->fd() >= 0, shareable);
  return std::move(*block);
}

// A world whose members each have a block; some of them plain memory, so that their input is
// staged.
struct BlockWorld {
  BlockWorld(int size, int64_t bytes, int plain_every)
      : world(size, Transport::kShm), generation(1) {
    for (int r = 0; r < size; ++r)
      blocks.push_back(Block(bytes, plain_every == 0 || r % plain_every != 0));
    for (int r = 0; r < size; ++r) world.shared[r] = {&blocks[r]};
    members = world.Build(generation);
  }
  std::vector<SharedBlock> blocks;
  World world;
  uint64_t generation;
  std::vector<std::unique_ptr<Communicator>> members;
};

class Blocks : public testing::TestWithParam<std::tuple<int, int>> {};

// As a step does: reduce-scatters of several buckets, then gathers in place, queued without
// waiting where one needs the other. When Wait returns, input is overwritten at once: whoever
// still had to read it would get wrong sums.
TEST_P(Blocks, InputIsReadWhereItLiesAndIsFreeAfterTheWait) {
  const auto [n, plain_every] = GetParam();
  constexpr int64_t kCount = 90'001;  // words of a bucket: several rounds, an odd end
  constexpr int kBuckets = 3;
  BlockWorld shared(n, kBuckets * kCount * 8 + 64, plain_every);
  const auto borders = Communicator::Slices(kCount, 8, n);
  std::vector<int64_t> bytes(borders);
  for (int64_t& border : bytes) border *= 8;
  shared.world.Run([&](int r) {
    Communicator& comm = *shared.members[r];
    int64_t* words = shared.blocks[r].as<int64_t>() + 8;
    for (int64_t step = 0; step < 4; ++step) {
      Ticket last = 0;
      for (int b = 0; b < kBuckets; ++b) {
        const std::span<int64_t> bucket(words + b * kCount, kCount);
        for (int64_t i = 0; i < kCount; ++i)
          bucket[i] = Value(r, i, static_cast<uint64_t>(step * 8 + b));
        // The sum of the own slice goes where the gather, queued right behind, takes it from.
        comm.ReduceScatter(bucket, borders, bucket.subspan(borders[r], borders[r + 1] - borders[r]),
                           {step, 0, b});
        last = comm.AllGather(std::as_writable_bytes(bucket), bytes, {step, 1, b});
      }
      ASSERT_TRUE(comm.Wait(last, Long()).ok()) << comm.Health();
      for (int b = 0; b < kBuckets; ++b) {
        for (int64_t i = 0; i < kCount; ++i) {
          ASSERT_EQ(words[b * kCount + i], SumOfValues(n, i, static_cast<uint64_t>(step * 8 + b)))
              << r << " " << step << " " << b << " " << i;
        }
      }
      std::memset(words, 0xA5, kBuckets * kCount * 8);
    }
    EXPECT_TRUE(comm.Close(Long()).ok());
  });
}

TEST_P(Blocks, AllReduceInPlaceAndBroadcast) {
  const auto [n, plain_every] = GetParam();
  constexpr int64_t kCount = 200'003;
  BlockWorld shared(n, kCount * 8, plain_every);
  shared.world.Run([&](int r) {
    Communicator& comm = *shared.members[r];
    const std::span<int64_t> words(shared.blocks[r].as<int64_t>(), kCount);
    for (int step = 0; step < 5; ++step) {
      for (int64_t i = 0; i < kCount; ++i) words[i] = Value(r, i, 7);
      ASSERT_TRUE(comm.Wait(comm.AllReduce(words, {.step = step}), Long()).ok()) << comm.Health();
      for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(words[i], SumOfValues(n, i, 7));
      words[step] += r;
      ASSERT_TRUE(
          comm.Wait(comm.Broadcast(std::as_writable_bytes(words), step % n, {}), Long()).ok());
      ASSERT_EQ(words[step], SumOfValues(n, step, 7) + step % n);
    }
  });
}

// 0: all shared; 1: all plain; 2: every second one plain.
INSTANTIATE_TEST_SUITE_P(Worlds, Blocks,
                         testing::Combine(testing::Values(2, 3, 5), testing::Values(0, 1, 2)));

TEST(SharedBlock, NobodyElseCanWriteOrShrinkIt) {
  const SharedBlock block = Block(10'000);
  block.data()[9'999] = std::byte{7};
  const auto peer = Mapping::ForReading(block.fd(), 0);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->data()[9'999], std::byte{7});
  block.data()[0] = std::byte{9};
  EXPECT_EQ(peer->data()[0], std::byte{9});
  // Whoever holds the descriptor, also by another way to the same file:
  const Fd again(open(("/proc/self/fd/" + std::to_string(block.fd())).c_str(), O_RDWR | O_CLOEXEC));
  for (const int fd : {block.fd(), again.get()}) {
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    EXPECT_EQ(errno, EPERM);
    EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
    EXPECT_EQ(ftruncate(fd, 0), -1);
  }
  EXPECT_EQ(mprotect(peer->data(), 4096, PROT_READ | PROT_WRITE), -1);
}

TEST(SharedBlock, OffsetsAndPlainMemory) {
  const SharedBlock block = Block(100), plain = Block(5000, false);
  EXPECT_EQ(block.OffsetOf(block.data() + 4, 96), 4);
  EXPECT_EQ(block.OffsetOf(block.data() + 4, 97), -1);
  EXPECT_EQ(block.OffsetOf(plain.data(), 8), -1);
  EXPECT_EQ(plain.data()[4999], std::byte{0});
  const auto huge = SharedBlock::Create(int64_t{1} << 50, true);
  EXPECT_EQ(huge.status().code(), absl::StatusCode::kResourceExhausted) << huge.status();
}

// Two channels in one thread, driven by hand.
struct Pair {
  explicit Pair(uint64_t nonce = 5) : block{Block(8192), Block(8192)} {
    for (int r = 0; r < 2; ++r) {
      auto segment = MakeShmSegment(nonce, r, 2);
      EXPECT_TRUE(segment.ok()) << segment.status();
      control[r] = ControlOf(*segment);
      segments.push_back(std::move(*segment));
    }
    for (int r = 0; r < 2; ++r) {
      std::vector<ShmChannel::Peer> peers(2);
      ShmChannel::Peer& other = peers[1 - r];
      other.segment = *MapShmSegment(segments[1 - r].fd(), nonce, 1 - r, 2);
      other.blocks.push_back(*Mapping::ForReading(block[1 - r].fd(), 0));
      other.doorbell = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
      bell[1 - r] = other.doorbell.get();
      other.name = "rank " + std::to_string(1 - r);
      peer[r] = std::move(peers);
    }
    for (int r = 0; r < 2; ++r) {
      channel[r] = std::make_unique<ShmChannel>(RingPosition{r, 2}, std::move(segments[r]),
                                                std::vector<const SharedBlock*>{&block[r]},
                                                WakeFd(), std::move(peer[r]));
    }
  }
  // Reduce-scatter of the first four words of each block.
  void Push(int r) {
    auto op = std::make_unique<Operation>();
    op->kind = OpKind::kReduceScatter;
    op->index = 1;
    op->in = block[r].data();
    op->data = reinterpret_cast<std::byte*>(out[r]);
    op->borders = {0, 16, 32};
    FixShape(op.get(), 2);
    channel[r]->Push(std::move(op));
  }
  absl::Status Progress(int r) {
    bool moved = true;
    while (moved) {
      moved = false;
      const absl::Status status = channel[r]->Progress(&moved);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  SharedBlock block[2];
  std::vector<SharedBlock> segments;
  std::vector<ShmChannel::Peer> peer[2];
  // How often it was rung at rank r's door since the last look.
  uint64_t Rings(int r) const {
    uint64_t count = 0;
    return read(bell[r], &count, sizeof count) > 0 ? count : 0;
  }
  ShmControl* control[2];
  int bell[2];
  std::unique_ptr<ShmChannel> channel[2];
  int64_t out[2][2] = {};
};

TEST(ShmChannel, AnOperationIsDoneWhenThePeerHasReadTheInput) {
  Pair pair;
  for (int r = 0; r < 2; ++r) {
    std::iota(pair.block[r].as<int64_t>(), pair.block[r].as<int64_t>() + 4, 10 * r);
    pair.Push(r);
  }
  ASSERT_TRUE(pair.Progress(0).ok());
  EXPECT_EQ(pair.channel[0]->Missing(), "rank 1");
  ASSERT_TRUE(pair.Progress(1).ok());  // reads; rank 0 has not read yet
  EXPECT_EQ(pair.channel[1]->done(), 0);
  EXPECT_EQ(pair.out[1][1], 3 + 13);
  ASSERT_TRUE(pair.Progress(0).ok());
  EXPECT_EQ(pair.channel[0]->done(), 1);
  ASSERT_TRUE(pair.Progress(1).ok());
  EXPECT_EQ(pair.channel[1]->done(), 1);
  EXPECT_TRUE(pair.channel[1]->idle());
}

// Rank 1 posts, is given up, and uses its buffer again; rank 0 was frozen all the while. What it
// then reads must not count.
TEST(ShmChannel, WordsOfAMemberThatHasLeftDoNotCount) {
  Pair pair;
  pair.Push(0);
  pair.Push(1);
  ASSERT_TRUE(pair.Progress(1).ok());
  pair.channel[1]->Leave();
  std::memset(pair.block[1].data(), 0xEE, 64);
  ASSERT_TRUE(pair.Progress(0).ok());
  EXPECT_EQ(pair.channel[0]->done(), 0);
  EXPECT_FALSE(pair.channel[0]->idle());
}

TEST(ShmChannel, APostOfMemoryThatWasNotSharedIsAnError) {
  for (const auto& [block, offset] :
       {std::pair<int, int64_t>{1, 0}, {0, 8192}, {0, -8}, {0, 8180}}) {
    Pair pair;
    pair.Push(0);
    pair.Push(1);
    ASSERT_TRUE(pair.Progress(1).ok());
    pair.control[1]->posts[1].block = block;
    pair.control[1]->posts[1].offset = offset;
    const absl::Status status = pair.Progress(0);
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_EQ(pair.channel[0]->culprit(), 1);
    EXPECT_EQ(pair.channel[0]->done(), 0);
  }
}

TEST(ShmChannel, SleepersAreRungAndTheRestIsNot) {
  Pair pair;
  pair.Push(0);
  bool asleep = false;
  while (!asleep) ASSERT_TRUE(pair.channel[0]->Doze(&asleep).ok());
  EXPECT_EQ(pair.control[0]->asleep.load() % 2, 1u);
  pair.Push(1);
  ASSERT_TRUE(pair.Progress(1).ok());  // posts and reads: rings once for one sleep
  EXPECT_EQ(pair.Rings(0), 1u);
  pair.channel[0]->Awake();
  asleep = true;
  ASSERT_TRUE(pair.channel[0]->Doze(&asleep).ok());
  EXPECT_FALSE(asleep) << "there was something to read";
  ASSERT_TRUE(pair.Progress(0).ok());
  EXPECT_EQ(pair.Rings(1), 0u) << "it is not asleep";
  EXPECT_EQ(pair.channel[0]->done(), 1);
}

// A generation over words of an earlier one: rank 2 is left out, but its communicator of
// generation 1 lives on and goes on writing.
TEST(Shm, AStaleWriterReachesNothingOfALaterGeneration) {
  constexpr int64_t kCount = 50'000;
  BlockWorld old(3, kCount * 8, 0);
  World later(2, Transport::kShm);
  std::swap(later.endpoints, old.world.endpoints);
  later.endpoints.resize(2);
  later.peers = {old.world.peers[0], old.world.peers[1]};
  later.shared = {old.world.shared[0], old.world.shared[1]};
  auto members = later.Build(2);
  std::atomic<bool> stop{false};
  std::thread stale([&] {
    const std::span<int64_t> words(old.blocks[2].as<int64_t>(), kCount);
    std::fill(words.begin(), words.end(), -1);
    const Ticket ticket = old.members[2]->AllReduce(words, {.step = 1});
    while (!stop) std::fill(words.begin(), words.end(), -1);
    EXPECT_FALSE(old.members[2]->Finished(ticket));
  });
  for (int round = 0; round < 20; ++round) {
    later.Run([&](int r) {
      const std::span<int64_t> words(old.blocks[r].as<int64_t>(), kCount);
      for (int64_t i = 0; i < kCount; ++i) words[i] = Value(r, i);
      ASSERT_TRUE(members[r]->Wait(members[r]->AllReduce(words, {.step = 1}), Long()).ok());
      for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(words[i], SumOfValues(2, i));
    });
  }
  stop = true;
  stale.join();
}

}  // namespace
}  // namespace holdfast
