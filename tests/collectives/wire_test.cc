// The parts below the communicator: frames, links over a socket pair, ring plans under any
// schedule.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "runtime/collectives/link.h"
#include "runtime/collectives/ring_plan.h"
#include "tests/collectives/world.h"

namespace holdfast {
namespace {

TEST(Frame, EveryFlippedBitAndAnotherKeyAreSeen) {
  std::string payload = "some payload of a frame";
  FrameHeader header;
  header.type = FrameType::kBulk;
  header.length = static_cast<uint32_t>(payload.size());
  SealFrame(&header, payload.data(), 42);
  EXPECT_TRUE(FrameIntact(header, payload.data(), 42));
  EXPECT_FALSE(FrameIntact(header, payload.data(), 43));
  for (size_t bit = 0; bit < payload.size() * 8; ++bit) {
    std::string bad = payload;
    bad[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_FALSE(FrameIntact(header, bad.data(), 42));
  }
  // The length is checked before the checksum is looked at; it is left alone here.
  for (size_t byte = 8; byte < offsetof(FrameHeader, length); ++byte) {
    FrameHeader bad = header;
    reinterpret_cast<char*>(&bad)[byte] ^= 4;
    EXPECT_FALSE(FrameIntact(bad, payload.data(), 42)) << byte;
  }
}

TEST(Frame, GoodbyeIsFoundAtTheEndOnlyAndIsOneLineOfText) {
  const std::string frame = EncodeGoodbye({3, 1, "rank 3 died\nsecond line"}, 9, 42);
  ASSERT_EQ(frame.size(), kGoodbyeFrameBytes);
  Goodbye goodbye;
  ASSERT_TRUE(FindGoodbye("bytes of a chunk" + frame, 9, 42, &goodbye));
  EXPECT_EQ(goodbye.culprit, 3);
  EXPECT_EQ(goodbye.witness, 1);
  EXPECT_EQ(goodbye.text, "rank 3 died?second line");
  EXPECT_FALSE(FindGoodbye(frame + "x", 9, 42, &goodbye));
  EXPECT_FALSE(FindGoodbye(frame, 10, 42, &goodbye));
  EXPECT_FALSE(FindGoodbye(frame, 9, 43, &goodbye));
  EXPECT_FALSE(FindGoodbye(frame.substr(1), 9, 42, &goodbye));
}

// Keeps what comes.
class Keeper : public FrameSink {
 public:
  absl::StatusOr<std::byte*> Place(Link&, const FrameHeader& header) override {
    if (pause) return nullptr;
    data.resize(header.length);
    return data.data();
  }
  absl::Status Take(Link&, const FrameHeader& header) override {
    frames.push_back(header);
    return absl::OkStatus();
  }
  bool pause = false;
  std::vector<std::byte> data;
  std::vector<FrameHeader> frames;
};

class LinkPair : public testing::Test {
 protected:
  LinkPair() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    raw_ = fds[0];
    left_ = std::make_unique<Link>(LinkSeed{Fd(fds[0]), 1, "left", 10, 20}, 5);
    right_ = std::make_unique<Link>(LinkSeed{Fd(fds[1]), 0, "right", 20, 10}, 5);
  }
  static FrameHeader BulkHeader(size_t bytes) {
    FrameHeader header;
    header.type = FrameType::kBulk;
    header.length = static_cast<uint32_t>(bytes);
    return header;
  }
  int raw_;
  std::unique_ptr<Link> left_, right_;
  Keeper keeper_;
};

TEST_F(LinkPair, LargeFramesComeThroughInPiecesAndAfterAPause) {
  std::vector<std::byte> chunk(kMaxBulkBytes);
  for (size_t i = 0; i < chunk.size(); ++i) chunk[i] = static_cast<std::byte>(i * 7);
  ASSERT_TRUE(left_->Queue({}, {}).ok());
  left_->StartBulk(BulkHeader(chunk.size()), chunk.data());
  keeper_.pause = true;
  while (!right_->paused()) {
    ASSERT_TRUE(left_->Flush(1).ok());
    ASSERT_TRUE(right_->Read(&keeper_, 1, 1 << 20).ok());
  }
  EXPECT_EQ(keeper_.frames.size(), 1u);  // the beat before
  keeper_.pause = false;
  while (keeper_.frames.size() < 2) {
    ASSERT_TRUE(left_->Flush(1).ok());
    ASSERT_TRUE(right_->Read(&keeper_, 1, 1000).ok());
  }
  EXPECT_EQ(keeper_.data, chunk);
  EXPECT_FALSE(left_->bulk_busy());
}

TEST_F(LinkPair, DamageOnTheWayNamesThePeer) {
  FrameHeader header = BulkHeader(64);
  std::vector<std::byte> chunk(64);
  header.nonce = 5;
  SealFrame(&header, chunk.data(), 10);
  chunk[13] ^= std::byte{1};
  ASSERT_EQ(send(raw_, &header, sizeof header, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof header));
  ASSERT_EQ(send(raw_, chunk.data(), chunk.size(), MSG_NOSIGNAL), 64);
  const absl::Status read = right_->Read(&keeper_, 1, 1 << 20);
  EXPECT_EQ(read.code(), absl::StatusCode::kAborted);
  EXPECT_NE(read.message().find("rank 0 (right) sent a damaged frame"), absl::string_view::npos)
      << read;
}

TEST_F(LinkPair, FramesOfAnotherGenerationOrTooLongAreErrors) {
  for (const bool other_nonce : {false, true}) {
    FrameHeader header = BulkHeader(other_nonce ? 8 : kMaxBulkBytes + 1);
    header.nonce = other_nonce ? 6 : 5;
    std::vector<std::byte> chunk(header.length);
    SealFrame(&header, chunk.data(), 10);
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    Link link({Fd(fds[1]), 3, "peer", 20, 10}, 5);
    ASSERT_EQ(send(fds[0], &header, sizeof header, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof header));
    const absl::Status read = link.Read(&keeper_, 1, 1 << 20);
    EXPECT_NE(read.message().find("no frame of this generation"), absl::string_view::npos) << read;
    close(fds[0]);
  }
}

TEST_F(LinkPair, GoodbyeInTheMiddleOfAChunkIsFound) {
  std::vector<std::byte> chunk(kMaxBulkBytes);
  left_->StartBulk(BulkHeader(chunk.size()), chunk.data());
  ASSERT_TRUE(left_->Flush(1).ok());
  ASSERT_TRUE(left_->bulk_busy());  // a socket pair takes less than a chunk
  ASSERT_TRUE(right_->Read(&keeper_, 1, 1 << 20).ok());
  left_->SayGoodbye({7, 1, "rank 7 is dead"});
  while (!right_->eof()) ASSERT_TRUE(right_->Read(&keeper_, 1, 1 << 20).ok());
  Goodbye goodbye;
  ASSERT_TRUE(right_->HiddenGoodbye(&goodbye));
  EXPECT_EQ(goodbye.text, "rank 7 is dead");
}

TEST_F(LinkPair, AQueueThatNobodyReadsIsBounded) {
  std::vector<std::byte> part(kMaxDirectBytes);
  FrameHeader header;
  header.type = FrameType::kDirect;
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = left_->Queue(header, part);
    ASSERT_TRUE(left_->Flush(1).ok());
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
}

// Carries out the plans of all members with links of two chunks, in a random order of events.
class PlanRunner {
 public:
  explicit PlanRunner(std::vector<RingPlan> plans)
      : plans_(std::move(plans)),
        sent_(plans_.size()),
        received_(plans_.size()),
        wire_(plans_.size()) {}

