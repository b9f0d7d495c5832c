// Layer norm with each row read once: it stays in the registers of the threads that own it, in
// groups of four columns. Rows of up to 1,024 columns belong to a warp each, longer ones to a
// block; what does not fit the registers (beyond 8,192 columns) is read again.
//
// The gradients of gain and bias: a block owns 32 rows, its threads their columns' sums, rows in
// ascending order (with a warp for each row: those of a warp, then the warps). The blocks' sums
// wait in the stream's scratch for a second kernel, which adds them in eight ascending parts.
//
// Memory, 4-byte words: forward 2 rows cols; backward 3 rows cols (4 when added to dx) and
// 4 cols rows / 32 for the sums. About 12 (forward) and 25 operations an element.
#include <cassert>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/stream.h"
#include "kernels/math/activation.h"

namespace holdfast::kernels::cuda {
namespace {

constexpr int kBlockWarps = 8;
constexpr int kBlockRows = 32;  // of the backward pass
constexpr int kTotalsColumns = 32, kTotalsParts = 8;

// Threads of a row: one of the block's eight warps, or the whole block.
template <int kRowWarps>
struct RowThreads {
  static constexpr int kCount = 32 * kRowWarps;
  static constexpr int kRowsAtOnce = kBlockWarps / kRowWarps;
  static dim3 Block() { return dim3(kCount, kRowsAtOnce); }
  __device__ static int Thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int Row() { return static_cast<int>(threadIdx.y); }
  __device__ static float Total(float x, float* parts) {
    return BlockReduce(x, kRowWarps, parts, Sum());
  }
};

// The first column of a thread's group k.
template <int kRowWarps>
__device__ __forceinline__ int64_t GroupAt(int k) {
  return 4 * (RowThreads<kRowWarps>::Thread() +
              static_cast<int64_t>(k) * RowThreads<kRowWarps>::kCount);
}

// kKept groups of a row in registers; zeros beyond its end.
template <bool kVector, int kRowWarps, int kKept>
struct Row {
  float4 four[kKept];

  __device__ __forceinline__ void Load(const float* from, int64_t cols) {
#pragma unroll
    for (int k = 0; k < kKept; ++k)
      four[k] = LoadFour<kVector>(from, GroupAt<kRowWarps>(k), cols, 0.0f);
  }
};

// body(c, four) for every group of the row: the kept ones, then those that are read again.
template <bool kVector, int kRowWarps, int kKept, typename Body>
__device__ __forceinline__ void ForGroups(const Row<kVector, kRowWarps, kKept>& kept,
                                          const float* row, int64_t cols, const Body& body) {
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t c = GroupAt<kRowWarps>(k);
    if (c < cols) body(c, kept.four[k]);
  }
#pragma unroll 1
  for (int64_t c = GroupAt<kRowWarps>(kKept); c < cols; c += 4 * RowThreads<kRowWarps>::kCount)
    body(c, LoadFour<kVector>(row, c, cols, 0.0f));
}

template <bool kVector, int kRowWarps, int kKept>
__global__ void __launch_bounds__(32 * kBlockWarps)
    ForwardKernel(LayerNormShape s, const float* x, const float* gain, const float* bias,
                  float* out, float* mean_out, float* rstd_out) {
  using Threads = RowThreads<kRowWarps>;
  __shared__ float parts[kBlockWarps];
  const int64_t r = static_cast<int64_t>(blockIdx.x) * Threads::kRowsAtOnce + Threads::Row();
  if (r >= s.rows) return;  // a warp with a row of its own; no barrier follows then
  const float* const row = x + r * s.cols;
  const auto count = static_cast<float>(s.cols);
  Row<kVector, kRowWarps, kKept> kept;
  kept.Load(row, s.cols);

  float sum = 0;
  ForGroups(kept, row, s.cols, [&](int64_t, float4 v) { sum += SumFour(v); });
  const float mean = Threads::Total(sum, parts) / count;
  float squares = 0;
  ForGroups(kept, row, s.cols, [&](int64_t c, float4 v) {
    const float d[4] = {v.x - mean, v.y - mean, v.z - mean, v.w - mean};
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      if (c + l < s.cols) squares = fmaf(d[l], d[l], squares);
    }
  });
  const float rstd = 1.0f / sqrtf(Threads::Total(squares, parts) / count + s.epsilon);

