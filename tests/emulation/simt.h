// Runs CUDA kernels on the CPU, from their unchanged source compiled by g++: this header gives the
// names of the device language (threadIdx, __shared__, __syncthreads, shuffles, atomics, vector
// types), executor.cc runs them. The cuda_runtime.h of the emulated build includes it.
//
// How a kernel runs: block after block in the calling thread, in ascending order (ShuffleBlocks
// changes it). Each thread of a block starts on a fiber and runs until it waits at a barrier or in
// a warp operation, then the next one goes on; a kernel without either is a plain loop over its
// threads. `__shared__` is memory of the calling thread, which all fibers of a block share.
//
// Stricter than the hardware, so that a kernel that passes here is well defined there. These are
// failures, with the place of the launch: a barrier or a warp operation that some thread never
// reaches (also because it has returned), threads that wait in different lines, a shuffle that
// reads a lane outside its mask, a size that an H200 would not launch, a write behind the end of
// dynamic shared memory (which starts as NaN in every block). Under ThreadSanitizer the threads of
// a block are ordered by barriers and __syncwarp only: a missing one is a reported race, except
// between threads that never wait. Not shown: scheduling, occupancy, bank conflicts, memory order.
//
// Threads: any number of OS threads may run kernels at once; each has its own fibers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "absl/status/status.h"

// ---- Vector types and built-in variables
// -------------------------------------------------------------------------------

#define HF_VECTOR2(name, T, align) \
  struct alignas(align) name {     \
    T x, y;                        \
  };                               \
  inline name make_##name(T x, T y) { return {x, y}; }
#define HF_VECTOR4(name, T, align) \
  struct alignas(align) name {     \
    T x, y, z, w;                  \
  };                               \
  inline name make_##name(T x, T y, T z, T w) { return {x, y, z, w}; }
HF_VECTOR2(float2, float, 8)
HF_VECTOR2(double2, double, 16)
HF_VECTOR2(int2, int, 8)
HF_VECTOR2(uint2, unsigned, 8)
HF_VECTOR2(longlong2, long long, 16)
HF_VECTOR2(ulonglong2, unsigned long long, 16)
HF_VECTOR2(ushort2, unsigned short, 4)
HF_VECTOR4(float4, float, 16)
HF_VECTOR4(int4, int, 16)
HF_VECTOR4(uint4, unsigned, 16)
HF_VECTOR4(ushort4, unsigned short, 8)
HF_VECTOR4(uchar4, unsigned char, 4)
#undef HF_VECTOR2
#undef HF_VECTOR4

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

typedef struct CUstream_st* cudaStream_t;

#define HF_TLS __attribute__((tls_model("initial-exec")))
extern constinit thread_local uint3 threadIdx HF_TLS;
extern constinit thread_local uint3 blockIdx HF_TLS;
extern constinit thread_local dim3 blockDim HF_TLS;
extern constinit thread_local dim3 gridDim HF_TLS;
#undef HF_TLS
inline constexpr int warpSize = 32;

// ---- The executor
// -------------------------------------------------------------------------------------------------

namespace holdfast::emulation {

// A line of source: of a launch, a barrier or a warp operation.
struct Site {
  const char* file = "";
  int line = 0;
};

// Runs all threads of the grid, at once, in the calling thread. kInvalidArgument: sizes that an
// H200 does not launch. kInternal: the kernel is wrong (see above); its results are unusable. Not
// from inside a kernel.
[[nodiscard]] absl::Status RunGrid(dim3 grid, dim3 block, int64_t shared_bytes,
                                   const std::function<void()>& thread,
                                   const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE());

// The same in the order of a stream. kInvalidArgument at once for sizes; a kernel that turns out to
// be wrong ends the process with a message.
[[nodiscard]] absl::Status LaunchKernel(cudaStream_t stream, dim3 grid, dim3 block,
                                        int64_t shared_bytes, std::function<void()> thread,
                                        const char* file = __builtin_FILE(),
                                        int line = __builtin_LINE());

// kInvalidArgument: not launched by an H200. The two above ask it.
[[nodiscard]] absl::Status CheckSizes(dim3 grid, dim3 block, int64_t shared_bytes);

// Given by the stand-in of the CUDA runtime: `work` runs in the order of the stream, in its thread.
void Enqueue(cudaStream_t stream, std::function<void()> work);

// From now on, in all OS threads: blocks, and the threads of a block, start in an order drawn from
// the seed. 0: ascending.
void ShuffleBlocks(uint64_t seed);

// ---- What the language's functions below are made of; called inside kernels only
// -----------------------------------------------------------------

void* DynamicShared();
void Barrier(Site site);

// All lanes of `mask` meet. The last one runs `exchange` for all of them; lanes[i] is what lane i
// passed as `mine`, null outside the mask. `exchange` returns null, or what is wrong.
using Exchange = const char* (*)(void* const* lanes);
void WarpMeeting(unsigned mask, const char* name, Exchange exchange, void* mine, Site site);
void SyncWarp(unsigned mask, Site site);
unsigned Ballot(unsigned mask, bool vote, Site site);
// The value of lane `source` (0..31).
uint64_t Shuffle(unsigned mask, uint64_t value, int source, Site site);
// Of the calling thread in its block.
int Lane();

// mma.sync.m16n8k16 with bf16 factors (pairs, the lower index in the lower half) and fp32 sums:
// d += a b. Each element is summed in double and rounded once; a GPU sums in an order and a
// precision of its own.
void MmaBf16M16N8K16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                     const char* file = __builtin_FILE(), int line = __builtin_LINE());
// ldmatrix.x4: four matrices of 8 x 8 elements of 16 bits; lane i passes the address of row i % 8
// of matrix i / 8.
// The caller reads its row itself, so that a sanitizer sees it.
struct MatrixRow {
  uint16_t half[8];
};
void LoadMatrices(uint32_t (&out)[4], const MatrixRow& row, bool transpose, Site site);
inline void LoadMatrices(uint32_t (&out)[4], const void* row, bool transpose,
                         const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  MatrixRow mine;
  std::memcpy(&mine, row, sizeof mine);
  LoadMatrices(out, mine, transpose, Site{file, line});
}

