// NCCL by itself: a world of one from its first contact to its end, orderly and by abort; and a
// member that never comes.
#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/text.h"
#include "runtime/collectives/nccl/join_plan.h"
#include "runtime/collectives/nccl/nccl.h"
#include "tests/gpu/gpu_check.h"

namespace holdfast {
namespace {

constexpr int64_t kWords = 1 << 20;
constexpr int64_t kNcclMs = 20'000;
constexpr int64_t kAbsentMs = 3'000;
// As nccl_factory.cc has them; another value shows as an error of the links.
constexpr int64_t kJoinStep = -2;
constexpr size_t kNcclIdBytes = 128;

NcclOptions OptionsOf(const GpuCheck& check) {
  NcclOptions options;
  options.device = check.device;
  options.libraries = check.libraries;
  options.loopback = true;
  options.build_ms = kNcclMs;
  return options;
}

// An all-reduce whose sum, over one member, is what went in.
absl::Status Sum(GpuCheck& check, Communicator& comm, int64_t step) {
  kernels::Device& device = *check.device;
  HF_ASSIGN_OR_RETURN(const kernels::Buffer words, device.Allocate(kWords * 8));
  HF_ASSIGN_OR_RETURN(const kernels::Buffer host, device.AllocateHost(kWords * 8));
  for (int64_t i = 0; i < kWords; ++i) host.as<int64_t>()[i] = i * 0x123456789 - (int64_t{1} << 60);
  const auto stream = device.NewStream();
  device.Copy(*stream, words.data(), host.data(), kWords * 8);
  Communicator& lane = comm.OnDevice();
  lane.After(stream->Record());
  const Ticket ticket =
      lane.AllReduce(std::span(words.as<int64_t>(), static_cast<size_t>(kWords)), {step, 0, 0});
  HF_RETURN_IF_ERROR(lane.Wait(ticket, Deadline::After(kNcclMs)));
  std::memset(host.data(), 0, kWords * 8);
  device.Copy(*stream, host.data(), words.data(), kWords * 8);
  HF_RETURN_IF_ERROR(stream->Synchronize(Deadline::After(kNcclMs)));
  for (int64_t i = 0; i < kWords; ++i) {
    if (host.as<int64_t>()[i] != i * 0x123456789 - (int64_t{1} << 60))
      return absl::DataLossError(Cat("word ", i, " of the sum is wrong"));
  }
  return absl::OkStatus();
}

// One stage, with its row.
absl::Status Stage(GpuCheck& check, const std::string& what,
                   const std::function<absl::Status()>& work) {
  check.rows->Begin(what);
  const int64_t start = BootMs();
  const absl::Status status = work();
  check.rows->Judge(what, status, Cat(BootMs() - start, " ms"));
  return status;
}

absl::Status OneRankLife(GpuCheck& check) {
  std::unique_ptr<NcclFactory> factory;
  std::unique_ptr<Communicator> comm;
  const auto join = [&](uint64_t generation) -> absl::Status {
    HF_ASSIGN_OR_RETURN(comm, factory->Join(MakeLocalCommunicator(), generation, nullptr));
    return absl::OkStatus();
  };
  HF_RETURN_IF_ERROR(Stage(check, "NCCL: the library", [&]() -> absl::Status {
    HF_ASSIGN_OR_RETURN(factory, NcclFactory::Create(OptionsOf(check)));
    return absl::OkStatus();
  }));
  HF_RETURN_IF_ERROR(Stage(check, "NCCL, one rank: init", [&] { return join(1); }));
  HF_RETURN_IF_ERROR(Stage(check, Cat("NCCL, one rank: all-reduce of ", kWords * 8 >> 20, " MiB"),
                           [&] { return Sum(check, *comm, 1); }));
  HF_RETURN_IF_ERROR(Stage(check, "NCCL, one rank: finalise",
                           [&] { return comm->Close(Deadline::After(kNcclMs)); }));
  comm.reset();
  HF_RETURN_IF_ERROR(Stage(check, "NCCL, one rank: init again", [&] { return join(2); }));
  HF_RETURN_IF_ERROR(Stage(check, "NCCL, one rank: abort", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(Sum(check, *comm, 2));
    comm->Abort(absl::AbortedError("the check wants it"));
    comm.reset();
    factory->Forget();
    return check.device->Health();
  }));
  return Stage(check, "NCCL, one rank: init after an abort", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(join(3));
    HF_RETURN_IF_ERROR(Sum(check, *comm, 3));
    return comm->Close(Deadline::After(kNcclMs));
  });
}

