// The calls of nccl.h: arguments, groups, and who runs what where.
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>

#include "runtime/base/text.h"
#include "tests/emulation/faults.h"
#include "tests/emulation/nccl/comm.h"
#include "tests/emulation/nccl/reduce.h"
#include "tests/emulation/nccl/threads.h"

using namespace holdfast::emulation;  // NOLINT: everything below is the emulation's
using holdfast::Cat;

namespace {

constexpr unsigned kConfigMagic = 0xcafebeef;

// What this thread has called since ncclGroupStart.
struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<std::pair<ncclComm_t, Launch>> launches;  // one for each communicator
  std::vector<ncclComm_t> blocking;                     // whose jobs GroupEnd waits for
  bool in_progress = false;
  std::vector<ncclComm_t> ending;  // to be freed
};
thread_local Group group;

// A communicator that is gone was freed: NCCL would use freed memory. Here the process ends.
void MustBeAlive(ncclComm_t comm, const char* call) {
  if (comm->mark.load() == ncclComm::kAlive) return;
  std::fprintf(stderr,
               "emulated NCCL: %s uses a communicator after its end (or what never was one)\n",
               call);
  std::abort();
}

#define HF_COMM(comm)                                                          \
  if ((comm) == nullptr) return Refused("the communicator is a null pointer"); \
  MustBeAlive(comm, __func__)

ncclResult_t Kept(ncclResult_t result) {
  if (group.depth > 0 && group.error == ncclSuccess && result != ncclSuccess &&
      result != ncclInProgress)
    group.error = result;
  return result;
}

ncclResult_t Refused(const std::string& why) {
  Note(why);
  return Kept(ncclInvalidArgument);
}

uint64_t HostHash() {
  std::string name;
  if (const char* given = std::getenv("NCCL_HOSTID"); given != nullptr && *given != '\0') {
    name = given;
  } else {
    utsname host{};
    uname(&host);
    std::string boot;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    name = Cat(host.nodename, boot);
  }
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

ncclResult_t CheckConfig(const ncclConfig_t* config, bool inherited, bool& blocking) {
  blocking = inherited;
  if (config != nullptr) {
    if (config->magic != kConfigMagic || config->size != sizeof(ncclConfig_t))
      return Refused("the configuration was not made by NCCL_CONFIG_INITIALIZER");
    if (config->blocking != NCCL_CONFIG_UNDEF_INT) {
      if (config->blocking != 0 && config->blocking != 1)
        return Refused("config.blocking is neither 0 nor 1");
      blocking = config->blocking != 0;
    }
  }
  if (const char* pinned = std::getenv("NCCL_COMM_BLOCKING"); pinned != nullptr && *pinned != '\0')
    blocking = std::atoi(pinned) != 0;
  return ncclSuccess;
}

// A job of `comm` has been started: what the call answers.
ncclResult_t Started(ncclComm_t comm) {
  if (group.depth > 0) {
    if (comm->blocking) {
      group.blocking.push_back(comm);
      return ncclSuccess;
    }
    group.in_progress = true;
    return ncclInProgress;
  }
  if (!comm->blocking) return ncclInProgress;
  comm->Join();
  return comm->state();
}

// All at once: what one of them waits for may be another's.
void FreeAll(const std::vector<ncclComm_t>& comms) {
  std::vector<std::thread> threads;
  for (ncclComm_t comm : comms)
    threads.push_back(StartThread("emulated-free", [comm] { comm->Free(); }));
  for (std::thread& thread : threads) thread.join();
}

// ---- Groups

void LaunchOne(ncclComm_t comm, Launch launch, Group& of) {
  const uint32_t kinds = comm->Unconnected(launch.operations);
  if (kinds == 0) return comm->Push(std::move(launch));
  comm->Start("emulated-conn", [comm, kinds, launch = std::move(launch)] {
    const ncclResult_t connected = comm->Connect(kinds);
    if (connected == ncclSuccess) comm->Push(launch);
    return connected;
  });
  if (comm->blocking) {
    of.blocking.push_back(comm);
  } else {
    of.in_progress = true;
  }
}

ncclResult_t EndGroup() {
  Group done = std::exchange(group, Group{});
  FreeAll(done.ending);
  if (done.error == ncclSuccess) {
    for (auto& [comm, launch] : done.launches) LaunchOne(comm, std::move(launch), done);
  }
  for (ncclComm_t comm : done.blocking) {
    comm->Join();
    if (done.error == ncclSuccess && comm->state() != ncclSuccess) done.error = comm->state();
  }
  if (done.error != ncclSuccess) return done.error;
  return done.in_progress ? ncclInProgress : ncclSuccess;
}

// Device memory (or pinned) in which the whole range lies, or nothing at all.
bool Usable(const void* data, size_t bytes) {
  if (bytes == 0) return true;
  if (data == nullptr) return false;
  const auto [begin, block] = Runtime::Instance().FindBlock(data);
  if (block.kind == Memory::kPageable || block.freeing) return false;
  return bytes <= block.bytes - static_cast<size_t>(static_cast<const char*>(data) - begin);
}

struct Sizes {
  size_t in = 0, out = 0;  // elements
};
Sizes SizesOf(const Operation& op, const RankFacts& me) {
  const auto n = static_cast<size_t>(me.ranks);
  const bool root = op.root == me.rank;
  switch (op.kind) {
    case OpKind::kAllReduce:
      return {op.count, op.count};
    case OpKind::kReduce:
      return {op.count, root ? op.count : 0};
    case OpKind::kReduceScatter:
      return {op.count * n, op.count};
    case OpKind::kAllGather:
      return {op.count, op.count * n};
    case OpKind::kBroadcast:
      return {root ? op.count : 0, op.count};
    case OpKind::kSend:
      return {op.count, 0};
    case OpKind::kReceive:
      return {0, op.count};
    case OpKind::kKinds:
      break;
  }
  return {};
}

ncclResult_t Check(const Operation& op, ncclComm_t comm) {
  const size_t size = SizeOfType(op.type);
  if (size == 0)
    return Refused(Cat(NameOf(op.kind), ": no such data type: ", static_cast<int>(op.type)));
  if (!CanReduce(op.type, op.op)) return Refused(Cat(NameOf(op.kind), ": no such operation"));
  if (op.root < 0 || op.root >= comm->me.ranks)
    return Refused(Cat(NameOf(op.kind), ": there is no rank ", op.root));
  const Sizes sizes = SizesOf(op, comm->me);
  if (!Usable(op.in, sizes.in * size) || !Usable(op.out, sizes.out * size)) {
    Warn(Cat(NameOf(op.kind), " on rank ", comm->me.rank,
             ": its buffers are not device memory of the size that it uses"));
    return Kept(ncclInvalidArgument);
  }
  return ncclSuccess;
}

ncclResult_t Call(Operation op, ncclComm_t comm, cudaStream_t handle, const char* call) {
  if (comm == nullptr) return Refused("the communicator is a null pointer");
  MustBeAlive(comm, call);
  if (const ncclResult_t ready = comm->Ready(); ready != ncclSuccess) return Kept(ready);
  if (comm->revoked || comm->finalized || comm->shrunk) {
    Note("a collective was called on a communicator that is revoked, shrunk or finalized");
    return Kept(ncclInvalidUsage);
  }
  if (const ncclResult_t checked = Check(op, comm); checked != ncclSuccess) return checked;
  if (DeviceLost(comm->device)) return Kept(ncclUnhandledCudaError);
  const StreamPointer stream = Runtime::Instance().FindStream(handle);
  if (stream == nullptr || stream->device != comm->device)
    return Refused("the stream is not one of the communicator's device");
  op.serial = comm->NextSerial(op);
  const bool alone = group.depth == 0;
  if (alone) group.depth = 1;
  auto at = std::find_if(group.launches.begin(), group.launches.end(),
                         [comm](const auto& launch) { return launch.first == comm; });
  if (at == group.launches.end())
    at = group.launches.insert(group.launches.end(), {comm, Launch{}});
  Launch& launch = at->second;
  launch.operations.push_back(op);
  if (std::find(launch.streams.begin(), launch.streams.end(), stream) == launch.streams.end())
    launch.streams.push_back(stream);
  return alone ? ncclGroupEnd() : ncclSuccess;
}

}  // namespace