template <typename T>
T ShuffleAs(unsigned mask, T value, int source, Site site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 32 or 64 bits");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = Shuffle(mask, bits, source, site);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
// As on the device: a source outside the caller's group of `width` lanes gives the caller's own.
inline int SourceOrOwn(int source, int width) {
  const int own = Lane(), group = own & ~(width - 1);
  return source >= group && source < group + width ? source : own;
}

}  // namespace holdfast::emulation

// ---- The device language
// ----------------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __forceinline__ inline __attribute__((always_inline))

#define HF_SITE_ARGS const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define HF_SITE (::holdfast::emulation::Site{file, line})

inline void __syncthreads(HF_SITE_ARGS) { ::holdfast::emulation::Barrier(HF_SITE); }
inline void __syncwarp(unsigned mask = 0xffffffffu, HF_SITE_ARGS) {
  ::holdfast::emulation::SyncWarp(mask, HF_SITE);
}
inline unsigned __ballot_sync(unsigned mask, int vote, HF_SITE_ARGS) {
  return ::holdfast::emulation::Ballot(mask, vote != 0, HF_SITE);
}
inline int __any_sync(unsigned mask, int vote, HF_SITE_ARGS) {
  return ::holdfast::emulation::Ballot(mask, vote != 0, HF_SITE) != 0;
}
inline int __all_sync(unsigned mask, int vote, HF_SITE_ARGS) {
  return ::holdfast::emulation::Ballot(mask, vote == 0, HF_SITE) == 0;
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, HF_SITE_ARGS) {
  using namespace ::holdfast::emulation;  // NOLINT
  return ShuffleAs(mask, value, (Lane() & ~(width - 1)) + (source & (width - 1)), HF_SITE);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, HF_SITE_ARGS) {
  using namespace ::holdfast::emulation;  // NOLINT
  return ShuffleAs(mask, value, SourceOrOwn(Lane() ^ bits, width), HF_SITE);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, HF_SITE_ARGS) {
  using namespace ::holdfast::emulation;  // NOLINT
  return ShuffleAs(mask, value, SourceOrOwn(Lane() + static_cast<int>(by), width), HF_SITE);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, HF_SITE_ARGS) {
  using namespace ::holdfast::emulation;  // NOLINT
  return ShuffleAs(mask, value, SourceOrOwn(Lane() - static_cast<int>(by), width), HF_SITE);
}
#undef HF_SITE_ARGS
#undef HF_SITE

template <typename T>
T __ldg(const T* from) {
  return *from;
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Integers only: no kernel of this project adds floats in an order that it does not know.
#define HF_ATOMICS(T)                                                                              \
  inline T atomicAdd(T* at, T value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }   \
  inline T atomicOr(T* at, T value) { return __atomic_fetch_or(at, value, __ATOMIC_RELAXED); }     \
  inline T atomicExch(T* at, T value) { return __atomic_exchange_n(at, value, __ATOMIC_RELAXED); } \
  inline T atomicCAS(T* at, T expected, T value) {                                                 \
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);  \
    return expected;                                                                               \
  }                                                                                                \
  inline T atomicMax(T* at, T value) {                                                             \
    T seen = __atomic_load_n(at, __ATOMIC_RELAXED);                                                \
    while (seen < value && !__atomic_compare_exchange_n(at, &seen, value, false, __ATOMIC_RELAXED, \
                                                        __ATOMIC_RELAXED)) {                       \
    }                                                                                              \
    return seen;                                                                                   \
  }
HF_ATOMICS(int)
HF_ATOMICS(unsigned)
HF_ATOMICS(unsigned long long)
#undef HF_ATOMICS