// Both ends of a generation's links, in this process.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> LinksOfTwo() {
  std::vector<std::unique_ptr<TcpEndpoint>> ends;
  TcpEndpoint::GroupOptions group;
  group.run = "gpu-check";
  group.secret = "not secret: both ends are here";
  group.generation = 1;
  group.nonce = 1;
  group.transport = Transport::kTcp;
  for (int r = 0; r < 2; ++r) {
    HF_ASSIGN_OR_RETURN(auto end, TcpEndpoint::Listen({}));
    group.peers.push_back({"127.0.0.1", end->port()});
    ends.push_back(std::move(end));
  }
  std::vector<std::unique_ptr<Communicator>> links(2);
  std::vector<absl::Status> status(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r, mine = group]() mutable {
      mine.rank = r;
      auto built = ends[static_cast<size_t>(r)]->Build(mine, nullptr);
      status[static_cast<size_t>(r)] = built.status();
      if (built.ok()) links[static_cast<size_t>(r)] = *std::move(built);
    });
  }
  for (std::thread& t : threads) t.join();
  for (const absl::Status& s : status) HF_RETURN_IF_ERROR(s);
  return links;
}

// A member that does what a join asks for on the links, and then nothing of NCCL's: as one that
// hangs in between.
absl::Status FollowJoinUntilNccl(Communicator& link, const std::string& version) {
  int major = 0, minor = 0, patch = 0;
  if (std::sscanf(version.c_str(), "NCCL %d.%d.%d", &major, &minor, &patch) != 3)
    return absl::InternalError(Cat("no version in \"", version, "\""));
  std::vector<JoinRow> rows(2);
  rows[1].nccl_version = major * 10'000 + minor * 100 + patch;
  const std::vector<int64_t> borders = {0, sizeof(JoinRow), 2 * sizeof(JoinRow)};
  const Deadline deadline = Deadline::After(kNcclMs);
  HF_RETURN_IF_ERROR(
      link.Wait(link.AllGather(std::as_writable_bytes(std::span(rows)), borders, {kJoinStep, 0, 0}),
                deadline));
  std::array<std::byte, kNcclIdBytes> id{};
  return link.Wait(link.Broadcast(id, 0, {kJoinStep, 1, 0}), deadline);
}

}  // namespace

absl::Status CheckNccl(GpuCheck& check) {
  (void)OneRankLife(check);  // its rows say what was wrong
  return absl::OkStatus();
}

absl::Status CheckAbsentPeer(GpuCheck& check) {
  const std::string what = "NCCL: a member that never comes, then abort";
  check.rows->Begin(what);
  HF_ASSIGN_OR_RETURN(auto links, LinksOfTwo());
  NcclOptions options = OptionsOf(check);
  options.build_ms = kAbsentMs;
  HF_ASSIGN_OR_RETURN(const auto factory, NcclFactory::Create(options));
  absl::Status told;
  std::thread other([&] { told = FollowJoinUntilNccl(*links[1], factory->Version()); });
  const int64_t start = BootMs();
  const auto joined = factory->Join(std::move(links[0]), 1, nullptr);
  const int64_t ms = BootMs() - start;
  other.join();
  HF_RETURN_IF_ERROR(Annotate(told, "the other member"));
  if (joined.ok()) {
    check.rows->Fail(what, "the init came to an end without it");
  } else if (!absl::IsDeadlineExceeded(joined.status()) || ms < kAbsentMs ||
             ms > kAbsentMs + options.abort_ms) {
    check.rows->Fail(what, Cat("after ", ms, " ms: ", StdView(joined.status().message())));
  } else {
    check.rows->Judge(what, check.device->Health(), Cat("given up after ", ms, " ms"));
  }
  return absl::OkStatus();
}

}  // namespace holdfast
