// What the emulated NCCL computes, and its rules of calling. Ranks are threads, each with a GPU.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>
#include <numeric>
#include <set>
#include <thread>

#include "kernels/math/half.h"
#include "tests/emulation/cuda/runtime.h"
#include "tests/emulation/faults.h"
#include "tests/emulation/nccl/meeting.h"
#include "tests/emulation/nccl/reduce.h"
#include "tests/emulation/nccl_testing.h"

namespace holdfast::emulation {
namespace {

const bool gpus_set = setenv("HOLDFAST_EMU_GPUS", "4", 1) == 0;  // before the first call

bool Began(const Rank& rank, ncclResult_t result) {
  return result == ncclSuccess ||
         (result == ncclInProgress && AwaitState(rank.comm) == ncclSuccess);
}

int64_t Value(int rank, size_t i) { return (rank + 1) * 1'000'003 + static_cast<int64_t>(i) * 7; }

std::vector<int64_t> Input(int rank, size_t count) {
  std::vector<int64_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(rank, i);
  return values;
}

int64_t SumOf(int n, size_t i) {
  int64_t sum = 0;
  for (int r = 0; r < n; ++r) sum += Value(r, i);
  return sum;
}

void CheckAllReduce(Rank& rank, int n, size_t count, bool in_place) {
  DeviceArray<int64_t> in(count), out(count);
  in.Set(Input(rank.rank, count));
  int64_t* const to = in_place ? in.data() : out.data();
  ASSERT_TRUE(
      Began(rank, ncclAllReduce(in.data(), to, count, ncclInt64, ncclSum, rank.comm, rank.stream)));
  ASSERT_TRUE(Drains(rank.stream));
  const auto got = in_place ? in.Get() : out.Get();
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], SumOf(n, i)) << i;
  if (!in_place) {
    EXPECT_EQ(in.Get(), Input(rank.rank, count)) << "the input was written";
  }
}

void CheckOthers(Rank& rank, int n, size_t count) {
  const auto ranks = static_cast<size_t>(n), me = static_cast<size_t>(rank.rank);
  DeviceArray<int64_t> wide(count * ranks), narrow(count);
  wide.Set(Input(rank.rank, count * ranks));
  ASSERT_TRUE(Began(rank, ncclReduceScatter(wide.data(), narrow.data(), count, ncclInt64, ncclSum,
                                            rank.comm, rank.stream)));
  ASSERT_TRUE(Drains(rank.stream));
  auto got = narrow.Get();
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], SumOf(n, me * count + i));

  narrow.Set(Input(rank.rank, count));
  ASSERT_TRUE(Began(
      rank, ncclAllGather(narrow.data(), wide.data(), count, ncclInt64, rank.comm, rank.stream)));
  ASSERT_TRUE(Drains(rank.stream));
  got = wide.Get();
  for (size_t i = 0; i < count * ranks; ++i)
    ASSERT_EQ(got[i], Value(static_cast<int>(i / count), i % count));

  const int root = n - 1;
  narrow.Set(Input(rank.rank, count));
  ASSERT_TRUE(Began(rank, ncclReduce(narrow.data(), rank.rank == root ? narrow.data() : nullptr,
                                     count, ncclInt64, ncclMax, root, rank.comm, rank.stream)));
  ASSERT_TRUE(Drains(rank.stream));
  EXPECT_EQ(narrow.Get(), Input(rank.rank, count)) << "the greatest is the root's own";

  ASSERT_TRUE(Began(rank, ncclBroadcast(narrow.data(), narrow.data(), count, ncclInt64, 0,
                                        rank.comm, rank.stream)));
  ASSERT_TRUE(Drains(rank.stream));
  EXPECT_EQ(narrow.Get(), Input(0, count));
}

