// The warp's matrix instructions of sm_80 and later, for device code: a tensor-core product of bf16
// factors, and the loads that bring its factors from shared memory. Under nvcc inline PTX, in the
// emulated build a collective of the warp's 32 threads.
//
// Fragments (PTX manual, "mma.m16n8k16"), with group = lane / 4 and pair = lane % 4: a[r] holds row
// group + 8 (r % 2), columns 2 pair + 8 (r / 2) and the next; b[r] rows 2 pair + 8 r and the next
// of column group; d[r] row group + 8 (r / 2), column 2 pair + r % 2.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/math/half.h"

namespace holdfast::kernels {

// d[16,8] += a[16,16] b[16,8]. All lanes of the warp together.
__device__ __forceinline__ void MmaBf16M16N8K16(float (&d)[4], const uint32_t (&a)[4],
                                                const uint32_t (&b)[2]) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulation::MmaBf16M16N8K16(d, a, b);
#endif
}

// Four matrices of 8 x 8 bf16 from shared memory. Lane i gives the address (16-byte aligned) of row
// i % 8 of matrix i / 8; out[m] is row `group`, columns 2 pair and the next of matrix m. All lanes
// of the warp together.
__device__ __forceinline__ void LoadMatrices(uint32_t (&out)[4], const void* row) {
#ifdef __CUDACC__
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
#else
  emulation::LoadMatrices(out, row, false);
#endif
}

// The same of the transposed matrices: out[m] is rows 2 pair and the next, column `group`.
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&out)[4], const void* row) {
#ifdef __CUDACC__
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
#else
  emulation::LoadMatrices(out, row, true);
#endif
}

// Two bf16 in a word, `low` in the lower half; to nearest even, as Bf16Of (a NaN may have another
// payload).
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
#ifdef __CUDACC__
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  return static_cast<uint32_t>(Bf16Of(low)) | static_cast<uint32_t>(Bf16Of(high)) << 16;
#endif
}

}  // namespace holdfast::kernels
