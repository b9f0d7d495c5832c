// Causal attention in blocks of 64 queries x 64 keys, one head after the other. Forward: online
// softmax over the key blocks in ascending order (Milakov, Gimelshein 2018). Backward: scores are
// computed again from the kept log-sum-exp (Dao et al., "FlashAttention", 2022); key blocks
// outside, so that dK and dV stay in the cache, and dQ is added to in ascending key blocks. Blocks
// are packed first: with strides of 3 * width, rows of wide models would all fall into the same
// cache sets.
#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/cpu/block.h"
#include "kernels/device_ops.h"
#include "kernels/math/activation.h"

namespace holdfast::kernels {
namespace {

constexpr int64_t kMaxHeadDim = 256;

// Packed blocks; all of [64][padded head_dim] except where a comment says otherwise.
struct Scratch {
  Scratch(void* memory, int64_t padded) {
    auto* next = static_cast<float*>(memory);
    const auto take = [&next](int64_t n) { return std::exchange(next, next + n); };
    const int64_t block = kBlock * padded;
    q = take(block);
    k = take(block);
    v = take(block);
    d_out = take(block);
    accumulated = take(block);
    d_k = take(block);
    d_v = take(block);
    k_transposed = take(block);  // [padded head_dim][64]
    v_transposed = take(block);
    scores = take(kBlock * kBlock);
    d_scores = take(kBlock * kBlock);
    row_max = take(kBlock);
    row_sum = take(kBlock);
  }
  static int64_t Floats(int64_t padded) {
    return 9 * kBlock * padded + 2 * kBlock * kBlock + 2 * kBlock;
  }
  float *q, *k, *v, *d_out, *accumulated, *d_k, *d_v, *k_transposed, *v_transposed, *scores,
      *d_scores, *row_max, *row_sum;
};

// One head of one sequence.
struct Head {
  int64_t context, dim, padded, qkv_stride, out_stride;
  const float *q, *k, *v;
  float scale;

