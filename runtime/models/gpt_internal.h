// Parts of gpt.cc that are of use to nobody else: which tensor is which, and where activations lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "runtime/models/product.h"
#include "runtime/models/workspace_layout.h"

namespace holdfast::gpt {

struct Sizes {
  int64_t layers = 0, heads = 0, width = 0, context = 0, vocab = 0, batch = 0;
  double dropout = 0;
  bool bf16 = false;  // inputs of products are rounded
};

// Tensors are declared in the order in which the backward pass completes them, since the order of
// declaration is the order of the reduction's buckets: what is complete first fills the first
// bucket, which is then sent while the rest is still computed. So: final norm, blocks from the last
// to the first (inside each from its end to its beginning), positions, and last the token
// embedding, whose gradient has a part from the head and a part from the input.
enum LayerTensor : int {
  kProjBias,  // mlp.c_proj
  kProjWeight,
  kFcBias,  // mlp.c_fc
  kFcWeight,
  kNorm2Gain,
  kNorm2Bias,
  kOutBias,  // attn.c_proj
  kOutWeight,
  kQkvBias,  // attn.c_attn
  kQkvWeight,
  kNorm1Gain,
  kNorm1Bias,
  kLayerTensors,
};

struct Index {
  int layers = 0;
  int final_gain() const { return 0; }
  int final_bias() const { return 1; }
  int layer(int64_t l, LayerTensor t) const {
    return 2 + (layers - 1 - static_cast<int>(l)) * kLayerTensors + t;
  }
  int positions() const { return 2 + layers * kLayerTensors; }
  int tokens() const { return positions() + 1; }
};

// Offsets into the workspace for a micro-batch of [batch, context]. `keep`: all layers' activations
// are kept for a backward pass; else every layer uses the same memory.
struct Layout {
  int64_t batch = 0, context = 0;
  bool keep = false;

  // One block's activations, relative to its start.
  int64_t norm1 = 0, mean1 = 0, rstd1 = 0, qkv = 0, attention = 0, log_sum_exp = 0, middle = 0;
  int64_t norm2 = 0, mean2 = 0, rstd2 = 0, derivative = 0, gelu = 0, out = 0;
  int64_t layer_bytes = 0;

  int64_t input = 0, layers = 0, final_norm = 0, final_mean = 0, final_rstd = 0, losses = 0,
          logits = 0, scratch = 0;
  int64_t d_stream = 0, d_branch = 0, d_wide = 0;  // gradients; d_wide: [rows, 4 * width]
  int64_t logit_rows = 0;                          // rows of logits at a time
  int64_t operand = 0, halves = 0;                 // bf16: elements of the largest operand
  int64_t total = 0;
};

// A block of logits takes at most this many floats (64 MiB), but at least 64 rows.
inline constexpr int64_t kLogitFloats = 16 << 20;

inline Layout MakeLayout(const Sizes& s, int64_t batch, int64_t context, bool keep) {
  Layout l{.batch = batch, .context = context, .keep = keep};
  const int64_t rows = batch * context, narrow = rows * s.width;
  WorkspaceLayout block;
  l.norm1 = block.AddFloats(narrow);
  l.mean1 = block.AddFloats(rows);
  l.rstd1 = block.AddFloats(rows);
  l.qkv = block.AddFloats(3 * narrow);
  l.attention = block.AddFloats(narrow);
  l.log_sum_exp = block.AddFloats(rows * s.heads);
  l.middle = block.AddFloats(narrow);
  l.norm2 = block.AddFloats(narrow);
  l.mean2 = block.AddFloats(rows);
  l.rstd2 = block.AddFloats(rows);
  l.derivative = block.AddFloats(4 * narrow);
  l.gelu = block.AddFloats(4 * narrow);
  l.out = block.AddFloats(narrow);
  l.layer_bytes = block.total();

  WorkspaceLayout all;
  l.input = all.AddFloats(narrow);
  // Without a backward pass two blocks' worth: a block reads the output of the one before.
  l.layers = all.AddBytes(l.layer_bytes * (keep ? s.layers : std::min<int64_t>(2, s.layers)));
  l.final_norm = all.AddFloats(narrow);
  l.final_mean = all.AddFloats(rows);
  l.final_rstd = all.AddFloats(rows);
  l.losses = all.AddFloats(rows);
  l.logit_rows = std::min(rows, std::max<int64_t>(64, kLogitFloats / s.vocab));
  l.logits = all.AddFloats(l.logit_rows * s.vocab);
  l.scratch = all.AddBytes(kernels::AttentionScratchBytes(
      {.batch = batch, .context = context, .heads = s.heads, .head_dim = s.width / s.heads}));
  if (keep) {
    l.d_stream = all.AddFloats(narrow);
    l.d_branch = all.AddFloats(narrow);
    l.d_wide = all.AddFloats(4 * narrow);
  }
  if (s.bf16) {
    l.operand =
        std::max({4 * narrow, 4 * s.width * s.width, s.vocab * s.width, l.logit_rows * s.vocab});
    l.halves = all.AddBytes(Products::BytesFor(l.operand));
  }
  l.total = all.total();
  return l;
}

// The arrays of one block.
struct Activations {
  float *norm1, *mean1, *rstd1, *qkv, *attention, *log_sum_exp, *middle;
  float *norm2, *mean2, *rstd2, *derivative, *gelu, *out;
};

inline Activations ActivationsOf(const Layout& l, void* base, int64_t layer) {
  char* block = At<char>(base, l.layers + l.layer_bytes * (l.keep ? layer : layer % 2));
  const auto at = [block](int64_t offset) { return At<float>(block, offset); };
  return {at(l.norm1),       at(l.mean1),  at(l.rstd1), at(l.qkv),   at(l.attention),
          at(l.log_sum_exp), at(l.middle), at(l.norm2), at(l.mean2), at(l.rstd2),
          at(l.derivative),  at(l.gelu),   at(l.out)};
}

}  // namespace holdfast::gpt