TEST(Collectives, GiveWhatTheyPromise) {
  for (const int n : {1, 2, 3, 4}) {
    RunRanks(n, [n](Rank& rank) {
      for (const size_t count : {1u, 3u, 64u, 100'000u}) {
        CheckAllReduce(rank, n, count, false);
        CheckAllReduce(rank, n, count, true);
      }
      for (const size_t count : {1u, 5u, 3'000u}) CheckOthers(rank, n, count);
    });
  }
}

TEST(Collectives, OneGroupIsOneLaunchOfAllItsCalls) {
  RunRanks(3, [](Rank& rank) {
    const size_t count = 50'000;
    DeviceArray<int64_t> words(count), out(count), next(count, -1);
    words.Set(Input(rank.rank, count));
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(
        ncclAllReduce(words.data(), out.data(), count, ncclInt64, ncclSum, rank.comm, rank.stream),
        ncclSuccess);
    // Each to the next: without the group, all would wait for their send to be received.
    EXPECT_EQ(ncclSend(words.data(), count, ncclInt64, (rank.rank + 1) % 3, rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(ncclRecv(next.data(), count, ncclInt64, (rank.rank + 2) % 3, rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(cudaStreamQuery(rank.stream), cudaSuccess) << "nothing is launched before the end";
    ASSERT_TRUE(Began(rank, ncclGroupEnd()));
    ASSERT_TRUE(Drains(rank.stream));
    EXPECT_EQ(out.Get()[17], SumOf(3, 17));
    EXPECT_EQ(next.Get(), Input((rank.rank + 2) % 3, count));
  });
}

TEST(Collectives, MessagesNeedOnlyTheTwo) {
  RunRanks(3, [](Rank& rank) {
    DeviceArray<int64_t> data(10, rank.rank);
    if (rank.rank == 0) {
      EXPECT_TRUE(Began(rank, ncclSend(data.data(), 10, ncclInt64, 2, rank.comm, rank.stream)));
    }
    if (rank.rank == 2) {
      EXPECT_TRUE(Began(rank, ncclRecv(data.data(), 10, ncclInt64, 0, rank.comm, rank.stream)));
      ASSERT_TRUE(Drains(rank.stream));
      EXPECT_EQ(data.Get()[9], 0);
    }
  });
}

// Sums of floats differ from call to call, in an order that the seed draws, and are the same on all
// ranks of a call.
TEST(Collectives, FloatsAreSummedInNoPromisedOrder) {
  constexpr size_t kCount = 4'000;
  std::vector<float> results[2][3];
  RunRanks(3, [&](Rank& rank) {
    std::vector<float> values(kCount);
    for (size_t i = 0; i < kCount; ++i)
      values[i] = std::ldexp(1.0f + static_cast<float>(i) / 4001.0f, 5 * rank.rank);
    DeviceArray<float> in(kCount), out(kCount);
    in.Set(values);
    for (auto& result : results) {
      ASSERT_TRUE(Began(rank, ncclAllReduce(in.data(), out.data(), kCount, ncclFloat, ncclSum,
                                            rank.comm, rank.stream)));
      ASSERT_TRUE(Drains(rank.stream));
      result[rank.rank] = out.Get();
    }
  });
  EXPECT_EQ(results[0][0], results[0][1]);
  EXPECT_EQ(results[0][0], results[0][2]);
  EXPECT_NE(results[0][0], results[1][0]) << "a test that relies on the order would pass";
}

TEST(Collectives, TheOrderComesFromTheSeed) {
  EXPECT_EQ(SumOrder(4, 0, 7, 1), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(SumOrder(4, 1, 7, 1), SumOrder(4, 1, 7, 1));
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 1; seed < 100; ++seed) orders.insert(SumOrder(3, seed, 7, 1));
  EXPECT_EQ(orders.size(), 6u);
}

template <typename T>
std::vector<T> Reduced(std::vector<std::vector<T>> parts, ncclDataType_t type, ncclRedOp_t op) {
  std::vector<T> out(parts[0].size());
  std::vector<const void*> pointers;
  for (const auto& part : parts) pointers.push_back(part.data());
  Reduce(pointers, out.data(), out.size(), type, op);
  return out;
}

TEST(Collectives, EveryTypeAndOperation) {
  using I8 = std::vector<int8_t>;
  EXPECT_EQ(Reduced<int8_t>({{100, -3}, {100, 5}}, ncclInt8, ncclSum), (I8{-56, 2}));
  EXPECT_EQ(Reduced<int8_t>({{2, -3}, {3, 5}}, ncclInt8, ncclProd), (I8{6, -15}));
  EXPECT_EQ(Reduced<int8_t>({{2, -3}, {3, -5}}, ncclInt8, ncclMax), (I8{3, -3}));
  EXPECT_EQ(Reduced<uint8_t>({{200}, {100}}, ncclUint8, ncclMin), std::vector<uint8_t>{100});
  EXPECT_EQ(Reduced<int32_t>({{-8}, {4}}, ncclInt32, ncclAvg), std::vector<int32_t>{-2});
  EXPECT_EQ(Reduced<uint32_t>({{1u << 31}, {1u << 31}}, ncclUint32, ncclSum),
            std::vector<uint32_t>{0});
  EXPECT_EQ(Reduced<int64_t>({{INT64_MAX}, {2}}, ncclInt64, ncclSum),
            std::vector<int64_t>{INT64_MIN + 1});
  EXPECT_EQ(Reduced<uint64_t>({{3}, {5}}, ncclUint64, ncclMax), std::vector<uint64_t>{5});
  EXPECT_EQ(Reduced<float>({{1.5f}, {2.0f}}, ncclFloat32, ncclAvg), std::vector<float>{1.75f});
  EXPECT_EQ(Reduced<double>({{1e300}, {2.0}}, ncclFloat64, ncclProd), std::vector<double>{2e300});
  using Half = std::vector<uint16_t>;
  EXPECT_EQ(Reduced<uint16_t>({{kernels::Bf16Of(1.0f)}, {kernels::Bf16Of(0.00390625f)}},
                              ncclBfloat16, ncclSum),
            Half{kernels::Bf16Of(1.00390625f)});
  EXPECT_EQ(
      Reduced<uint16_t>({{kernels::F16Of(3.0f)}, {kernels::F16Of(0.5f)}}, ncclFloat16, ncclProd),
      Half{kernels::F16Of(1.5f)});
  EXPECT_EQ(SizeOfType(ncclFloat8e4m3), 0u);
}

// ---- Calling

TEST(Calls, InitIsInProgressUntilAllHaveCome) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclConfig_t config = NonBlocking();
  ncclComm_t first = nullptr, second = nullptr;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(ncclCommInitRankConfig(&first, 2, id, 0, &config), ncclInProgress);
  const TestStream stream;
  DeviceArray<int64_t> data(4);
  ncclResult_t state = ncclSuccess;
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(ncclCommGetAsyncError(first, &state), ncclSuccess);
    ASSERT_EQ(state, ncclInProgress);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  int count = 0;
  EXPECT_EQ(ncclCommCount(first, &count), ncclInvalidArgument);
  EXPECT_EQ(ncclAllReduce(data.data(), data.data(), 4, ncclInt64, ncclSum, first, stream),
            ncclInvalidArgument);
  EXPECT_EQ(ncclCommFinalize(first), ncclInvalidArgument);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(ncclCommInitRankConfig(&second, 2, id, 1, &config), ncclInProgress);
  EXPECT_EQ(AwaitState(first), ncclSuccess);
  EXPECT_EQ(AwaitState(second), ncclSuccess);
  EXPECT_EQ(ncclCommAbort(first), ncclSuccess);
  EXPECT_EQ(ncclCommAbort(second), ncclSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST(Calls, BadArgumentsAreRefusedAtOnce) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclComm_t comm = nullptr;
  ncclConfig_t unset{};
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &unset), ncclInvalidArgument);
  ncclConfig_t config = NonBlocking();
  config.size = 8;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
  config = NonBlocking();
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, 2, &config), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, ncclUniqueId{}, 0, &config), ncclInvalidArgument);
  EXPECT_EQ(comm, nullptr);
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInProgress);
  ASSERT_EQ(AwaitState(comm), ncclSuccess);
  const TestStream stream;
  DeviceArray<int64_t> data(4);
  const auto reduce = [&](const void* in, void* out, size_t count, int type) {
    return ncclAllReduce(in, out, count, static_cast<ncclDataType_t>(type), ncclSum, comm, stream);
  };
  int64_t host[4];
  EXPECT_EQ(reduce(data.data(), data.data(), 5, ncclInt64), ncclInvalidArgument) << "too long";
  EXPECT_EQ(reduce(host, data.data(), 4, ncclInt64), ncclInvalidArgument) << "not device memory";
  EXPECT_EQ(reduce(data.data(), data.data(), 4, ncclNumTypes), ncclInvalidArgument);
  EXPECT_EQ(ncclBroadcast(data.data(), data.data(), 4, ncclInt64, 1, comm, stream),
            ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  // ncclInvalidArgument leaves the communicator usable.
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
  EXPECT_EQ(state, ncclSuccess);
  EXPECT_EQ(reduce(data.data(), data.data(), 4, ncclInt64), ncclInProgress);
  EXPECT_EQ(AwaitState(comm), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST(Calls, TwoRanksOfOneGpuAreInvalidUsage) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclConfig_t config = NonBlocking();
  ncclComm_t comms[2] = {};
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  for (int r = 0; r < 2; ++r)
    ASSERT_EQ(ncclCommInitRankConfig(&comms[r], 2, id, r, &config), ncclInProgress);
  for (ncclComm_t comm : comms) {
    EXPECT_EQ(AwaitState(comm), ncclInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("duplicate GPU"), std::string::npos);
  }
  for (ncclComm_t comm : comms) EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
}

TEST(Calls, RanksThatDisagreeOnTheirNumberNeverMeet) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclConfig_t config = NonBlocking();
  ncclComm_t comms[2] = {};
  testing::internal::CaptureStderr();
  for (int r = 0; r < 2; ++r) {
    ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
    ASSERT_EQ(ncclCommInitRankConfig(&comms[r], 2 + r, id, r, &config), ncclInProgress);
  }
  ncclResult_t state = ncclSuccess;
  for (int i = 0; i < 100; ++i) {
    for (ncclComm_t comm : comms) {
      ASSERT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
      ASSERT_EQ(state, ncclInProgress);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (ncclComm_t comm : comms) EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("ranks, others say"), std::string::npos) << said;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST(Calls, BlockingCommunicatorsWait) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
      const TestStream stream;
      ncclComm_t comm = nullptr;
      ASSERT_EQ(ncclCommInitRank(&comm, 2, id, r), ncclSuccess);
      DeviceArray<int64_t> data(2, 3);
      ASSERT_EQ(ncclAllReduce(data.data(), data.data(), 2, ncclInt64, ncclSum, comm, stream),
                ncclSuccess);
      ASSERT_TRUE(Drains(stream));
      EXPECT_EQ(data.Get()[1], 6);
      EXPECT_EQ(ncclCommFinalize(comm), ncclSuccess);
      EXPECT_EQ(ncclCommFinalize(comm), ncclInvalidArgument);
      EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One thread drives two GPUs: only a group lets it.
TEST(Calls, AGroupInitialisesAndLaunchesForSeveralGpus) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclComm_t comms[2] = {};
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (int r = 0; r < 2; ++r) {
    ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
    ASSERT_EQ(ncclCommInitRank(&comms[r], 2, id, r), ncclSuccess);
  }
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  std::unique_ptr<TestStream> streams[2];
  std::unique_ptr<DeviceArray<int64_t>> data[2];
  for (int r = 0; r < 2; ++r) {
    ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
    streams[r] = std::make_unique<TestStream>();
    data[r] = std::make_unique<DeviceArray<int64_t>>(5, r + 1);
  }
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (int r = 0; r < 2; ++r) {
    ASSERT_EQ(ncclAllReduce(data[r]->data(), data[r]->data(), 5, ncclInt64, ncclSum, comms[r],
                            *streams[r]),
              ncclSuccess);
  }
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  for (int r = 0; r < 2; ++r) {
    ASSERT_TRUE(Drains(*streams[r]));
    EXPECT_EQ(data[r]->Get()[4], 3);
  }
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (ncclComm_t comm : comms) ASSERT_EQ(ncclCommDestroy(comm), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST(Calls, StrangersAtTheMeetingAreHarmless) {
  ncclUniqueId unique;
  ASSERT_EQ(ncclGetUniqueId(&unique), ncclSuccess);
  MeetingId id;
  ASSERT_TRUE(FromUniqueId(unique, id));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const int length =
      std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                    "holdfast-emulated-nccl-%016llx", static_cast<unsigned long long>(id.name));
  std::vector<Fd> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.emplace_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(strangers.back().get(), reinterpret_cast<sockaddr*>(&address),
                      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)),
              0);
    const std::string words(static_cast<size_t>(i) * 7, 'x');
    if (i > 0) (void)send(strangers.back().get(), words.data(), words.size(), MSG_NOSIGNAL);
  }
  ncclConfig_t config = NonBlocking();
  ncclComm_t comms[2] = {};
  for (int r = 0; r < 2; ++r) {
    ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
    ASSERT_EQ(ncclCommInitRankConfig(&comms[r], 2, unique, r, &config), ncclInProgress);
  }
  for (ncclComm_t comm : comms) EXPECT_EQ(AwaitState(comm), ncclSuccess);
  for (ncclComm_t comm : comms) EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

// A rank that is ahead has told of its next operation while another is still in the one before;
// that was read then, and nothing else may come to wake it.
TEST(Collectives, ManySmallOperationsOneAfterTheOtherAllEnd) {
  RunRanks(3, [](Rank& rank) {
    DeviceArray<int64_t> word(1);
    for (int i = 0; i < 1500; ++i) {
      ASSERT_TRUE(Began(rank, ncclBroadcast(word.data(), word.data(), 1, ncclInt64, i % 2,
                                            rank.comm, rank.stream)));
      ASSERT_TRUE(Drains(rank.stream)) << "operation " << i;
    }
  });
}

}  // namespace
}  // namespace holdfast::emulation