  ForGroups(kept, row, s.cols, [&](int64_t c, float4 v) {
    const float4 value = MapFour(
        [&](float of_x, float of_gain, float of_bias) {
          return LayerNormValue(Normalise(of_x, mean, rstd), of_gain, of_bias);
        },
        v, LoadFour<kVector>(gain, c, s.cols, 0.0f), LoadFour<kVector>(bias, c, s.cols, 0.0f));
    StoreFour<kVector>(out + r * s.cols, c, s.cols, value);
  });
  if (Threads::Thread() == 0) {
    mean_out[r] = mean;
    rstd_out[r] = rstd;
  }
}

struct BackwardArguments {
  int64_t rows, cols;
  const float *x, *gain, *mean, *rstd, *d_out;
  float* dx;
  bool add_into_dx;
  float* partials;  // [blocks][2][cols]: of gain, of bias
};

// Sums of a thread's columns over the rows of its block.
template <int kKept>
struct ColumnSums2 {
  float4 gain[kKept], bias[kKept];
};

__device__ __forceinline__ float4 AddFour(float4 a, float4 b) { return MapFour(Sum(), a, b); }

// With a warp for each row: the sums of the eight warps, ascending, then to the partials. With a
// block for each row a thread's sums are complete.
template <bool kVector, int kRowWarps, int kKept>
__device__ __forceinline__ void StorePartials(const ColumnSums2<kKept>& sums, int64_t cols,
                                              float* partials) {
  constexpr int kColumns = 4 * 32 * kKept;
  // Read and written four at a time.
  constexpr int kHeld = kRowWarps == 1 ? kColumns : 4;
  alignas(16) __shared__ float of_gain[kHeld];
  alignas(16) __shared__ float of_bias[kHeld];
  if constexpr (kRowWarps == 1) {
    for (int w = 0; w < kBlockWarps; ++w) {
      if (RowThreads<1>::Row() == w) {
#pragma unroll
        for (int k = 0; k < kKept; ++k) {
          const auto c = static_cast<int>(GroupAt<1>(k));
          auto* const gain_at = reinterpret_cast<float4*>(of_gain + c);
          auto* const bias_at = reinterpret_cast<float4*>(of_bias + c);
          *gain_at = w == 0 ? sums.gain[k] : AddFour(*gain_at, sums.gain[k]);
          *bias_at = w == 0 ? sums.bias[k] : AddFour(*bias_at, sums.bias[k]);
        }
      }
      __syncthreads();
    }
    const int threads = 32 * kBlockWarps;
    for (int c = RowThreads<1>::Row() * 32 + RowThreads<1>::Thread(); c < cols; c += threads) {
      partials[c] = of_gain[c];
      partials[cols + c] = of_bias[c];
    }
  } else {
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int64_t c = GroupAt<kRowWarps>(k);
      StoreFour<kVector>(partials, c, cols, sums.gain[k]);
      StoreFour<kVector>(partials + cols, c, cols, sums.bias[k]);
    }
  }
}

