// The two things in which nvcc and the emulated build (g++ with tests/emulation) differ for a
// kernel's source: how it is launched, and dynamic shared memory. Everything else in a .cu file is
// the same text for both; the device language that may be used is what tests/emulation/simt.h
// offers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/device.h"

// HF_DYNAMIC_SHARED(float, tile); declares `float* tile`, 16-byte aligned, of the size that the
// launch names.
#ifdef __CUDACC__
#define HF_DYNAMIC_SHARED(T, name)                                   \
  extern __shared__ __align__(16) unsigned char hf_dynamic_shared[]; \
  T* const name = reinterpret_cast<T*>(hf_dynamic_shared)
#else
#define HF_DYNAMIC_SHARED(T, name) \
  T* const name = static_cast<T*>(::holdfast::emulation::DynamicShared())
#endif

namespace holdfast::kernels {

// Where the launch stands in the source; made from the stream, so that callers need not say it.
struct LaunchOn {
  LaunchOn(Stream& on, const char* in_file = __builtin_FILE(), int at_line = __builtin_LINE())
      : stream(on), file(in_file), line(at_line) {}
  Stream& stream;
  const char* file;
  int line;
};

// Launch(stream, Kernel, grid, block, dynamic_shared_bytes, arguments...): in the stream's order; a
// launch that is refused fails the stream. A grid without blocks launches nothing.
template <typename... Parameters, typename... Arguments>
void Launch(LaunchOn on, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            int64_t dynamic_shared_bytes, Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  auto* const native = static_cast<cudaStream_t>(on.stream.native());
  (void)cudaGetLastError();  // what an earlier call has left is not the launch's
  cudaError_t error = cudaSuccess;
#ifdef __CUDACC__
  constexpr int64_t kWithoutAsking = 48 * 1024;
  if (dynamic_shared_bytes > kWithoutAsking) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(dynamic_shared_bytes));
  }
  if (error == cudaSuccess) {
    kernel<<<grid, block, static_cast<size_t>(dynamic_shared_bytes), native>>>(
        static_cast<Parameters>(arguments)...);
  }
#else
  const absl::Status status = emulation::LaunchKernel(
      native, grid, block, dynamic_shared_bytes,
      [=] { kernel(static_cast<Parameters>(arguments)...); }, on.file, on.line);
  if (!status.ok()) {
    on.stream.Fail(absl::InternalError(status.message()));
    return;
  }
#endif
  if (error == cudaSuccess) error = cudaGetLastError();
  if (error != cudaSuccess) {
    on.stream.Fail(absl::InternalError(
        absl::StrCat("kernel launch at ", on.file, ":", on.line, ": ", cudaGetErrorString(error))));
  }
}

// How many blocks of `per_block` cover n.
inline unsigned BlocksFor(int64_t n, int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

}  // namespace holdfast::kernels
