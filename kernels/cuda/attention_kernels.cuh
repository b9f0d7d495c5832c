// The kernels of attention over an engine (attention.cuh). Forward: online softmax over the key
// blocks (Milakov, Gimelshein 2018; Dao et al., "FlashAttention", 2022). Backward: scores are
// computed again from the kept log-sum-exp, once with keys as rows (dK, dV) and once with queries
// as rows (dQ): seven products where five would do, for a fixed order without atomics.
//
// Work, with S = batch * heads * context^2 / 2 visible scores (blocks on the diagonal add about
// kCols / context) and D = head_dim:
//   operations: forward 4 S D, dK and dV 8 S D, dQ 6 S D; an exponential (about 15 instructions of
//     the fp32 pipe) per score in each of the three;
//   reads through the L2 cache, fp32: forward 2 D 4 bytes per key and query block, i.e. 8 S D /
//   kRows;
//     each backward kernel the same with its own kRows;
//   memory: forward reads qkv and writes out (4 rows of heads * D floats a token), dK/dV reads qkv,
//     d_out and writes 2 rows, dQ reads the same and writes 1, delta reads 2: 4 + 6 + 5 + 2 rows.
//
// Two barriers a block of keys (forward), one (backward). What is loaded next is fetched into
// registers before a product and put into shared memory after it.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/math/activation.h"

namespace holdfast::kernels::cuda {

// Blocks with most columns start first: heads in x, which runs fastest, row blocks in y.
template <typename Engine>
__device__ __forceinline__ int RowBlock(bool last_is_longest) {
  const unsigned y = last_is_longest ? gridDim.y - 1 - blockIdx.y : blockIdx.y;
  return static_cast<int>(y) * Engine::kRows;
}

template <typename Engine>
struct ForwardTiles {
  static constexpr int kElements =
      Engine::kRows * Engine::kStride + 2 * Engine::kCols * Engine::kStride;
  static constexpr int64_t kBytes =
      kElements * static_cast<int64_t>(sizeof(typename Engine::Element)) +
      Engine::kExchangeFloats * 4;
};

template <typename Engine>
struct OnlineSoftmax {
  float largest[Engine::kThreadRows], total[Engine::kThreadRows];  // total: this thread's columns

  __device__ __forceinline__ void Start() {
#pragma unroll
    for (int i = 0; i < Engine::kThreadRows; ++i) {
      largest[i] = -kInfinity;
      total[i] = 0;
    }
  }
  // scores: products in, weights relative to the largest so far out; `sums` is rescaled to that.
  __device__ __forceinline__ void Add(float scale, typename Engine::Scores& scores,
                                      typename Engine::Sums& sums) {
#pragma unroll
    for (int i = 0; i < Engine::kThreadRows; ++i) {
      float now = scores.At(i, 0);
#pragma unroll
      for (int j = 1; j < Engine::kThreadCols; ++j) {
        const float s = scores.At(i, j);
        now = s > now ? s : now;
      }
      now = WarpReduce<Engine::kLanesOfRow>(now, Largest()) * scale;
      now = now > largest[i] ? now : largest[i];
      const float factor = SoftmaxValue(largest[i], now);
      largest[i] = now;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < Engine::kThreadCols; ++j) {
        float& s = scores.At(i, j);
        s = Exp(fmaf(s, scale, -now));
        sum += s;
      }
      total[i] = fmaf(total[i], factor, sum);
#pragma unroll
      for (int d = 0; d < Engine::kThreadDims; ++d) sums.At(i, d) *= factor;
    }
  }
};

