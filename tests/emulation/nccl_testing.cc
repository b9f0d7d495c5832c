#include "tests/emulation/nccl_testing.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include "tests/emulation/faults.h"

namespace holdfast::emulation {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kParentFd = 3;

bool Until(int ms, const std::function<bool()>& ready) {
  const auto end = Clock::now() + std::chrono::milliseconds(ms);
  while (!ready()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

std::string Hex(const ncclUniqueId& id) {
  std::string text;
  char two[3];
  for (const char c : id.internal) {
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(c));
    text += two;
  }
  return text;
}

ncclUniqueId FromHex(const std::string& text) {
  ncclUniqueId id{};
  for (size_t i = 0; i < sizeof id.internal && 2 * i + 1 < text.size(); ++i)
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

}  // namespace

ncclConfig_t NonBlocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

ncclResult_t AwaitState(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  (void)Until(kBoundMs, [&] {
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    return state != ncclInProgress;
  });
  return state;
}

bool Drains(cudaStream_t stream, int ms) {
  const bool drained = Until(ms, [&] { return cudaStreamQuery(stream) != cudaErrorNotReady; });
  (void)cudaGetLastError();
  return drained;
}

void RunRanks(int n, const std::function<void(Rank&)>& body) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
      const TestStream stream;
      ncclConfig_t config = NonBlocking();
      Rank rank{r, nullptr, stream};
      ASSERT_EQ(ncclCommInitRankConfig(&rank.comm, n, id, r, &config), ncclInProgress);
      ASSERT_EQ(AwaitState(rank.comm), ncclSuccess);
      body(rank);
      EXPECT_EQ(ncclCommDestroy(rank.comm), ncclSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- Processes

RankProcess::RankProcess(int gpu, const Environment& environment) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  socket_ = ends[0];
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    dup2(ends[1], kParentFd);
    setenv("HOLDFAST_EMULATION_CHILD", "1", 1);
    setenv("CUDA_VISIBLE_DEVICES", std::to_string(gpu).c_str(), 1);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    execl("/proc/self/exe", "rank", "--gtest_filter=Child.Rank", "--gtest_brief=1", nullptr);
    _exit(127);
  }
  close(ends[1]);
}

RankProcess::~RankProcess() {
  Kill();
  close(socket_);
}

void RankProcess::Kill() {
  if (process_ <= 0) return;
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
  process_ = -1;
}

void RankProcess::Signal(int signal) const { kill(process_, signal); }

void RankProcess::Say(const std::string& line) {
  (void)send(socket_, line.data(), line.size(), MSG_NOSIGNAL);
}

std::string RankProcess::Hear(int ms) {
  pollfd fd{socket_, POLLIN, 0};
  if (poll(&fd, 1, ms) <= 0) return "";
  char text[4096];
  const ssize_t got = recv(socket_, text, sizeof text, 0);
  return got <= 0 ? "" : std::string(text, static_cast<size_t>(got));
}

// id                     a unique id
// begin N RANK ID        init, not waited for: its result
// init N RANK ID         and waited for: the state
// state                  what ncclCommGetAsyncError says
// wait                   the same once it is not ncclInProgress
// launch COUNT           an all-reduce of COUNT times (rank + 1): the result; waits until it is on
//                        the stream, but no longer than a state is in progress
// drained MS             "yes" when the stream is empty within MS
// sum                    the first and last element of what the last launch gave
// call COUNT             as launch, and does not wait
// shrink RANK...         with NCCL_SHRINK_ABORT: the parent's state; the new one is used from then
// rank                   "RANK of N"
// abort finalize destroy revoke    the result
// faults NAME            how often it has fired
class Obedient {
 public:
  std::string Do(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "id") {
      ncclUniqueId id;
      return ncclGetUniqueId(&id) == ncclSuccess ? Hex(id) : "none";
    }
    if (verb == "begin" || verb == "init") return Init(verb == "init", words);
    if (verb == "state") return State();
    if (verb == "wait") return Number(AwaitState(comm_));
    if (verb == "launch" || verb == "call") return Launch(verb == "launch", words);
    if (verb == "drained") {
      int ms = 0;
      words >> ms;
      return Drains(*stream_, ms) ? "yes" : "no";
    }
    if (verb == "sum") {
      const std::vector<int64_t> sum = data_->Get();
      return std::to_string(sum.front()) + " " + std::to_string(sum.back());
    }
    if (verb == "shrink") return Shrink(words);
    if (verb == "rank") return Rank();
    if (verb == "abort") return Number(ncclCommAbort(comm_));
    if (verb == "finalize") {
      const ncclResult_t result = ncclCommFinalize(comm_);
      return Number(result == ncclInProgress ? AwaitState(comm_) : result);
    }
    if (verb == "destroy") return Number(ncclCommDestroy(comm_));
    if (verb == "revoke") {
      const ncclResult_t result = ncclCommRevoke(comm_, NCCL_REVOKE_DEFAULT);
      return Number(result == ncclInProgress ? AwaitState(comm_) : result);
    }
    if (verb == "faults") {
      std::string name;
      words >> name;
      return std::to_string(FaultsFired(name));
    }
    return "what?";
  }

