// Elementwise reductions on host memory, of NCCL's types.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace holdfast::emulation {

size_t SizeOfType(ncclDataType_t type);  // 0: not a type that is known here
bool CanReduce(ncclDataType_t type, ncclRedOp_t op);

// out = the parts, combined one after the other; out may be one of them. 16-bit floats are rounded
// after each step.
void Reduce(const std::vector<const void*>& parts, void* out, size_t count, ncclDataType_t type,
            ncclRedOp_t op);

// 0..n-1 in an order that is drawn from the three numbers; seed 0: ascending.
std::vector<int> SumOrder(int n, uint64_t seed, uint64_t operation, uint64_t slice);

}  // namespace holdfast::emulation
