// Attention on the tensor cores, bf16 factors. Blocks are sized for two limits.
//   Registers: nothing is spilled on sm_80 and sm_90 (nvcc 13.0, -Xptxas -v). Of a thread on sm_90,
//     for head_dim 32, 64, 128: forward 95, 122, 176; dK/dV 125, 168, 232; dQ 107, 146, 190. So an
//     SM holds 16, 16, 8 warps forward and 16, 12, 8 backward.
//   The L2 cache: with R rows a forward pass reads 2 / R bytes an operation, dK/dV 1 / R, dQ
//     4 / (3 R). At 5.5 TB/s (an H100's, as measured by others) 128 rows allow 350 TFLOP/s forward,
//     64 rows 350 and 260 backward.
// Shared memory is no limit: 12-48 KiB forward, 25-97 KiB backward.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/attention_mma.cuh"

namespace holdfast::kernels::cuda {

void HalfAttentionForward(Stream& stream, const AttentionArguments& a, int64_t sequences) {
  if (a.head_dim <= 32) return LaunchForward<MmaEngine<32, 8, 32>, 2>(stream, a, sequences);
  if (a.head_dim <= 64) return LaunchForward<MmaEngine<64, 8, 32>, 2>(stream, a, sequences);
  LaunchForward<MmaEngine<128, 8, 32>, 1>(stream, a, sequences);
}

void HalfAttentionBackward(Stream& stream, const AttentionArguments& a, int64_t sequences) {
  if (a.head_dim <= 32) {
    LaunchBackward<MmaEngine<32, 8, 32>, true, 2>(stream, a, sequences);
    LaunchBackward<MmaEngine<32, 8, 32>, false, 2>(stream, a, sequences);
  } else if (a.head_dim <= 64) {
    LaunchBackward<MmaEngine<64, 4, 32>, true, 3>(stream, a, sequences);
    LaunchBackward<MmaEngine<64, 4, 32>, false, 3>(stream, a, sequences);
  } else {
    LaunchBackward<MmaEngine<128, 8, 16>, true, 1>(stream, a, sequences);
    LaunchBackward<MmaEngine<128, 8, 32>, false, 1>(stream, a, sequences);
  }
}

}  // namespace holdfast::kernels::cuda
