// Every operation, for one to eight members, against plain sums and copies.
#include <cstring>
#include <numeric>
#include <tuple>

#include "tests/collectives/world.h"

namespace holdfast {
namespace {

// Sizes in elements: empty, tiny, around the limits of direct operations, chunks and rounds, odd.
const int64_t kCounts[] = {0, 1, 2, 7, 255, 4095, 4096, 4097, 33'333, 131'072, 262'147};

// Borders that are uneven in a reproducible way; some slices empty.
std::vector<int64_t> Uneven(int64_t count, int world, uint64_t seed) {
  std::vector<int64_t> borders = {0};
  for (int r = 1; r < world; ++r) {
    const uint64_t x = static_cast<uint64_t>(Value(r, static_cast<int64_t>(seed), 99));
    borders.push_back(count == 0 ? 0 : static_cast<int64_t>(x % static_cast<uint64_t>(count + 1)));
  }
  borders.push_back(count);
  std::sort(borders.begin(), borders.end());
  return borders;
}

class Operations : public testing::TestWithParam<std::tuple<int, Transport>> {
 protected:
  Operations() : world_(Size(), std::get<1>(GetParam())), members_(world_.Build()) {}
  static int Size() { return std::get<0>(GetParam()); }
  World world_;
  std::vector<std::unique_ptr<Communicator>> members_;
};

TEST_P(Operations, ReduceScatter) {
  const int n = Size();
  for (const int64_t count : kCounts) {
    for (const auto& borders :
         {Communicator::Slices(count, 8, n), Uneven(count, n, static_cast<uint64_t>(count))}) {
      world_.Run([&](int r) {
        std::vector<int64_t> in(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) in[i] = Value(r, i);
        const std::vector<int64_t> before = in;
        std::vector<int64_t> out(static_cast<size_t>(borders[r + 1] - borders[r]), -1);
        const Ticket ticket = members_[r]->ReduceScatter(in, borders, out, {.step = count});
        const absl::Status status = members_[r]->Wait(ticket, Long());
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(members_[r]->Finished(ticket));
        EXPECT_EQ(in, before);
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_EQ(out[i], SumOfValues(n, borders[r] + static_cast<int64_t>(i)))
              << count << " " << i;
        }
      });
    }
  }
}

TEST_P(Operations, ReduceScatterOfFloats) {
  const int n = Size();
  for (const int64_t count : kCounts) {
    const auto borders = Communicator::Slices(count, 4, n);
    std::vector<float> whole[2];
    for (auto& result : whole) {
      result.resize(static_cast<size_t>(count));
      world_.Run([&](int r) {
        std::vector<float> in(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) in[i] = static_cast<float>(Value(r, i) % 1000) / 7.0f;
        const std::span<float> out(result.data() + borders[r],
                                   static_cast<size_t>(borders[r + 1] - borders[r]));
        ASSERT_TRUE(
            members_[r]->Wait(members_[r]->ReduceScatter(in, borders, out, {}), Long()).ok());
      });
    }
    for (int64_t i = 0; i < count; ++i) {
      double exact = 0;
      for (int r = 0; r < n; ++r) exact += static_cast<float>(Value(r, i) % 1000) / 7.0f;
      ASSERT_NEAR(whole[0][i], exact, 1e-3);
    }
    // The same world size gives the same bits each time.
    EXPECT_EQ(whole[0], whole[1]);
  }
}

TEST_P(Operations, AllReduce) {
  for (const int64_t count : kCounts) CheckAllReduce(world_, members_, count, 5);
}

TEST_P(Operations, AllGather) {
  const int n = Size();
  for (const int64_t bytes : {0, 1, 64, 4097, 32'769, 262'144, 1'000'003}) {
    for (const auto& borders :
         {Communicator::Slices(bytes, 1, n), Uneven(bytes, n, static_cast<uint64_t>(bytes))}) {
      world_.Run([&](int r) {
        std::vector<std::byte> data(static_cast<size_t>(bytes));
        for (int64_t i = borders[r]; i < borders[r + 1]; ++i)
          data[i] = static_cast<std::byte>(Value(0, i));
        const absl::Status status =
            members_[r]->Wait(members_[r]->AllGather(data, borders, {}), Long());
        ASSERT_TRUE(status.ok()) << status;
        for (int64_t i = 0; i < bytes; ++i)
          ASSERT_EQ(data[i], static_cast<std::byte>(Value(0, i))) << i;
      });
    }
  }
}

TEST_P(Operations, BroadcastFromEach) {
  for (int root = 0; root < Size(); ++root) {
    for (const int64_t bytes : {0, 1, 5'000, 700'001}) {
      world_.Run([&](int r) {
        std::vector<std::byte> data(static_cast<size_t>(bytes));
        for (int64_t i = 0; r == root && i < bytes; ++i)
          data[i] = static_cast<std::byte>(Value(root, i));
        ASSERT_TRUE(members_[r]->Wait(members_[r]->Broadcast(data, root, {}), Long()).ok());
        for (int64_t i = 0; i < bytes; ++i)
          ASSERT_EQ(data[i], static_cast<std::byte>(Value(root, i)));
      });
    }
  }
}

// As a step does: several buckets are queued at once, then gathered, with a small table at the end;
// one member is late.
TEST_P(Operations, ManyQueuedAtOnce) {
  const int n = Size();
  constexpr int kBuckets = 12;
  world_.Run([&](int r) {
    for (int64_t step = 0; step < 5; ++step) {
      if (r == step % n) std::this_thread::yield();
      std::vector<std::vector<int64_t>> in(kBuckets), out(kBuckets);
      std::vector<int64_t> table(static_cast<size_t>(n) * 4);
      for (int b = 0; b < kBuckets; ++b) {
        const int64_t count = b % 3 == 0 ? 40'000 : 100 * b;
        const auto borders = Communicator::Slices(count, 8, n);
        in[b].resize(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i)
          in[b][i] = Value(r, i, static_cast<uint64_t>(step * 100 + b));
        out[b].resize(static_cast<size_t>(borders[r + 1] - borders[r]));
        members_[r]->ReduceScatter(in[b], borders, out[b], {step, 0, b});
      }
      for (int i = 0; i < 4; ++i) table[r * 4 + i] = r * 1000 + i;
      const Ticket last =
          members_[r]->AllGather(std::as_writable_bytes(std::span(table)),
                                 Communicator::Slices(n * 32, 32, n), {step, 0, -1});
      ASSERT_TRUE(members_[r]->Wait(last, Long()).ok()) << members_[r]->Health();
      for (int i = 0; i < n * 4; ++i) ASSERT_EQ(table[i], i / 4 * 1000 + i % 4);
      for (int b = 0; b < kBuckets; ++b) {
        const auto borders = Communicator::Slices(static_cast<int64_t>(in[b].size()), 8, n);
        for (size_t i = 0; i < out[b].size(); ++i) {
          ASSERT_EQ(out[b][i], SumOfValues(n, borders[r] + static_cast<int64_t>(i),
                                           static_cast<uint64_t>(step * 100 + b)));
        }
      }
    }
    EXPECT_TRUE(members_[r]->Close(Long()).ok());
    EXPECT_TRUE(members_[r]->Health().ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Operations,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5, 6, 7, 8),
                                          testing::Values(Transport::kTcp, Transport::kShm)),
                         [](const auto& info) {
                           return TransportText(std::get<1>(info.param)) +
                                  std::to_string(std::get<0>(info.param));
                         });

TEST(Slices, CoverEverythingOnGrainBorders) {
  for (const int64_t count : {0, 1, 5, 1024, 1025, 99'999}) {
    for (int n = 1; n < 9; ++n) {
      const auto borders = Communicator::Slices(count, 1024, n);
      ASSERT_EQ(borders.size(), static_cast<size_t>(n) + 1);
      EXPECT_EQ(borders.front(), 0);
      EXPECT_EQ(borders.back(), count);
      EXPECT_TRUE(std::is_sorted(borders.begin(), borders.end()));
      for (const int64_t border : borders) EXPECT_TRUE(border % 1024 == 0 || border == count);
    }
  }
}

}  // namespace
}  // namespace holdfast
