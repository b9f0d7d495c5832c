// Measures all-reduce between two processes of this machine, over the links and over shared memory,
// against the limits of bench_limits.h, all in one run and in turns, so that what else the machine
// does meets all alike.
//   collectives_bench [--json] [--bytes 4096,1048576,...]
// Times are medians, in microseconds, from a common start to the end in one process. "shm": the
// data lies in a shared block; "staged": it does not, and is copied through the segment.
// "of raw" = raw TCP / tcp, "of limit" = shm limit / shm. rs, ag: reduce-scatter (out of place) and
// all-gather of the same array alone. Definitions, results and how to read them: BENCH.md.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/text.h"
#include "runtime/collectives/communicator.h"
#include "runtime/collectives/shared_block.h"
#include "tests/bench/report.h"
#include "tests/collectives/bench_limits.h"

namespace holdfast {
namespace {

constexpr int64_t kLargeBytes = 16 << 20;

struct Options {
  std::vector<int64_t> bytes = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20};
};

// What is measured, in the order of the columns.
enum Column {
  kMemcpy,
  kRaw,
  kTcp,
  kLimit,
  kShm,
  kStaged,
  kTcpRs,
  kTcpAg,
  kShmRs,
  kShmAg,
  kColumns
};
const char* const kNames[kColumns] = {"memcpy", "raw_tcp", "tcp",    "shm_limit", "shm",
                                      "staged", "tcp_rs",  "tcp_ag", "shm_rs",    "shm_ag"};

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "collectives_bench: %s\n", why.c_str());
  _exit(1);
}

void Check(const absl::Status& status) {
  if (!status.ok()) Die(std::string(status.message()));
}

// One of the two processes.
class Member {
 public:
  Member(BenchReport* report, int rank, const Options& options, SharedPair* pair,
         Connection* connection, int to, int from)
      : report_(report),
        rank_(rank),
        options_(options),
        pair_(pair),
        wire_(connection->end[rank].get()) {
    const int64_t largest = *std::max_element(options.bytes.begin(), options.bytes.end());
    private_.resize(static_cast<size_t>(largest) / 8, 1);
    out_.resize(private_.size() / 2 + 1);
    scratch_.resize(kExchangeBlock);
    auto block = SharedBlock::Create(largest, true);
    Check(block.status());
    block_ = std::move(*block);
    std::fill_n(block_.as<int64_t>(), private_.size(), 1);
    Build(to, from);
  }

