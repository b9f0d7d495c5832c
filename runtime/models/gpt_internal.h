// Parts of gpt.cc that are of use to nobody else: which tensor is which, and where activations lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "runtime/models/product.h"
#include "runtime/models/workspace_layout.h"

namespace holdfast::gpt {

// A block of logits takes at most this many floats (64 MiB; on a GPU, where small products are
// slow, 1 GiB), but at least 64 rows.
inline constexpr int64_t kLogitFloats = 16 << 20, kGpuLogitFloats = 256 << 20;

struct Sizes {
  int64_t layers = 0, heads = 0, width = 0, context = 0, vocab = 0, batch = 0;
  double dropout = 0;
  Precision precision = Precision::kF32;
  int64_t logit_floats = kLogitFloats;
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
  int64_t attention_input = 0;  // of the projection behind it; fp32: the attention itself
  int64_t layer_bytes = 0;

  int64_t input = 0, layers = 0, final_norm = 0, final_mean = 0, final_rstd = 0, losses = 0,
          logits = 0, scratch = 0;
  int64_t d_stream = 0, d_branch = 0, d_wide = 0;  // gradients; d_wide: [rows, 4 * width]
  int64_t logit_rows = 0;                          // rows of logits at a time
  // From row to row of them. A vocabulary is any number; rows of 16-bit numbers that do not begin
  // on 16 bytes keep products from the tensor cores.
  int64_t logit_leading = 0;
  Products::Sizes product_sizes;
  int64_t products = 0;  // scratch of them
  int64_t total = 0;
};

inline Layout MakeLayout(const Sizes& s, const Rounding& rounding, int64_t batch, int64_t context,
                         bool keep) {
  Layout l;
  l.batch = batch;
  l.context = context;
  l.keep = keep;
  const int64_t rows = batch * context, narrow = rows * s.width;
  WorkspaceLayout block;
  const auto operand = [&](WorkspaceLayout& to, int64_t n) {
    return to.AddBytes(rounding.OperandBytes(n));
  };
  l.norm1 = operand(block, narrow);
  l.mean1 = block.AddFloats(rows);
  l.rstd1 = block.AddFloats(rows);
  l.qkv = block.AddFloats(3 * narrow);
  l.attention = block.AddFloats(narrow);
  l.attention_input = rounding.rounds ? operand(block, narrow) : l.attention;
  l.log_sum_exp = block.AddFloats(rows * s.heads);
  l.middle = block.AddFloats(narrow);
  l.norm2 = operand(block, narrow);
  l.mean2 = block.AddFloats(rows);
  l.rstd2 = block.AddFloats(rows);
  l.derivative = block.AddFloats(4 * narrow);
  l.gelu = operand(block, 4 * narrow);
  l.out = block.AddFloats(narrow);
  l.layer_bytes = block.total();

  WorkspaceLayout all;
  l.input = all.AddFloats(narrow);
  // Without a backward pass two blocks' worth: a block reads the output of the one before.
  l.layers = all.AddBytes(l.layer_bytes * (keep ? s.layers : std::min<int64_t>(2, s.layers)));
  l.final_norm = operand(all, narrow);
  l.final_mean = all.AddFloats(rows);
  l.final_rstd = all.AddFloats(rows);
  l.losses = all.AddFloats(rows);
  l.logit_rows = std::min(rows, std::max<int64_t>(64, s.logit_floats / s.vocab));
  l.logit_leading = rounding.packed ? (s.vocab + 7) / 8 * 8 : s.vocab;
  l.logits = all.AddFloats(l.logit_rows * l.logit_leading);
  l.scratch = all.AddBytes(kernels::AttentionScratchBytes(
      {.batch = batch, .context = context, .heads = s.heads, .head_dim = s.width / s.heads}));
  if (keep) {
    l.d_stream = all.AddFloats(narrow);
    l.d_branch = all.AddFloats(narrow);
    l.d_wide = all.AddFloats(4 * narrow);
  }
  l.product_sizes = {.weight = std::max(4 * s.width * s.width, s.vocab * s.width),
                     .gradient = std::max(4 * narrow, l.logit_rows * l.logit_leading),
                     .stage = narrow};
  l.products = all.AddBytes(Products::ScratchBytes(rounding, l.product_sizes));
  l.total = all.total();
  return l;
}

// The arrays of one block. void*: operands of products, kept as these take them.
struct Activations {
  void* norm1;
  float *mean1, *rstd1, *qkv, *attention;
  void* attention_input;
  float *log_sum_exp, *middle;
  void* norm2;
  float *mean2, *rstd2, *derivative;
  void* gelu;
  float* out;
};

inline Activations ActivationsOf(const Layout& l, void* base, int64_t layer) {
  char* block = At<char>(base, l.layers + l.layer_bytes * (l.keep ? layer : layer % 2));
  const auto at = [block](int64_t offset) { return At<float>(block, offset); };
  return {at(l.norm1),           at(l.mean1),       at(l.rstd1),  at(l.qkv),   at(l.attention),
          at(l.attention_input), at(l.log_sum_exp), at(l.middle), at(l.norm2), at(l.mean2),
          at(l.rstd2),           at(l.derivative),  at(l.gelu),   at(l.out)};
}

}  // namespace holdfast::gpt