template <typename Engine, int kBlocksOfSm>
__global__ void __launch_bounds__(Engine::kThreads, kBlocksOfSm)
    AttentionForwardKernel(const AttentionArguments a) {
  using Element = typename Engine::Element;
  HF_DYNAMIC_SHARED(Element, q_tile);
  Element* const k_tile = q_tile + Engine::kRows * Engine::kStride;
  Element* const v_tile = k_tile + Engine::kCols * Engine::kStride;
  auto* const exchange = reinterpret_cast<float*>(v_tile + Engine::kCols * Engine::kStride);

  const Head head(a, static_cast<int>(blockIdx.x));
  const HeadRows<const float> k_rows = head.Input(1), v_rows = head.Input(2);
  const int q0 = RowBlock<Engine>(true);
  const int end = q0 + Engine::kRows < a.context ? q0 + Engine::kRows : a.context;
  LoadRows<Engine>(a, head.Input(0), q0, q_tile);
  Fetched<Engine, Engine::kCols> next;
  next.Fetch(a, k_rows, 0);
  next.Put(k_tile);
  typename Engine::Sums sums = {};
  OnlineSoftmax<Engine> softmax;
  softmax.Start();
#pragma unroll 1
  for (int k0 = 0; k0 < end; k0 += Engine::kCols) {
    const bool more = k0 + Engine::kCols < end;
    // The warp: any of its rows that exist.
    const bool sees = k0 <= q0 + Engine::LastRow() && q0 + Engine::FirstRow() < a.context;
    typename Engine::Scores scores = {};
    next.Fetch(a, v_rows, k0);
    __syncthreads();  // k_tile is there, v_tile is free
    if (sees) Engine::AddScores(q_tile, k_tile, scores);
    next.Put(v_tile);
    __syncthreads();  // v_tile is there, k_tile is free
    if (more) next.Fetch(a, k_rows, k0 + Engine::kCols);
    if (sees) {
      const int ahead = k0 - q0;
      if (Engine::kCols + ahead > Engine::FirstRow() + 1) {  // some key is hidden from some row
#pragma unroll
        for (int i = 0; i < Engine::kThreadRows; ++i) {
#pragma unroll
          for (int j = 0; j < Engine::kThreadCols; ++j) {
            if (Engine::Col(j) + ahead > Engine::Row(i)) scores.At(i, j) = -kInfinity;
          }
        }
      }
      softmax.Add(a.scale, scores, sums);
      Engine::AddWeighted(scores, v_tile, exchange, sums);
    }
    if (more) next.Put(k_tile);
  }

  float inverse[Engine::kThreadRows];
#pragma unroll
  for (int i = 0; i < Engine::kThreadRows; ++i) {
    const float total = WarpReduce<Engine::kLanesOfRow>(softmax.total[i], Sum());
    inverse[i] = 1.0f / total;
    const int row = q0 + Engine::Row(i);
    if (row < a.context && Engine::Col(0) == 0)
      head.LogSumExp()[row] = softmax.largest[i] + Log(total);
  }
  StoreRows<Engine>(a, sums, inverse, q0, head.Out());
}

// Rows stay, columns pass by: with kKeys rows are keys and columns queries, else the reverse.
template <typename Engine>
struct BackwardTiles {
  static constexpr int kRowElements = Engine::kRows * Engine::kStride;
  static constexpr int kColElements = Engine::kCols * Engine::kStride;
  static constexpr int kStatistics = 4 * Engine::kCols;  // log-sum-exp and delta, two stages
  static constexpr int64_t kBytes = (2 * kRowElements + 4 * kColElements) *
                                        static_cast<int64_t>(sizeof(typename Engine::Element)) +
                                    (kStatistics + Engine::kExchangeFloats) * 4;
};

// log-sum-exp and delta of a query.
struct QueryStatistics {
  float log_sum_exp = 0, delta = 0;
};

// Those of a block of queries, on their way to shared memory: [kCols] of each, one value a thread.
template <typename Engine>
struct FetchedStatistics {
  static_assert(2 * Engine::kCols <= Engine::kThreads);
  float value = 0;

  __device__ __forceinline__ void Fetch(const AttentionArguments& a, const Head& head, int query0) {
    const int thread = static_cast<int>(threadIdx.x), query = query0 + thread % Engine::kCols;
    value = 0;
    if (thread < 2 * Engine::kCols && query < a.context)
      value = (thread < Engine::kCols ? head.LogSumExp() : head.Delta())[query];
  }
  __device__ __forceinline__ void Put(float* to) const {
    if (threadIdx.x < 2 * Engine::kCols) to[threadIdx.x] = value;
  }
};

