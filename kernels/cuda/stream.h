// What kernels may ask of a CUDA stream beyond the interface of kernels/device.h.
//
// Threads: as the stream.
#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace holdfast::kernels {

// At least `bytes` of device memory that belongs to the stream, 256-byte aligned, for what one
// operation's kernels hand to the next (two-stage reductions). Valid until the next call on this
// stream, which may give the same memory: the stream's order keeps the two uses apart. Null, with
// the stream failed (kResourceExhausted), when there is no memory.
[[nodiscard]] float* CudaScratch(Stream& stream, int64_t bytes);

// Sets bytes of device memory to zero, in stream order.
void CudaZero(Stream& stream, void* to, int64_t bytes);

}  // namespace holdfast::kernels
