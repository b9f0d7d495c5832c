// How the members of a new generation come to one state: those who hold it send it to those who do
// not, or all read their share of a checkpoint and exchange it, or all start from step 0. Of one
// named (step, digest), checked at the end. All members call TakeState with the same roster. Main
// thread only.
#pragma once

#include "absl/status/status.h"
#include "rendezvous/membership.h"
#include "runtime/collectives/communicator.h"
#include "runtime/session/held_checkpoints.h"
#include "runtime/session/state.h"

namespace holdfast {

struct TransferOptions {
  uint64_t seed = 1;
  int64_t streams = 0;        // micro-batches of a streaming source, else 0
  bool scales_loss = false;   // --precision fp16
  int64_t stall_ms = 60'000;  // bound of each wait
};

// On OK `state` is the roster's. kDataLoss: a checkpoint that this worker was to read is damaged
// (marked bad in `held`); the communicator is aborted with that cause, so that all leave and choose
// again. Other errors: kAborted as the communicator's.
absl::Status TakeState(Communicator& comm, const rendezvous::Roster& roster,
                       const TransferOptions& options, HeldCheckpoints& held, State& state);

}  // namespace holdfast