// scores: products in, weights out; where a query does not see a key, zero. Column 0 of the block
// is `ahead` positions after row 0; with `masks` false all is seen. Queries beyond the context have
// zeros for q, d_out and statistics: a weight of 1 that meets zeros.
// row_statistics without kKeys, col_statistics with.
template <typename Engine, bool kKeys>
__device__ __forceinline__ void WeightsAgain(float scale, int ahead, bool masks,
                                             const QueryStatistics* row_statistics,
                                             const float* col_statistics,
                                             typename Engine::Scores& scores) {
#pragma unroll
  for (int j = 0; j < Engine::kThreadCols; ++j) {
    const float of_col = kKeys ? col_statistics[Engine::Col(j)] : 0.0f;
#pragma unroll
    for (int i = 0; i < Engine::kThreadRows; ++i) {
      float& s = scores.At(i, j);
      s = Exp(fmaf(s, scale, -(kKeys ? of_col : row_statistics[i].log_sum_exp)));
      if (masks) {
        const int row = Engine::Row(i), col = Engine::Col(j) + ahead;
        const bool seen = kKeys ? row <= col : col <= row;
        s = seen ? s : 0.0f;
      }
    }
  }
}

// scores: weights in, gradients of the scores out.
template <typename Engine, bool kKeys>
__device__ __forceinline__ void ScoreGradients(typename Engine::Scores& d_weights,
                                               const QueryStatistics* row_statistics,
                                               const float* col_statistics,
                                               typename Engine::Scores& scores) {
#pragma unroll
  for (int j = 0; j < Engine::kThreadCols; ++j) {
    const float of_col = kKeys ? col_statistics[Engine::kCols + Engine::Col(j)] : 0.0f;
#pragma unroll
    for (int i = 0; i < Engine::kThreadRows; ++i) {
      float& s = scores.At(i, j);
      s *= d_weights.At(i, j) - (kKeys ? of_col : row_statistics[i].delta);
    }
  }
}

