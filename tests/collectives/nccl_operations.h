// What a member does in the tests of NCCL: all operations, against plain sums.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "runtime/collectives/communicator.h"

namespace holdfast {

// All members call it with the same seed. The first operation whose result is not the plain sum (or
// copy) of what all have put in is named.
absl::Status CheckOperations(Communicator& members, kernels::Device& device, uint64_t seed);

}  // namespace holdfast