  // False when nobody can go on before all is done.
  bool Run(uint64_t seed) {
    const int world = static_cast<int>(plans_.size());
    for (int stuck = 0; stuck < 400 * world;) {
      seed = seed * 6364136223846793005ull + 1442695040888963407ull;
      const int r = static_cast<int>((seed >> 33) % static_cast<uint64_t>(world));
      const bool moved = (seed >> 62) % 2 == 0 ? Send(r, (r + 1) % world) : Receive(r);
      stuck = moved ? 0 : stuck + 1;
    }
    for (int r = 0; r < world; ++r) {
      if (sent_[r] != plans_[r].sends.size() || received_[r] != plans_[r].receives.size())
        return false;
    }
    return true;
  }

 private:
  bool Send(int r, int to) {
    if (sent_[r] == plans_[r].sends.size() || wire_[to].size() >= 2) return false;
    const SendChunk& chunk = plans_[r].sends[sent_[r]];
    if (received_[r] < chunk.need_received) return false;
    wire_[to].emplace_back(chunk.data, chunk.data + chunk.bytes);
    ++sent_[r];
    return true;
  }
  bool Receive(int r) {
    if (wire_[r].empty()) return false;
    const ReceiveChunk& chunk = plans_[r].receives[received_[r]];
    if (sent_[r] < chunk.need_sent) return false;
    EXPECT_EQ(wire_[r].front().size(), chunk.bytes);
    std::memcpy(chunk.place, wire_[r].front().data(), chunk.bytes);
    AddChunk(chunk);
    wire_[r].pop_front();
    ++received_[r];
    return true;
  }

