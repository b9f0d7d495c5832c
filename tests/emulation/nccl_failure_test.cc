// How the emulated NCCL stands, stops and ends. Ranks are threads, each with a GPU; those that are
// processes are in nccl_process_test.cc.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "tests/emulation/cuda/runtime.h"
#include "tests/emulation/faults.h"
#include "tests/emulation/nccl_testing.h"

namespace holdfast::emulation {
namespace {

const bool gpus_set = setenv("HOLDFAST_EMU_GPUS", "4", 1) == 0;  // before the first call

constexpr int kShortMs = 50;  // for what must not happen

// Two ranks in this thread, on two GPUs, that have done one all-reduce.
class TwoRanks : public testing::Test {
 protected:
  void SetUp() override {
    Begin(comm_);
    for (int r = 0; r < 2; ++r) {
      ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
      stream_[r] = std::make_unique<TestStream>();
      data_[r] = std::make_unique<DeviceArray<int64_t>>(kCount, r + 1);
      ASSERT_EQ(Reduce(r), ncclInProgress);
    }
    for (int r = 0; r < 2; ++r) {
      ASSERT_EQ(AwaitState(comm_[r]), ncclSuccess);
      ASSERT_TRUE(Drains(*stream_[r]));
      ASSERT_EQ(data_[r]->Get()[0], 3);
    }
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  }
  void TearDown() override {
    ASSERT_TRUE(SetFaults("").ok());
    End(comm_);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  }

  static void Begin(ncclComm_t (&comms)[2]) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    ncclConfig_t config = NonBlocking();
    for (int r = 0; r < 2; ++r) {
      ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
      ASSERT_EQ(ncclCommInitRankConfig(&comms[r], 2, id, r, &config), ncclInProgress);
    }
    for (ncclComm_t comm : comms) ASSERT_EQ(AwaitState(comm), ncclSuccess);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  }
  static void End(ncclComm_t (&comms)[2]) {
    for (ncclComm_t& comm : comms) {
      if (comm != nullptr) {
        EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
      }
      comm = nullptr;
    }
  }

  ncclResult_t Reduce(int r) {
    EXPECT_EQ(cudaSetDevice(r), cudaSuccess);
    return ncclAllReduce(data_[r]->data(), data_[r]->data(), kCount, ncclInt64, ncclSum, comm_[r],
                         *stream_[r]);
  }
  ncclResult_t State(int r) {
    ncclResult_t state = ncclInternalError;
    EXPECT_EQ(ncclCommGetAsyncError(comm_[r], &state), ncclSuccess);
    return state;
  }