  void Run() {
    if (report_ != nullptr && !report_->json()) Head();
    for (const int64_t bytes : options_.bytes) {
      CheckResult(bytes);
      Measure(bytes);
      if (report_ == nullptr) continue;
      report_->json() ? Report(bytes) : Print(bytes);
    }
    Check(tcp_->Close(Deadline::After(30'000)));
    Check(shm_->Close(Deadline::After(30'000)));
  }

 private:
  void Build(int to, int from) {
    auto endpoint = TcpEndpoint::Listen({});
    Check(endpoint.status());
    endpoint_ = std::move(*endpoint);
    int ports[2] = {endpoint_->port(), endpoint_->port()};
    if (write(to, &ports[rank_], sizeof(int)) != sizeof(int) ||
        read(from, &ports[1 - rank_], sizeof(int)) != sizeof(int)) {
      Die("the other process has gone");
    }
    TcpEndpoint::GroupOptions group;
    group.run = group.secret = "bench";
    group.rank = rank_;
    group.detect_ms = 30'000;
    group.shared = {&block_};
    for (const int port : ports) group.peers.push_back({"127.0.0.1", port});
    for (auto* comm : {&tcp_, &shm_}) {
      group.nonce = ++group.generation;
      group.transport = comm == &tcp_ ? Transport::kTcp : Transport::kShm;
      auto built = endpoint_->Build(group, nullptr);
      Check(built.status());
      *comm = std::move(*built);
    }
  }

  // Runs `work` on both sides at the same time; its microseconds here.
  double Time(const std::function<void()>& work) {
    pair_->Barrier(rank_);
    const int64_t start = NowNs();
    work();
    return static_cast<double>(NowNs() - start) / 1e3;
  }
  static int64_t NowNs() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000 + now.tv_nsec;
  }
  static void Wait(Communicator& comm, Ticket ticket) {
    Check(comm.Wait(ticket, Deadline::After(60'000)));
  }

  // What is timed must also be right.
  void CheckResult(int64_t bytes) {
    const size_t count = static_cast<size_t>(bytes) / 8;
    const std::span<int64_t> in_block(block_.as<int64_t>(), count), plain(private_.data(), count);
    for (const auto& [comm, data] :
         {std::pair{tcp_.get(), plain}, {shm_.get(), in_block}, {shm_.get(), plain}}) {
      for (size_t i = 0; i < count; ++i) data[i] = static_cast<int64_t>(i) * (rank_ + 1);
      Wait(*comm, comm->AllReduce(data, {}));
      for (size_t i = 0; i < count; ++i) {
        if (data[i] != static_cast<int64_t>(i) * 3) Die("a sum is wrong");
      }
    }
  }

  void Measure(int64_t bytes) {
    const size_t count = static_cast<size_t>(bytes) / 8;
    const std::span<int64_t> in_block(block_.as<int64_t>(), count), plain(private_.data(), count);
    const auto borders = Communicator::Slices(static_cast<int64_t>(count), 8, 2);
    const std::vector<int64_t> in_bytes = {0, borders[1] * 8, borders[2] * 8};
    const std::span<int64_t> out(out_.data(),
                                 static_cast<size_t>(borders[rank_ + 1] - borders[rank_]));
    const auto all_reduce = [](Communicator& comm, std::span<int64_t> data) {
      Wait(comm, comm.AllReduce(data, {}));
    };
    const auto scatter = [&](Communicator& comm, std::span<int64_t> in) {
      Wait(comm, comm.ReduceScatter(in, borders, out, {}));
    };
    const auto gather = [&](Communicator& comm, std::span<int64_t> data) {
      Wait(comm, comm.AllGather(std::as_writable_bytes(data), in_bytes, {}));
    };
    const std::function<void()> work[kColumns] = {
        [&] { std::memcpy(plain.data(), in_block.data(), static_cast<size_t>(bytes)); },
        [&] {
          if (!Exchange(wire_, bytes, scratch_)) Die("the other process has gone");
        },
        [&] { all_reduce(*tcp_, plain); },
        [&] { LimitAllReduce(pair_, rank_, count); },
        [&] { all_reduce(*shm_, in_block); },
        [&] { all_reduce(*shm_, plain); },
        [&] { scatter(*tcp_, plain); },
        [&] { gather(*tcp_, plain); },
        [&] { scatter(*shm_, in_block); },
        [&] { gather(*shm_, in_block); },
    };
    const int rounds = bytes <= 65536        ? 300
                       : bytes <= (2 << 20)  ? 60
                       : bytes <= (32 << 20) ? 15
                                             : 7;
    for (auto& times : times_) times.clear();
    for (int round = 0; round <= rounds; ++round) {
      for (int c = 0; c < kColumns; ++c) {
        const double us = Time(work[c]);
        if (round > 0) times_[c].push_back(us);  // the first one warms
      }
    }
  }

  double Median(int column) const { return holdfast::Median(times_[column]); }

  static void Head() {
    std::printf("two processes, medians in us\n%10s", "bytes");
    for (const char* name : kNames) std::printf(" %9s", name);
    std::printf(" %7s %8s %9s %9s\n", "of raw", "of limit", "tcp GB/s", "shm GB/s");
    std::fflush(stdout);
  }

  void Report(int64_t bytes) {
    for (int c = 0; c < kColumns; ++c)
      report_->Add(Cat(kNames[c], " ", bytes, " B"), Median(c), "us");
    report_->Add(Cat("tcp of raw TCP ", bytes, " B"), 100 * Median(kRaw) / Median(kTcp), "%",
                 ">= 90");
    report_->Add(Cat("shm of its limit ", bytes, " B"), 100 * Median(kLimit) / Median(kShm), "%",
                 bytes >= kLargeBytes ? ">= 70" : "");
  }

  void Print(int64_t bytes) {
    std::printf("%10lld", static_cast<long long>(bytes));
    for (int c = 0; c < kColumns; ++c) std::printf(" %9.1f", Median(c));
    std::printf(" %6.0f%% %7.0f%% %9.2f %9.2f\n", 100 * Median(kRaw) / Median(kTcp),
                100 * Median(kLimit) / Median(kShm),
                static_cast<double>(bytes) / Median(kTcp) / 1e3,
                static_cast<double>(bytes) / Median(kShm) / 1e3);
    std::fflush(stdout);
  }

  BenchReport* const report_;  // null in the other process
  const int rank_;
  const Options& options_;
  SharedPair* const pair_;
  const int wire_;
  std::vector<int64_t> private_, out_;
  std::vector<std::byte> scratch_;
  SharedBlock block_;
  std::unique_ptr<TcpEndpoint> endpoint_;
  std::unique_ptr<Communicator> tcp_, shm_;
  std::vector<double> times_[kColumns];
};

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--json") continue;  // BenchReport's
    if (argument == "--bytes" && i + 1 < argc) {
      options->bytes.clear();
      std::istringstream list(argv[++i]);
      for (std::string one; std::getline(list, one, ',');) {
        const int64_t bytes = std::atoll(one.c_str()) / 64 * 64;
        if (bytes <= 0) return false;
        options->bytes.push_back(bytes);
      }
    } else {
      return false;
    }
  }
  return !options->bytes.empty();
}

int Main(const Options& options, BenchReport* report) {
  SharedPair pair(*std::max_element(options.bytes.begin(), options.bytes.end()));
  Connection connection = Connect();
  int there[2], back[2];
  if (pipe(there) != 0 || pipe(back) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Member(nullptr, 1, options, &pair, &connection, back[1], there[0]).Run();
    _exit(0);
  }
  Member(report, 0, options, &pair, &connection, there[1], back[0]).Run();
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) return 1;
  return report->json() ? report->Print() : 0;
}

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) {
  holdfast::Options options;
  if (!holdfast::Parse(argc, argv, &options)) {
    std::fprintf(stderr, "collectives_bench [--json] [--bytes N,N,...]\n");
    return 2;
  }
  holdfast::BenchReport report("collectives", argc, argv);
  return holdfast::Main(options, &report);
}