  std::vector<RingPlan> plans_;
  std::vector<size_t> sent_, received_;
  std::vector<std::deque<std::vector<std::byte>>> wire_;
};

TEST(RingPlan, ReducesUnderAnyScheduleWithSeveralRounds) {
  for (const int n : {2, 3, 5}) {
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      // Slices of very different length, the longest of several rounds and an odd rest.
      std::vector<int64_t> borders = {0};
      for (int r = 0; r < n; ++r) {
        const int64_t parts[] = {
            0, 8, 3 * kRoundBytes / 2 + 40, kChunkBytes, 2 * kRoundBytes + 8, kRoundBytes - 8};
        borders.push_back(borders.back() + parts[(static_cast<uint64_t>(r) + seed) % 6]);
      }
      const int64_t count = borders.back() / 8;
      std::vector<std::vector<int64_t>> in(static_cast<size_t>(n)), out(in.size()),
          whole(in.size());
      std::vector<std::vector<std::byte>> scratch(in.size(),
                                                  std::vector<std::byte>(2 * kScratchBytes));
      std::vector<RingPlan> scatter, reduce;
      for (int r = 0; r < n; ++r) {
        in[r].resize(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) in[r][i] = Value(r, i, seed);
        whole[r] = in[r];
        out[r].resize(static_cast<size_t>((borders[r + 1] - borders[r]) / 8));
        scatter.push_back(PlanReduceScatter({r, n}, borders, std::as_bytes(std::span(in[r])).data(),
                                            std::as_writable_bytes(std::span(out[r])).data(),
                                            scratch[r].data(), Arithmetic::kInt64));
        reduce.push_back(PlanAllReduce({r, n}, borders,
                                       std::as_writable_bytes(std::span(whole[r])).data(),
                                       scratch[r].data() + kScratchBytes));
      }
      ASSERT_TRUE(PlanRunner(std::move(scatter)).Run(seed)) << n;
      ASSERT_TRUE(PlanRunner(std::move(reduce)).Run(seed)) << n;
      std::vector<int64_t> sum(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) sum[i] = SumOfValues(n, i, seed);
      for (int r = 0; r < n; ++r) {
        EXPECT_TRUE(std::equal(out[r].begin(), out[r].end(), sum.begin() + borders[r] / 8))
            << n << " " << r;
        EXPECT_TRUE(whole[r] == sum) << n << " " << r;
      }
    }
  }
}

}  // namespace
}  // namespace holdfast
