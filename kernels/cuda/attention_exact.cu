// Exact attention: the kernels over the engine of fp32 products. Rows x columns of a block are
// chosen for shared memory: two blocks fit an SM of an H200 (227 KiB) at each head_dim but the
// largest, one an A100's (163 KiB). Forward 44, 68, 75, 102 KiB at head_dim 32, 64, 128, 256;
// backward 46, 78, 105, 133 KiB. Registers 160-255 of a thread on sm_80 and sm_90 (nvcc 13.0,
// -Xptxas -v); dK/dV of more than 128 dimensions spills 8 bytes, the others nothing.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_fma.cuh"
#include "kernels/cuda/attention_kernels.cuh"

namespace holdfast::kernels::cuda {
namespace {

template <typename Engine, int kBlocksOfSm>
void LaunchBoth(Stream& stream, const AttentionArguments& a, int64_t sequences) {
  LaunchBackward<Engine, true, kBlocksOfSm>(stream, a, sequences);
  LaunchBackward<Engine, false, kBlocksOfSm>(stream, a, sequences);
}

}  // namespace

void ExactAttentionForward(Stream& stream, const AttentionArguments& a, int64_t sequences) {
  if (a.head_dim <= 32) return LaunchForward<FmaEngine<32, 8, 64>, 2>(stream, a, sequences);
  if (a.head_dim <= 64) return LaunchForward<FmaEngine<64, 8, 64>, 2>(stream, a, sequences);
  if (a.head_dim <= 128) return LaunchForward<FmaEngine<128, 8, 32>, 2>(stream, a, sequences);
  LaunchForward<FmaEngine<256, 4, 32>, 2>(stream, a, sequences);
}

void ExactAttentionBackward(Stream& stream, const AttentionArguments& a, int64_t sequences) {
  if (a.head_dim <= 32) return LaunchBoth<FmaEngine<32, 8, 32>, 2>(stream, a, sequences);
  if (a.head_dim <= 64) return LaunchBoth<FmaEngine<64, 8, 32>, 2>(stream, a, sequences);
  if (a.head_dim <= 128) return LaunchBoth<FmaEngine<128, 8, 16>, 2>(stream, a, sequences);
  LaunchBoth<FmaEngine<256, 4, 16>, 1>(stream, a, sequences);
}

}  // namespace holdfast::kernels::cuda