  static constexpr size_t kCount = 1000;
  ncclComm_t comm_[2] = {};
  std::unique_ptr<TestStream> stream_[2];
  std::unique_ptr<DeviceArray<int64_t>> data_[2];
};

TEST(FirstCollective, ConnectsAndIsNotOnTheStreamBefore) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclConfig_t config = NonBlocking();
  ncclComm_t comms[2] = {};
  for (int r = 0; r < 2; ++r) {
    ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
    ASSERT_EQ(ncclCommInitRankConfig(&comms[r], 2, id, r, &config), ncclInProgress);
  }
  for (ncclComm_t comm : comms) ASSERT_EQ(AwaitState(comm), ncclSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const TestStream stream;
  DeviceArray<int64_t> data(4);
  ASSERT_EQ(ncclAllReduce(data.data(), data.data(), 4, ncclInt64, ncclSum, comms[0], stream),
            ncclInProgress);
  for (int i = 0; i < 50; ++i) {
    ncclResult_t state = ncclSuccess;
    ASSERT_EQ(ncclCommGetAsyncError(comms[0], &state), ncclSuccess);
    ASSERT_EQ(state, ncclInProgress) << "the other rank has not come";
    ASSERT_EQ(cudaStreamQuery(stream), cudaSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (ncclComm_t comm : comms) EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
}

TEST_F(TwoRanks, AMissingRankIsAHangAndNoError) {
  ASSERT_EQ(Reduce(0), ncclSuccess);
  EXPECT_FALSE(Drains(*stream_[0], kShortMs));
  EXPECT_EQ(State(0), ncclSuccess);
  ASSERT_EQ(Reduce(1), ncclSuccess);
  EXPECT_TRUE(Drains(*stream_[0]));
  EXPECT_TRUE(Drains(*stream_[1]));
  EXPECT_EQ(data_[0]->Get()[kCount - 1], 6);
}

// An all-gather gives nothing to wait for but the others' coming.
TEST_F(TwoRanks, EvenABroadcastsRootWaitsForAll) {
  for (int call = 0; call < 2; ++call) {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    const ncclResult_t mine =
        ncclBroadcast(data_[0]->data(), data_[0]->data(), 1, ncclInt64, 0, comm_[0], *stream_[0]);
    if (call == 1) {
      EXPECT_EQ(mine, ncclSuccess);
      EXPECT_FALSE(Drains(*stream_[0], kShortMs));
    }
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    (void)ncclBroadcast(data_[1]->data(), data_[1]->data(), 1, ncclInt64, 0, comm_[1], *stream_[1]);
    ASSERT_EQ(AwaitState(comm_[0]), ncclSuccess);
    ASSERT_EQ(AwaitState(comm_[1]), ncclSuccess);
    EXPECT_TRUE(Drains(*stream_[0]));
    EXPECT_TRUE(Drains(*stream_[1]));
  }
}

TEST_F(TwoRanks, AbortIsLocalAndLetsLaterWorkRun) {
  ASSERT_EQ(Reduce(0), ncclSuccess);
  std::atomic<bool> ran{false};
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  Enqueue(*stream_[0], [&] { ran = true; });
  EXPECT_FALSE(Drains(*stream_[0], kShortMs));
  EXPECT_EQ(ncclCommAbort(comm_[0]), ncclSuccess);
  comm_[0] = nullptr;
  EXPECT_TRUE(Drains(*stream_[0]));
  EXPECT_TRUE(ran);
  EXPECT_EQ(data_[0]->Get()[0], -1) << "the output of an aborted operation is undefined";
  EXPECT_EQ(State(1), ncclSuccess) << "the other rank hears nothing";
  ASSERT_EQ(Reduce(1), ncclSuccess);
  EXPECT_FALSE(Drains(*stream_[1], kShortMs));
}

TEST_F(TwoRanks, AbortWaitsForEarlierWorkOfTheStream) {
  Gate gate;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  Enqueue(*stream_[0], [&] { gate.Pass(); });
  ASSERT_EQ(Reduce(0), ncclSuccess);
  std::atomic<bool> aborted{false};
  std::thread thread([&] {
    EXPECT_EQ(ncclCommAbort(comm_[0]), ncclSuccess);
    aborted = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(kShortMs));
  EXPECT_FALSE(aborted);
  gate.Open();
  thread.join();
  comm_[0] = nullptr;
}

TEST(Abort, JoinsAnInitThatNobodyElseComesTo) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclConfig_t config = NonBlocking();
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 3, id, 1, &config), ncclInProgress);
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
}

TEST(Abort, ACommunicatorThatIsGoneEndsTheProcessWhenItIsUsed) {
  const int status = RunChild({}, "Child.UsesWhatIsGone");
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGABRT);
}
TEST(Child, UsesWhatIsGone) {
  if (!IsChild()) return;
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
  ASSERT_EQ(ncclCommAbort(comm), ncclSuccess);
  ncclResult_t state = ncclSuccess;
  (void)ncclCommGetAsyncError(comm, &state);
}

// nccl#549: aborting one of two communicators that stand on a device waits for the other.
TEST_F(TwoRanks, TwoCommunicatorsOfADeviceMustBeAbortedInOneGroup) {
  for (const bool grouped : {false, true}) {
    ncclComm_t other[2] = {};
    Begin(other);
    if (comm_[0] == nullptr) Begin(comm_);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    const TestStream second;
    DeviceArray<int64_t> data(8);
    // Operations of each kind were connected before, or stand in progress: messages connect alone.
    ASSERT_EQ(ncclRecv(data.data(), 8, ncclInt64, 1, other[0], second), ncclInProgress);
    ASSERT_EQ(AwaitState(other[0]), ncclSuccess);
    ASSERT_EQ(ncclRecv(data_[0]->data(), 8, ncclInt64, 1, comm_[0], *stream_[0]), ncclInProgress);
    ASSERT_EQ(AwaitState(comm_[0]), ncclSuccess);
    if (grouped) {
      ASSERT_EQ(ncclGroupStart(), ncclSuccess);
      EXPECT_EQ(ncclCommAbort(comm_[0]), ncclSuccess);
      EXPECT_EQ(ncclCommAbort(other[0]), ncclSuccess);
      EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    } else {
      std::atomic<bool> aborted{false};
      std::thread thread([&] {
        EXPECT_EQ(ncclCommAbort(comm_[0]), ncclSuccess);
        aborted = true;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(kShortMs));
      EXPECT_FALSE(aborted);
      EXPECT_EQ(ncclCommAbort(other[0]), ncclSuccess);
      thread.join();
    }
    comm_[0] = other[0] = nullptr;
    End(comm_);
    End(other);
  }
}

TEST_F(TwoRanks, ContradictoryCallsStandAndSayWho) {
  testing::internal::CaptureStderr();
  ASSERT_EQ(Reduce(0), ncclSuccess);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(ncclAllReduce(data_[1]->data(), data_[1]->data(), kCount - 1, ncclInt64, ncclSum,
                          comm_[1], *stream_[1]),
            ncclSuccess);
  EXPECT_FALSE(Drains(*stream_[0], kShortMs));
  End(comm_);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("all-reduce of 1000 elements"), std::string::npos) << said;
  EXPECT_NE(said.find("all-reduce of 999 elements"), std::string::npos) << said;
}