// ---- Group, versions, texts

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) {
    Note("ncclGroupEnd without ncclGroupStart");
    return ncclInvalidUsage;
  }
  if (--group.depth > 0) return ncclSuccess;
  return EndGroup();
}

ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "a CUDA call failed";
    case ncclSystemError:
      return "a system call failed";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "another rank ended, or a network error";
    case ncclInProgress:
      return "in progress";
    default:
      return "unknown result";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  thread_local std::string text;
  text = LastNote();
  return text.c_str();
}

// ---- Beginning

ncclResult_t ncclGetUniqueId(ncclUniqueId* unique) {
  if (unique == nullptr) return Refused("the unique id is a null pointer");
  const MeetingId id = FreshId();
  if (MeetingRoot::Open(id) == nullptr) return ncclSystemError;
  *unique = ToUniqueId(id);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId unique, int rank,
                                    ncclConfig_t* config) {
  if (comm == nullptr) return Refused("there is no place for the communicator");
  *comm = nullptr;
  if (ranks < 1 || rank < 0 || rank >= ranks)
    return Refused(Cat("init: there is no rank ", rank, " of ", ranks));
  MeetingId id;
  if (!FromUniqueId(unique, id)) return Refused("the unique id is not one");
  bool blocking = true;
  if (const ncclResult_t good = CheckConfig(config, true, blocking); good != ncclSuccess)
    return good;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    Note(Cat("CUDA: ", cudaGetErrorString(cudaGetLastError())));
    return Kept(ncclUnhandledCudaError);
  }
  RankFacts facts;
  facts.rank = rank;
  facts.ranks = ranks;
  facts.process = static_cast<int32_t>(getpid());
  facts.gpu = Runtime::Instance().gpu(device).physical;
  facts.host = HostHash();
  *comm = new ncclComm(facts, id, device, blocking);
  (*comm)->Start("emulated-init",
                 [made = *comm] { return made->Init(false, made->StopsOfInit()); });
  return Started(*comm);
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId unique, int rank) {
  return ncclCommInitRankConfig(comm, ranks, unique, rank, nullptr);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  HF_COMM(comm);
  if (error == nullptr) return Refused("there is no place for the error");
  *error = comm->state();
  return ncclSuccess;
}