  int64_t BlockLength(int64_t start) const { return std::min(kBlock, context - start); }
};

Head HeadOf(const AttentionShape& s, const float* qkv, int64_t b, int64_t h) {
  const int64_t width = s.heads * s.head_dim;
  Head head;
  head.context = s.context;
  head.dim = s.head_dim;
  head.padded = RoundUp(s.head_dim, kTileCols);
  head.qkv_stride = 3 * width;
  head.out_stride = width;
  head.q = qkv + b * s.context * 3 * width + h * s.head_dim;
  head.k = head.q + width;
  head.v = head.k + width;
  head.scale = 1.0f / sqrtf(static_cast<float>(s.head_dim));
  return head;
}

// How many keys of this block row i of the query block sees.
int64_t Visible(bool diagonal, int64_t i, int64_t keys) {
  return diagonal ? std::min(i + 1, keys) : keys;
}

// out[i][j] = left_i . right_j for the tiles that hold a visible (i, j); `right` is packed
// transposed.
void ScoreTiles(const Head& head, const float* left, const float* right_transposed, int64_t queries,
                int64_t keys, bool diagonal, float* out) {
  for (int64_t i = 0; i < queries; i += kTileRows) {
    const int64_t visible = Visible(diagonal, i + kTileRows - 1, keys);
    for (int64_t j = 0; j < visible; j += kTileCols) {
      TileProduct<false>({left + i * head.padded, head.padded, 1}, right_transposed + j, kBlock, 0,
                         head.dim, out + i * kBlock + j, kBlock);
    }
  }
}

// to[i] (+)= sum over j of weights[i][j] rows[j], j ascending over the visible keys of the four
// rows of a tile.
template <bool kAdd>
void WeightedRows(const Head& head, const float* weights, const float* rows, int64_t queries,
                  int64_t keys, bool diagonal, float* to) {
  for (int64_t i = 0; i < queries; i += kTileRows) {
    const int64_t visible = Visible(diagonal, i + kTileRows - 1, keys);
    for (int64_t c = 0; c < head.padded; c += kTileCols) {
      TileProduct<kAdd>({weights + i * kBlock, kBlock, 1}, rows + c, head.padded, 0, visible,
                        to + i * head.padded + c, head.padded);
    }
  }
}

// to[j] += sum over i of weights[i][j] rows[i], i ascending from the first query that sees a key of
// the tile.
void WeightedColumns(const Head& head, const float* weights, const float* rows, int64_t queries,
                     int64_t keys, bool diagonal, float* to) {
  for (int64_t j = 0; j < keys; j += kTileRows) {
    for (int64_t c = 0; c < head.padded; c += kTileCols) {
      TileProduct<true>({weights + j, 1, kBlock}, rows + c, head.padded, diagonal ? j : 0, queries,
                        to + j * head.padded + c, head.padded);
    }
  }
}

void ExpRow(int64_t n, float log_sum_exp, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = SoftmaxValue(x[i], log_sum_exp);
}

// Sets what row `row` of a block of scores must not see, up to the end of the tiles that are read
// later.
void MaskRow(int64_t visible, float value, float* row) {
  const int64_t end = std::min(kBlock, RoundUp(visible, kTileCols) + kTileCols);
  for (int64_t j = visible; j < end; ++j) row[j] = value;
}

float RowMax(int64_t n, const float* x) {  // n: a multiple of 8
  F8 m = F8::Load(x);
  for (int64_t i = 8; i < n; i += 8) m = Larger(F8::Load(x + i), m);
  return MaxLanes(m);
}

float RowSum(int64_t n, const float* x) {
  F8 sum = F8::Load(x);
  for (int64_t i = 8; i < n; i += 8) sum = sum + F8::Load(x + i);
  return SumLanes(sum);
}

void ScaleRow(int64_t n, float factor, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// Turns scores into weights relative to the running maximum; rescales what earlier key blocks have
// given.
void OnlineSoftmax(const Head& head, const Scratch& s, int64_t queries, int64_t keys, bool first,
                   bool diagonal) {
  for (int64_t i = 0; i < queries; ++i) {
    float* row = s.scores + i * kBlock;
    const int64_t visible = Visible(diagonal, i, keys);
    MaskRow(visible, -kInfinity, row);
    const int64_t n = RoundUp(visible, 8);
    const float block_max = RowMax(n, row);
    const float before = s.row_max[i];
    const float now = first || block_max > before ? block_max : before;
    ExpRow(n, now, row);
    MaskRow(visible, 0.0f, row);
    const float sum = RowSum(n, row);
    s.row_max[i] = now;
    if (first) {
      s.row_sum[i] = sum;
    } else {
      const float factor = SoftmaxValue(before, now);
      s.row_sum[i] = fmaf(s.row_sum[i], factor, sum);
      if (factor != 1.0f) ScaleRow(head.padded, factor, s.accumulated + i * head.padded);
    }
  }
}

void ForwardBlock(const Head& head, const Scratch& s, int64_t q0, float* out, float* log_sum_exp) {
  const int64_t queries = head.BlockLength(q0);
  PackRows(head.q + q0 * head.qkv_stride, head.qkv_stride, queries, head.dim, head.scale,
           head.padded, s.q);
  for (int64_t k0 = 0; k0 <= q0; k0 += kBlock) {
    const int64_t keys = head.BlockLength(k0);
    const bool first = k0 == 0, diagonal = k0 == q0;
    PackTransposed(head.k + k0 * head.qkv_stride, head.qkv_stride, keys, head.dim, s.k_transposed);
    PackRows(head.v + k0 * head.qkv_stride, head.qkv_stride, keys, head.dim, 1.0f, head.padded,
             s.v);
    ScoreTiles(head, s.q, s.k_transposed, queries, keys, diagonal, s.scores);
    OnlineSoftmax(head, s, queries, keys, first, diagonal);
    if (first) {
      WeightedRows<false>(head, s.scores, s.v, queries, keys, diagonal, s.accumulated);
    } else {
      WeightedRows<true>(head, s.scores, s.v, queries, keys, diagonal, s.accumulated);
    }
  }
  for (int64_t i = 0; i < queries; ++i) {
    const float* from = s.accumulated + i * head.padded;
    float* to = out + (q0 + i) * head.out_stride;
    const float inverse = 1.0f / s.row_sum[i];
    for (int64_t c = 0; c < head.dim; ++c) to[c] = from[c] * inverse;
    log_sum_exp[q0 + i] = s.row_max[i] + Log(s.row_sum[i]);
  }
}

// delta = d_out . out, the part of the score gradient that softmax's normalisation brings.
float RowDot(int64_t n, const float* a, const float* b) {
  F8 sum = F8::Zero();
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) sum = MulAdd(F8::Load(a + i), F8::Load(b + i), sum);
  float total = SumLanes(sum);
  for (; i < n; ++i) total = fmaf(a[i], b[i], total);
  return total;
}

void ScoreSlopeRow(int64_t n, float delta, const float* weights, float* d_scores) {
  for (int64_t j = 0; j < n; ++j) d_scores[j] = weights[j] * (d_scores[j] - delta);
}

struct BackwardArguments {
  const float *out, *log_sum_exp, *d_out;
  float *d_q, *d_k, *d_v;
};

// scores := weights, d_scores := gradient of the scores; zero where a query does not see a key.
void BackwardScores(const Head& head, const Scratch& s, const BackwardArguments& a, int64_t q0,
                    int64_t queries, int64_t keys, bool diagonal) {
  ScoreTiles(head, s.q, s.k_transposed, queries, keys, diagonal, s.scores);
  ScoreTiles(head, s.d_out, s.v_transposed, queries, keys, diagonal, s.d_scores);
  for (int64_t i = 0; i < RoundUp(queries, kTileRows); ++i) {
    float *weights = s.scores + i * kBlock, *d_scores = s.d_scores + i * kBlock;
    const int64_t visible = i < queries ? Visible(diagonal, i, keys) : 0;
    if (visible > 0) {
      const int64_t at = (q0 + i) * head.out_stride;
      const int64_t n = RoundUp(visible, 8);
      ExpRow(n, a.log_sum_exp[q0 + i], weights);
      ScoreSlopeRow(n, RowDot(head.dim, a.d_out + at, a.out + at), weights, d_scores);
    }
    MaskRow(visible, 0.0f, weights);
    MaskRow(visible, 0.0f, d_scores);
  }
}

void AddQueryRows(const Head& head, const Scratch& s, int64_t q0, int64_t queries, bool first,
                  float* d_q) {
  for (int64_t i = 0; i < queries; ++i) {
    const float* from = s.accumulated + i * head.padded;
    float* to = d_q + (q0 + i) * head.qkv_stride;
    for (int64_t c = 0; c < head.dim; ++c) to[c] = first ? from[c] : to[c] + from[c];
  }
}

void StoreRows(const Head& head, const float* from, int64_t rows, float* to) {
  for (int64_t j = 0; j < rows; ++j)
    std::copy_n(from + j * head.padded, head.dim, to + j * head.qkv_stride);
}

void BackwardBlock(const Head& head, const Scratch& s, const BackwardArguments& a, int64_t k0) {
  const int64_t keys = head.BlockLength(k0), stride = head.qkv_stride;
  const float *k = head.k + k0 * stride, *v = head.v + k0 * stride;
  PackTransposed(k, stride, keys, head.dim, s.k_transposed);
  PackTransposed(v, stride, keys, head.dim, s.v_transposed);
  PackRows(k, stride, keys, head.dim, head.scale, head.padded,
           s.k);  // scaled: gives dQ of the unscaled q
  std::fill_n(s.d_k, kBlock * head.padded, 0.0f);
  std::fill_n(s.d_v, kBlock * head.padded, 0.0f);
  for (int64_t q0 = k0; q0 < head.context; q0 += kBlock) {
    const int64_t queries = head.BlockLength(q0);
    const bool diagonal = q0 == k0;
    PackRows(head.q + q0 * stride, stride, queries, head.dim, head.scale, head.padded, s.q);
    PackRows(a.d_out + q0 * head.out_stride, head.out_stride, queries, head.dim, 1.0f, head.padded,
             s.d_out);
    BackwardScores(head, s, a, q0, queries, keys, diagonal);
    WeightedColumns(head, s.scores, s.d_out, queries, keys, diagonal, s.d_v);
    WeightedColumns(head, s.d_scores, s.q, queries, keys, diagonal, s.d_k);
    WeightedRows<false>(head, s.d_scores, s.k, queries, keys, diagonal, s.accumulated);
    AddQueryRows(head, s, q0, queries, k0 == 0, a.d_q);
  }
  StoreRows(head, s.d_k, keys, a.d_k + k0 * stride);
  StoreRows(head, s.d_v, keys, a.d_v + k0 * stride);
}

void CheckShape(const AttentionShape& s) {
  assert(s.batch >= 0 && s.context >= 0 && s.heads >= 1 && s.head_dim >= 1 &&
         s.head_dim <= kMaxHeadDim);
}

}  // namespace

int64_t AttentionScratchBytes(const AttentionShape& s) {
  CheckShape(s);
  return Scratch::Floats(RoundUp(s.head_dim, kTileCols)) * static_cast<int64_t>(sizeof(float));
}

void AttentionForward(Stream& stream, const AttentionShape& shape, const float* qkv, float* out,
                      float* log_sum_exp, void* scratch) {
  if (const DeviceOps* ops = stream.ops())
    return ops->AttentionForward(stream, shape, qkv, out, log_sum_exp, scratch);
  CheckShape(shape);
  stream.Launch([=] {
    const Scratch s(scratch, RoundUp(shape.head_dim, kTileCols));
    const int64_t width = shape.heads * shape.head_dim;
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t h = 0; h < shape.heads; ++h) {
        const Head head = HeadOf(shape, qkv, b, h);
        float* head_out = out + b * shape.context * width + h * shape.head_dim;
        float* head_log = log_sum_exp + (b * shape.heads + h) * shape.context;
        for (int64_t q0 = 0; q0 < shape.context; q0 += kBlock)
          ForwardBlock(head, s, q0, head_out, head_log);
      }
    }
  });
}

void AttentionBackward(Stream& stream, const AttentionShape& shape, const float* qkv,
                       const float* out, const float* log_sum_exp, const float* d_out, float* d_qkv,
                       void* scratch) {
  if (const DeviceOps* ops = stream.ops())
    return ops->AttentionBackward(stream, shape, qkv, out, log_sum_exp, d_out, d_qkv, scratch);
  CheckShape(shape);
  stream.Launch([=] {
    const Scratch s(scratch, RoundUp(shape.head_dim, kTileCols));
    const int64_t width = shape.heads * shape.head_dim;
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t h = 0; h < shape.heads; ++h) {
        const Head head = HeadOf(shape, qkv, b, h);
        const int64_t at = b * shape.context * width + h * shape.head_dim;
        float* d_q = d_qkv + b * shape.context * 3 * width + h * shape.head_dim;
        const BackwardArguments a{out + at,    log_sum_exp + (b * shape.heads + h) * shape.context,
                                  d_out + at,  d_q,
                                  d_q + width, d_q + 2 * width};
        for (int64_t k0 = 0; k0 < shape.context; k0 += kBlock) BackwardBlock(head, s, a, k0);
      }
    }
  });
}

}  // namespace holdfast::kernels