TEST_F(TwoRanks, RevokeStopsOperationsAndForbidsNewOnes) {
  ASSERT_EQ(Reduce(0), ncclSuccess);
  EXPECT_FALSE(Drains(*stream_[0], kShortMs));
  EXPECT_EQ(ncclCommRevoke(comm_[0], 1), ncclInvalidArgument);
  ASSERT_EQ(ncclCommRevoke(comm_[0], NCCL_REVOKE_DEFAULT), ncclInProgress);
  EXPECT_EQ(AwaitState(comm_[0]), ncclSuccess);
  EXPECT_TRUE(Drains(*stream_[0]));
  EXPECT_EQ(Reduce(0), ncclInvalidUsage);
  EXPECT_EQ(ncclCommFinalize(comm_[0]), ncclInvalidUsage);
  EXPECT_EQ(ncclCommDestroy(comm_[0]), ncclSuccess);
  comm_[0] = nullptr;
}

TEST_F(TwoRanks, ShrinkRefusesWhatItCannotDo) {
  ncclComm_t child = nullptr;
  int itself = 0, nobody = 2, both[2] = {0, 1};
  const auto shrink = [&](int* excluded, int count) {
    return ncclCommShrink(comm_[0], excluded, count, &child, nullptr, NCCL_SHRINK_DEFAULT);
  };
  EXPECT_EQ(shrink(&itself, 1), ncclInvalidArgument);
  EXPECT_EQ(shrink(&nobody, 1), ncclInvalidArgument);
  EXPECT_EQ(shrink(both, 2), ncclInvalidArgument);
  EXPECT_EQ(shrink(nullptr, 0), ncclInvalidArgument);
  EXPECT_EQ(child, nullptr);
}

TEST_F(TwoRanks, ShrinkLeavesOneAlone) {
  ASSERT_EQ(Reduce(0), ncclSuccess);
  int excluded = 1;
  ncclComm_t child = nullptr;
  ASSERT_EQ(ncclCommShrink(comm_[0], &excluded, 1, &child, nullptr, NCCL_SHRINK_ABORT),
            ncclInProgress);
  EXPECT_TRUE(Drains(*stream_[0], 0)) << "the parent's operations were waited for";
  ASSERT_EQ(AwaitState(comm_[0]), ncclSuccess);
  ASSERT_NE(child, nullptr);
  int count = 0;
  ASSERT_EQ(ncclCommCount(child, &count), ncclSuccess);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(Reduce(0), ncclInvalidUsage) << "the parent is only to be aborted";
  EXPECT_EQ(ncclCommDestroy(child), ncclSuccess);
}

TEST_F(TwoRanks, ShrinkWantsTheParentReady) {
  // In progress: the first reduce-scatter, to which the other does not come.
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  DeviceArray<int64_t> out(2);
  ASSERT_EQ(
      ncclReduceScatter(data_[0]->data(), out.data(), 2, ncclInt64, ncclSum, comm_[0], *stream_[0]),
      ncclInProgress);
  int excluded = 1;
  ncclComm_t child = nullptr;
  EXPECT_EQ(ncclCommShrink(comm_[0], &excluded, 1, &child, nullptr, NCCL_SHRINK_ABORT),
            ncclInvalidArgument);
  // An error that it has recorded.
  ASSERT_TRUE(SetFaults("nccl.collective.error#1").ok());
  ASSERT_EQ(Reduce(1), ncclSuccess);
  while (State(1) == ncclSuccess) std::this_thread::yield();
  excluded = 0;
  EXPECT_EQ(ncclCommShrink(comm_[1], &excluded, 1, &child, nullptr, NCCL_SHRINK_ABORT),
            ncclRemoteError);
  EXPECT_EQ(child, nullptr);
  End(comm_);
}