template <typename Engine, bool kKeys, int kBlocksOfSm>
__global__ void __launch_bounds__(Engine::kThreads, kBlocksOfSm)
    AttentionBackwardKernel(const AttentionArguments a) {
  using Element = typename Engine::Element;
  using Tiles = BackwardTiles<Engine>;
  constexpr int kCols = Engine::kCols;
  HF_DYNAMIC_SHARED(Element, row_tile);                        // of K, or of Q
  Element* const d_row_tile = row_tile + Tiles::kRowElements;  // of V, or of dO
  Element* const cols = d_row_tile + Tiles::kRowElements;      // of Q, or of K: two stages
  Element* const d_cols = cols + 2 * Tiles::kColElements;      // of dO, or of V
  auto* const statistics = reinterpret_cast<float*>(d_cols + 2 * Tiles::kColElements);
  float* const exchange = statistics + Tiles::kStatistics;

  const Head head(a, static_cast<int>(blockIdx.x));
  const HeadRows<const float> q = head.Input(0), k = head.Input(1), v = head.Input(2),
                              d_out = head.OutGradient();
  const HeadRows<const float> col_rows = kKeys ? q : k, d_col_rows = kKeys ? d_out : v;
  const int row0 = RowBlock<Engine>(!kKeys);
  const int begin = kKeys ? row0 : 0;
  const int end = kKeys || row0 + Engine::kRows > a.context ? a.context : row0 + Engine::kRows;
  LoadRows<Engine>(a, kKeys ? k : q, row0, row_tile);
  LoadRows<Engine>(a, kKeys ? v : d_out, row0, d_row_tile);

  Fetched<Engine, kCols> next;
  QueryStatistics row_statistics[Engine::kThreadRows];
  FetchedStatistics<Engine> next_statistics;
  next.Fetch(a, col_rows, begin);
  next.Put(cols);
  next.Fetch(a, d_col_rows, begin);
  next.Put(d_cols);
  if (kKeys) {
    next_statistics.Fetch(a, head, begin);
    next_statistics.Put(statistics);
  } else {
#pragma unroll
    for (int i = 0; i < Engine::kThreadRows; ++i) {
      const int query = row0 + Engine::Row(i);
      if (query < a.context) row_statistics[i] = {head.LogSumExp()[query], head.Delta()[query]};
    }
  }

  typename Engine::Sums sums = {}, value_sums = {};  // of dK or dQ; of dV
  int stage = 0;
#pragma unroll 1
  for (int col0 = begin; col0 < end; col0 += kCols, stage ^= 1) {
    const bool more = col0 + kCols < end;
    const Element* const col_tile = cols + stage * Tiles::kColElements;
    const Element* const d_col_tile = d_cols + stage * Tiles::kColElements;
    const float* const col_statistics = statistics + stage * 2 * kCols;
    const int ahead = col0 - row0;
    // The warp: any of its rows that exist sees a column, any of its rows does not.
    const bool sees = (kKeys ? Engine::FirstRow() < kCols + ahead : ahead <= Engine::LastRow()) &&
                      row0 + Engine::FirstRow() < a.context;
    const bool masks = kKeys ? Engine::LastRow() > ahead : kCols + ahead > Engine::FirstRow() + 1;
    __syncthreads();  // this stage is there, the other one is free
    if (more) {
      next.Fetch(a, col_rows, col0 + kCols);
      if (kKeys) next_statistics.Fetch(a, head, col0 + kCols);
    }
    typename Engine::Scores scores = {};
    if (sees) {
      Engine::AddScores(row_tile, col_tile, scores);
      WeightsAgain<Engine, kKeys>(a.scale, ahead, masks, row_statistics, col_statistics, scores);
      if (kKeys) Engine::AddWeighted(scores, d_col_tile, exchange, value_sums);
    }
    if (more) {
      next.Put(cols + (stage ^ 1) * Tiles::kColElements);
      if (kKeys) next_statistics.Put(statistics + (stage ^ 1) * 2 * kCols);
      next.Fetch(a, d_col_rows, col0 + kCols);
    }
    if (sees) {
      typename Engine::Scores d_weights = {};
      Engine::AddScores(d_row_tile, d_col_tile, d_weights);
      ScoreGradients<Engine, kKeys>(d_weights, row_statistics, col_statistics, scores);
      Engine::AddWeighted(scores, col_tile, exchange, sums);
    }
    if (more) next.Put(d_cols + (stage ^ 1) * Tiles::kColElements);
  }

  float factor[Engine::kThreadRows], one[Engine::kThreadRows];
#pragma unroll
  for (int i = 0; i < Engine::kThreadRows; ++i) {
    factor[i] = a.scale;
    one[i] = 1.0f;
  }
  StoreRows<Engine>(a, sums, factor, row0, head.Gradient(kKeys ? 1 : 0));
  if (kKeys) StoreRows<Engine>(a, value_sums, one, row0, head.Gradient(2));
}

// kBlocksOfSm: how many blocks are to fit an SM, which bounds the registers of a thread.
inline dim3 AttentionGrid(const AttentionArguments& a, int64_t sequences, int rows) {
  return dim3(static_cast<unsigned>(sequences * a.heads), BlocksFor(a.context, rows));
}

template <typename Engine, int kBlocksOfSm>
void LaunchForward(Stream& stream, const AttentionArguments& a, int64_t sequences) {
  Launch(stream, AttentionForwardKernel<Engine, kBlocksOfSm>,
         AttentionGrid(a, sequences, Engine::kRows), Engine::kThreads, ForwardTiles<Engine>::kBytes,
         a);
}

template <typename Engine, bool kKeys, int kBlocksOfSm>
void LaunchBackward(Stream& stream, const AttentionArguments& a, int64_t sequences) {
  Launch(stream, AttentionBackwardKernel<Engine, kKeys, kBlocksOfSm>,
         AttentionGrid(a, sequences, Engine::kRows), Engine::kThreads,
         BackwardTiles<Engine>::kBytes, a);
}

}  // namespace holdfast::kernels::cuda
