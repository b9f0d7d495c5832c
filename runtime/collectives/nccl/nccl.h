// Collectives between GPUs over NCCL, beside the links of a generation. The links (tcp) stay:
// beats, the death of a peer, errors, small words in host memory and the unique id come over them;
// NCCL carries what lies in device memory (Communicator::OnDevice()). NCCL reports neither a dead
// peer on the same host nor a frozen one: the links do, and drive the abort.
//
// The kernels of a collective stand on the GPU until all ranks have come. So nothing here waits for
// a stream without a deadline, and a communicator that does not let itself be aborted in time ends
// the process (ExitCode::kDeviceLost): its supervisor replaces it.
//
// After an error (Wait, Health) the operations that were queued on the device lane may still be
// running, and read and write their device buffers, until Join or Forget: what is left of the
// communicator is kept so long, because it may be shrunk. So no stream but NCCL's own waits for
// them, and in between nothing is called that waits for the whole device.
//
// Threads: an NcclFactory belongs to one thread (the owner of the communicators it makes), which
// has called Device::BindThread(). Errors as for TcpEndpoint::Build; kUnimplemented without NCCL.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda_backend.h"
#include "runtime/collectives/communicator.h"

namespace holdfast {

struct NcclOptions {
  kernels::Device* device = nullptr;  // a CUDA device
  kernels::CudaOptions libraries;     // where libnccl is looked for
  bool loopback = false;  // all workers on this host: NCCL's sockets stay on the loopback interface
  std::string interface;  // else the network interface for them; "": NCCL's own choice
  int64_t build_ms = 30'000;  // for joining: the first contact of many GPUs takes seconds
  int64_t abort_ms = 2'000;   // past it the process ends
};

class NcclFactory {
 public:
  static absl::StatusOr<std::unique_ptr<NcclFactory>> Create(const NcclOptions& options);
  virtual ~NcclFactory() = default;
  // "NCCL 2.28.9 (libnccl.so.2 in FOLDER)", for people.
  virtual std::string Version() const = 0;

  // Joins the members of `links` (a finished Build of this generation, or the local communicator).
  // All members call it. Where all of them come out of one former communicator that has lost
  // members and is healthy otherwise, it is shrunk; else they meet anew under a fresh unique id.
  // The result owns the links.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Join(std::unique_ptr<Communicator> links,
                                                             uint64_t generation,
                                                             const std::atomic<bool>* cancel) = 0;
  // How the members of the last Join came together, and why, for people: "shrunk: 1 of 4 members of
  // generation 7 were lost", "met anew: rank 2 comes from no former communicator".
  virtual std::string LastJoin() const = 0;
  // Aborts what is left of the newest communicator now, not at the next Join (which then cannot
  // shrink it).
  virtual void Forget() = 0;
};

}  // namespace holdfast