// kColumns: the sums of gain and bias too; all columns are kept then.
template <bool kVector, int kRowWarps, int kKept, bool kColumns>
__global__ void __launch_bounds__(32 * kBlockWarps) BackwardKernel(BackwardArguments a) {
  using Threads = RowThreads<kRowWarps>;
  __shared__ float parts[kBlockWarps];
  const auto count = static_cast<float>(a.cols);
  ColumnSums2<kKept> sums = {};
#pragma unroll 1
  for (int i = Threads::Row(); i < kBlockRows; i += Threads::kRowsAtOnce) {
    const int64_t r = static_cast<int64_t>(blockIdx.x) * kBlockRows + i;
    if (r >= a.rows) break;  // all threads of the row
    const float *x = a.x + r * a.cols, *d_out = a.d_out + r * a.cols;
    float* const dx = a.dx + r * a.cols;
    const float mean = a.mean[r], rstd = a.rstd[r];
    Row<kVector, kRowWarps, kKept> kept, d_kept;
    kept.Load(x, a.cols);
    d_kept.Load(d_out, a.cols);

    // body(k, c, d_out, x_hat, d_out * gain); zeros beyond the row's end.
    const auto for_groups = [&](const auto& body) {
      const auto one = [&](int k, int64_t c, float4 v, float4 d) {
        const float4 gain = LoadFour<kVector>(a.gain, c, a.cols, 0.0f);
        const float4 x_hat = MapFour([&](float e) { return Normalise(e, mean, rstd); }, v);
        body(k, c, d, x_hat, MapFour([](float e, float g) { return e * g; }, d, gain));
      };
#pragma unroll
      for (int k = 0; k < kKept; ++k) {
        const int64_t c = GroupAt<kRowWarps>(k);
        if (c < a.cols) one(k, c, kept.four[k], d_kept.four[k]);
      }
      if constexpr (!kColumns) {
#pragma unroll 1
        for (int64_t c = GroupAt<kRowWarps>(kKept); c < a.cols; c += 4 * Threads::kCount) {
          one(0, c, LoadFour<kVector>(x, c, a.cols, 0.0f),
              LoadFour<kVector>(d_out, c, a.cols, 0.0f));
        }
      }
    };
    float sum_g = 0, sum_gx = 0;
    for_groups([&](int k, int64_t, float4 d, float4 x_hat, float4 g) {
      sum_g += SumFour(g);
      sum_gx += SumFour(MapFour([](float u, float v) { return u * v; }, g, x_hat));
      if constexpr (kColumns) {
        sums.bias[k] = AddFour(sums.bias[k], d);
        sums.gain[k] = MapFour([](float u, float v, float w) { return fmaf(u, v, w); }, d, x_hat,
                               sums.gain[k]);
      }
    });
    const float mean_g = Threads::Total(sum_g, parts) / count;
    const float mean_gx = Threads::Total(sum_gx, parts) / count;
    for_groups([&](int, int64_t c, float4, float4 x_hat, float4 g) {
      float4 slope = MapFour(
          [&](float u, float v) { return LayerNormSlope(u, v, mean_g, mean_gx, rstd); }, g, x_hat);
      if (a.add_into_dx) slope = AddFour(LoadFour<kVector>(dx, c, a.cols, 0.0f), slope);
      StoreFour<kVector>(dx, c, a.cols, slope);
    });
  }
  if constexpr (kColumns) {
    StorePartials<kVector, kRowWarps, kKept>(sums, a.cols, a.partials + blockIdx.x * 2 * a.cols);
  }
}

// Rows that are too long for the registers: a thread for each column, 32 rows.
__global__ void __launch_bounds__(kThreads) LongColumnsKernel(BackwardArguments a) {
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (c >= a.cols) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kBlockRows;
  const int64_t end = begin + kBlockRows < a.rows ? begin + kBlockRows : a.rows;
  float gain = 0, bias = 0;
#pragma unroll 4
  for (int64_t r = begin; r < end; ++r) {
    const float d = a.d_out[r * a.cols + c];
    gain = fmaf(d, Normalise(a.x[r * a.cols + c], a.mean[r], a.rstd[r]), gain);
    bias += d;
  }
  float* const to = a.partials + blockIdx.x * 2 * a.cols + c;
  to[0] = gain;
  to[a.cols] = bias;
}

// sums[c] = sum over blocks of partials[block][c]: eight parts of the blocks side by side, each
// ascending, then the parts ascending. c counts gains, then biases.
__global__ void __launch_bounds__(kTotalsColumns* kTotalsParts)
    TotalsKernel(int64_t blocks, int64_t cols, const float* partials, float* d_gain,
                 float* d_bias) {
  __shared__ float parts[kTotalsParts][kTotalsColumns];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kTotalsColumns + threadIdx.x;
  const int64_t of_part = (blocks + kTotalsParts - 1) / kTotalsParts;
  const int64_t begin = threadIdx.y * of_part;
  const int64_t end = begin + of_part < blocks ? begin + of_part : blocks;
  float sum = 0;
  if (c < 2 * cols) {
#pragma unroll 8
    for (int64_t b = begin; b < end; ++b) sum += partials[b * 2 * cols + c];
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= 2 * cols) return;
  for (int p = 1; p < kTotalsParts; ++p) sum += parts[p][threadIdx.x];
  (c < cols ? d_gain + c : d_bias + (c - cols))[0] = sum;
}