TEST_F(TwoRanks, AnAsyncErrorIsOnOneRankAndItsOperationStands) {
  ASSERT_TRUE(SetFaults("nccl.collective.error:2#0").ok());
  for (int call = 0; call < 2; ++call) {
    ASSERT_EQ(Reduce(0), ncclSuccess);
    ASSERT_EQ(Reduce(1), ncclSuccess);
    if (call == 0) {
      ASSERT_TRUE(Drains(*stream_[0]) && Drains(*stream_[1]));
    }
  }
  EXPECT_FALSE(Drains(*stream_[0], kShortMs));
  EXPECT_FALSE(Drains(*stream_[1], kShortMs));
  EXPECT_EQ(State(0), ncclRemoteError);
  EXPECT_EQ(State(1), ncclSuccess);
  EXPECT_EQ(Reduce(0), ncclRemoteError) << "it is for good";
}

#if defined(__SANITIZE_THREAD__)
TEST(Collectives, AForgottenWaitIsARace) {
  const int forgotten = RunChild({{"FORGET", "1"}}, "Child.CollectiveAfterWork");
  ASSERT_TRUE(WIFEXITED(forgotten));
  EXPECT_EQ(WEXITSTATUS(forgotten), 66) << "ThreadSanitizer's own code for a race";
  EXPECT_EQ(RunChild({}, "Child.CollectiveAfterWork"), 0);
}
TEST(Child, CollectiveAfterWork) {
  if (!IsChild()) return;
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
  const TestStream compute, reduce;
  const TestEvent event;
  DeviceArray<int64_t> data(4);
  // The first one connects in a thread of its own; the second one is what is looked at.
  ASSERT_EQ(ncclAllReduce(data.data(), data.data(), 4, ncclInt64, ncclSum, comm, reduce),
            ncclSuccess);
  ASSERT_EQ(cudaStreamSynchronize(reduce), cudaSuccess);
  Enqueue(compute, [to = data.data()] { *to = 1; });
  ASSERT_EQ(cudaEventRecord(event, compute), cudaSuccess);
  if (std::getenv("FORGET") == nullptr) {
    ASSERT_EQ(cudaStreamWaitEvent(reduce, event), cudaSuccess);
  }
  ASSERT_EQ(ncclAllReduce(data.data(), data.data(), 4, ncclInt64, ncclSum, comm, reduce),
            ncclSuccess);
  ASSERT_EQ(cudaStreamSynchronize(reduce), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(compute), cudaSuccess);
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
}
#endif

TEST(Faults, AnAbortThatHangsIsTheCallersToGiveUp) {
  const int status = RunChild({{"HOLDFAST_EMU_FAULT", "nccl.abort.hang"}}, "Child.HangingAbort");
  EXPECT_EQ(status, 0);
}
TEST(Child, HangingAbort) {
  if (!IsChild()) return;
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
  std::atomic<bool> back{false};
  std::thread([&] {
    (void)ncclCommAbort(comm);
    back = true;
  }).detach();
  while (FaultsFired("nccl.abort.hang") == 0) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(kShortMs));
  _exit(back ? 1 : 0);
}

TEST(Faults, InitHangsFailsAndIsAborted) {
  ncclConfig_t config = NonBlocking();
  ncclComm_t comm = nullptr;
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ASSERT_TRUE(SetFaults("nccl.init.hang").ok());
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInProgress);
  while (FaultsFired("nccl.init.hang") == 0) std::this_thread::yield();
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  ASSERT_TRUE(SetFaults("nccl.init.error").ok());
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInProgress);
  EXPECT_EQ(AwaitState(comm), ncclSystemError);
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  ASSERT_TRUE(SetFaults("").ok());
}

TEST(Faults, ALostDeviceEndsCollectivesToo) {
  EXPECT_EQ(RunChild({{"HOLDFAST_EMU_FAULT", "nccl.collective.sticky"}}, "Child.LostInCollective"),
            0);
}
TEST(Child, LostInCollective) {
  if (!IsChild()) return;
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
  const TestStream stream;
  DeviceArray<int64_t> data(4);
  ASSERT_EQ(ncclAllReduce(data.data(), data.data(), 4, ncclInt64, ncclSum, comm, stream),
            ncclSuccess);
  ASSERT_TRUE(Drains(stream));
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(ncclAllReduce(data.data(), data.data(), 4, ncclInt64, ncclSum, comm, stream),
            ncclUnhandledCudaError);
  EXPECT_EQ(ncclCommAbort(comm), ncclUnhandledCudaError);
}

}  // namespace
}  // namespace holdfast::emulation