 private:
  static std::string Number(ncclResult_t result) {
    return std::to_string(static_cast<int>(result));
  }

  std::string State() {
    ncclResult_t state = ncclSuccess;
    (void)ncclCommGetAsyncError(comm_, &state);
    return Number(state);
  }

  std::string Init(bool waits, std::istringstream& words) {
    if (stream_ == nullptr) stream_ = std::make_unique<TestStream>();
    int n = 0, rank = 0;
    std::string id;
    words >> n >> rank >> id;
    rank_ = rank;
    ncclConfig_t config = NonBlocking();
    const ncclResult_t result = ncclCommInitRankConfig(&comm_, n, FromHex(id), rank, &config);
    return Number(waits && result == ncclInProgress ? AwaitState(comm_) : result);
  }

  std::string Launch(bool waits, std::istringstream& words) {
    size_t count = 0;
    words >> count;
    data_ = std::make_unique<DeviceArray<int64_t>>(count, rank_ + 1);
    const ncclResult_t result =
        ncclAllReduce(data_->data(), data_->data(), count, ncclInt64, ncclSum, comm_, *stream_);
    return Number(waits && result == ncclInProgress ? AwaitState(comm_) : result);
  }

  std::string Shrink(std::istringstream& words) {
    std::vector<int> excluded;
    for (int r = 0; words >> r;) excluded.push_back(r);
    ncclComm_t child = nullptr;
    ncclConfig_t config = NonBlocking();
    ncclResult_t result = ncclCommShrink(comm_, excluded.data(), static_cast<int>(excluded.size()),
                                         &child, &config, NCCL_SHRINK_ABORT);
    if (result == ncclInProgress) result = AwaitState(comm_);
    if (result != ncclSuccess) return Number(result);
    if (child == nullptr) return "no child";
    const ncclResult_t aborted = ncclCommAbort(comm_);
    comm_ = child;
    return Number(aborted);
  }

  std::string Rank() {
    int rank = -1, n = -1;
    (void)ncclCommUserRank(comm_, &rank);
    (void)ncclCommCount(comm_, &n);
    return std::to_string(rank) + " of " + std::to_string(n);
  }

  int rank_ = 0;
  ncclComm_t comm_ = nullptr;
  std::unique_ptr<TestStream> stream_;
  std::unique_ptr<DeviceArray<int64_t>> data_;
};

void ObeyParent() {
  Obedient obedient;
  char text[4096];
  for (;;) {
    const ssize_t got = recv(kParentFd, text, sizeof text, 0);
    if (got <= 0) _exit(0);
    const std::string answer = obedient.Do(std::string(text, static_cast<size_t>(got)));
    (void)send(kParentFd, answer.data(), answer.size(), MSG_NOSIGNAL);
  }
}

}  // namespace holdfast::emulation
