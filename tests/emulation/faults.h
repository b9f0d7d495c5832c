// Faults of the emulated CUDA runtime and NCCL, injected into a whole program by its environment or
// from a test.
//
//   HOLDFAST_EMU_FAULT = FAULT [; FAULT ...]
//   FAULT = POINT.ACTION [:N[+]] [=VALUE] [#RANK] [@PATH]
//
// POINT, and what an error there is:
//   cuda.alloc       cudaMalloc, cudaMallocAsync, cudaHostAlloc     returned (2, out of memory)
//   cuda.launch      kernels, host functions                        returned (701)
//   cuda.copy        cudaMemcpy*, cudaMemset*                       returned (1)
//   nccl.init        the work of ncclCommInitRankConfig             async error (2, system)
//   nccl.collective  each collective, send or receive               async error (6, remote)
//   nccl.shrink      the work of ncclCommShrink                     parent's async error (2)
//   nccl.abort       ncclCommAbort, before it does anything         returned (3, internal)
//   nccl.finalize    the work of ncclCommFinalize and Destroy       async error (2)
// ACTION:
//   error    the error above, or the code VALUE
//   sticky   (cuda.*, nccl.collective) the device is lost: cudaErrorIllegalAddress (or VALUE) from
//            here on, from every call; nothing on its streams runs any more
//   hang     never comes back by itself: calls do not return; kernels and copies stand on their
//            stream for ever; init, shrink, finalize and collectives until their communicator is
//            aborted; an abort for ever
//   delay    VALUE milliseconds (100), then as usual
//   kill     SIGKILL to the own process
//   stop     SIGSTOP to the own process
// N: fires when this process comes to the point for the N-th time (1), once; "N+": and each time
// after. #RANK (nccl.* only): counts and fires on that rank alone. @PATH: from the N-th time on
// fires in the first process that manages to unlink PATH, once: the file arms it, and only one of
// several processes with the same environment is hit. Without @PATH each process is hit.
//
// A fault that fires says so on standard error ("emulated fault: ...") and is counted.
//
// The other variables of the emulation:
//   HOLDFAST_EMU_GPUS         GPUs of the host (1); CUDA_VISIBLE_DEVICES (numbers, or the
//                             "GPU-..." names of their properties) chooses among them
//   HOLDFAST_EMU_DRIVER       what cudaDriverGetVersion answers (13000); 0: there is no driver
//   HOLDFAST_EMU_MEMORY_MIB   of each GPU (8192)
//   HOLDFAST_EMU_DELAYS       SEED:MAX_US: before each piece of work a stream pauses a random time
//   HOLDFAST_EMU_NETWORK      DELAY_MS: NCCL sees the death of a ring neighbour as a network error
//                             (ncclRemoteError) after so long. Unset: as between GPUs of one host,
//                             it does not see it at all
//   HOLDFAST_EMU_SUM_SEED     seed of the order in which NCCL adds floats (1); 0: by rank
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace holdfast::emulation {

// Replaces all faults (and starts their counting anew). kInvalidArgument names the part that is
// wrong; nothing is changed then. The environment's are set when the first point is reached.
[[nodiscard]] absl::Status SetFaults(std::string_view text);

// How often "POINT.ACTION" has fired in this process since it began; "": all of them.
int64_t FaultsFired(std::string_view name);

// ---- For the stand-ins

struct FaultAction {
  enum Kind : uint8_t { kNone, kError, kSticky, kHang };
  Kind kind = kNone;
  int code = 0;  // 0: the point's own
};
// The program comes to `point`. Delays, kill and stop happen in here; the rest is the caller's.
FaultAction ReachFaultPoint(std::string_view point, int rank = -1);

// Never returns.
[[noreturn]] void HangForEver();

}  // namespace holdfast::emulation