// ---- End

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  HF_COMM(comm);
  if (const ncclResult_t ready = comm->Ready(); ready != ncclSuccess) return Kept(ready);
  if (comm->revoked || comm->shrunk) {
    Note("finalize of a communicator that is revoked or shrunk");
    return Kept(ncclInvalidUsage);
  }
  if (comm->finalized) return Refused("the communicator was finalized before");
  comm->finalized = true;
  comm->Start("emulated-end", [comm] { return comm->Finalize(); });
  return Started(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  HF_COMM(comm);
  // Always in the caller, whatever config.blocking says.
  if (group.depth > 0) {
    group.ending.push_back(comm);
  } else {
    comm->Free();
  }
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  HF_COMM(comm);
  const FaultAction fault = ReachFaultPoint("nccl.abort", comm->me.rank);
  if (fault.kind == FaultAction::kHang) HangForEver();
  if (fault.kind == FaultAction::kError)
    return Kept(fault.code != 0 ? static_cast<ncclResult_t>(fault.code) : ncclInternalError);
  comm->SetAbort();
  if (group.depth > 0) {
    group.ending.push_back(comm);
    return ncclSuccess;
  }
  comm->Free();
  return DeviceLost(comm->device) ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  HF_COMM(comm);
  if (flags != NCCL_REVOKE_DEFAULT) return Refused("revoke: flags are not 0");
  if (const ncclResult_t ready = comm->Ready(); ready != ncclSuccess) return Kept(ready);
  if (comm->finalized) return Refused("revoke: the communicator was finalized before");
  comm->revoked = true;
  comm->Start("emulated-revok", [comm] { return comm->Revoke(); });
  return Started(comm);
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* made,
                            ncclConfig_t* config, int flags) {
  HF_COMM(comm);
  if (made == nullptr) return Refused("shrink: there is no place for the new communicator");
  *made = nullptr;
  if (excluded == nullptr || count <= 0 || count >= comm->me.ranks)
    return Refused(Cat("shrink: ", count, " of ", comm->me.ranks, " ranks cannot be excluded"));
  const std::vector<int> out(excluded, excluded + count);
  for (const int r : out) {
    if (r < 0 || r >= comm->me.ranks || std::count(out.begin(), out.end(), r) > 1)
      return Refused(Cat("shrink: rank ", r, " cannot be excluded"));
    if (r == comm->me.rank) return Refused("shrink: the caller is among the excluded");
  }
  bool blocking = comm->blocking;
  if (const ncclResult_t good = CheckConfig(config, comm->blocking, blocking); good != ncclSuccess)
    return good;
  const bool abort = (flags & NCCL_SHRINK_ABORT) != 0;
  if (abort) {
    comm->StopOperations();
    comm->AllowOperations();
  }
  if (const ncclResult_t ready = comm->Ready(); ready != ncclSuccess) return Kept(ready);
  if (comm->finalized) return Refused("shrink: the communicator was finalized before");
  comm->shrunk = comm->shrunk || abort;
  comm->Start("emulated-shrnk", [=] {
    ncclComm* child = nullptr;
    const ncclResult_t result = comm->Shrink(out, blocking, child);
    if (child != nullptr) __atomic_store_n(made, child, __ATOMIC_RELEASE);
    return result;
  });
  return Started(comm);
}

// ---- Facts

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  HF_COMM(comm);
  if (const ncclResult_t ready = comm->Ready(); ready != ncclSuccess) return ready;
  *count = comm->me.ranks;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  HF_COMM(comm);
  if (const ncclResult_t ready = comm->Ready(); ready != ncclSuccess) return ready;
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  HF_COMM(comm);
  if (const ncclResult_t ready = comm->Ready(); ready != ncclSuccess) return ready;
  *rank = comm->me.rank;
  return ncclSuccess;
}

// ---- Collectives

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Call({OpKind::kAllReduce, type, op, 0, in, out, count, 0}, comm, stream, __func__);
}

ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return Call({OpKind::kReduce, type, op, root, in, out, count, 0}, comm, stream, __func__);
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Call({OpKind::kReduceScatter, type, op, 0, in, out, count, 0}, comm, stream, __func__);
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return Call({OpKind::kAllGather, type, ncclSum, 0, in, out, count, 0}, comm, stream, __func__);
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return Call({OpKind::kBroadcast, type, ncclSum, root, in, out, count, 0}, comm, stream, __func__);
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Call({OpKind::kSend, type, ncclSum, peer, in, nullptr, count, 0}, comm, stream, __func__);
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Call({OpKind::kReceive, type, ncclSum, peer, nullptr, out, count, 0}, comm, stream,
              __func__);
}