// Calls launch with the smallest tiles that keep a row: <row warps, groups kept>.
template <typename Launch>
void WithTiles(int64_t cols, const Launch& launch) {
  if (cols <= 256) return launch.template Run<1, 2>();
  if (cols <= 768) return launch.template Run<1, 6>();
  if (cols <= 1024) return launch.template Run<1, 8>();
  if (cols <= 2048) return launch.template Run<8, 2>();
  if (cols <= 4096) return launch.template Run<8, 4>();
  launch.template Run<8, 8>();
}
constexpr int64_t kKeptColumnsMax = 8192;

struct ForwardLaunch {
  Stream& stream;
  LayerNormShape s;
  const float *x, *gain, *bias;
  float *out, *mean, *rstd;
  bool vector;

  template <int kRowWarps, int kKept>
  void Run() const {
    using Threads = RowThreads<kRowWarps>;
    Launch(stream,
           vector ? ForwardKernel<true, kRowWarps, kKept> : ForwardKernel<false, kRowWarps, kKept>,
           BlocksFor(s.rows, Threads::kRowsAtOnce), Threads::Block(), 0, s, x, gain, bias, out,
           mean, rstd);
  }
};

struct BackwardLaunch {
  Stream& stream;
  BackwardArguments a;
  bool vector;

  template <int kRowWarps, int kKept>
  void Run() const {
    Start<kRowWarps>(vector ? BackwardKernel<true, kRowWarps, kKept, true>
                            : BackwardKernel<false, kRowWarps, kKept, true>);
  }
  void RunLong() const {
    Launch(stream, LongColumnsKernel,
           dim3(BlocksFor(a.rows, kBlockRows), BlocksFor(a.cols, kThreads)), kThreads, 0, a);
    Start<kBlockWarps>(vector ? BackwardKernel<true, kBlockWarps, 4, false>
                              : BackwardKernel<false, kBlockWarps, 4, false>);
  }
  template <int kRowWarps>
  void Start(void (*kernel)(BackwardArguments)) const {
    Launch(stream, kernel, BlocksFor(a.rows, kBlockRows), RowThreads<kRowWarps>::Block(), 0, a);
  }
};

}  // namespace

void LayerNormForward(Stream& stream, const LayerNormShape& s, const float* x, const float* gain,
                      const float* bias, float* out, float* mean, float* rstd) {
  if (s.rows == 0 || s.cols == 0) return;
  const bool vector = s.cols % 4 == 0 && Aligned16(x, gain, bias, out);
  WithTiles(s.cols, ForwardLaunch{stream, s, x, gain, bias, out, mean, rstd, vector});
}

void LayerNormBackward(Stream& stream, const LayerNormShape& s, const float* x, const float* gain,
                       const float* mean, const float* rstd, const float* d_out,
                       const LayerNormGradients& out) {
  if (s.cols == 0) return;
  assert(!(out.add_into_dx && out.dx == d_out));
  const int64_t blocks = BlocksFor(s.rows, kBlockRows);  // none without rows: the sums are zero
  float* const partials =
      CudaScratch(stream, (blocks + 1) * 2 * s.cols * static_cast<int64_t>(sizeof(float)));
  if (partials == nullptr) return;  // the stream knows
  const BackwardArguments a{s.rows, s.cols,          x,       gain, mean, rstd, d_out,
                            out.dx, out.add_into_dx, partials};
  const BackwardLaunch launch{stream, a, s.cols % 4 == 0 && Aligned16(x, gain, d_out, out.dx)};
  if (s.cols <= kKeptColumnsMax) {
    WithTiles(s.cols, launch);
  } else {
    launch.RunLong();
  }
  Launch(stream, TotalsKernel, BlocksFor(2 * s.cols, kTotalsColumns),
         dim3(kTotalsColumns, kTotalsParts), 0, blocks, s.cols, partials, out.d_gain, out.d_bias);
}

}  // namespace holdfast::kernels::cuda
