// Attention on the tensor cores, bf16 factors. Blocks are sized so that nothing is spilled, and so
// that what a block reads through the L2 cache does not bound it: with R rows, a forward pass reads
// 2 / R bytes an operation, dK/dV 1 / R, dQ 4 / (3 R). At 5.5 TB/s of L2 (an H100's, as measured by
// others) 128 rows allow 350 TFLOP/s forward, 64 rows 350 and 260 backward.
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
