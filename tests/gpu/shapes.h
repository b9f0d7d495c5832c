// What the GPU check computes: GPT-2 124M with 16,384 tokens in a unit of work, or, to show on the
// emulated device that the check itself works, a model of a few thousand parameters.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/config/config.h"
#include "runtime/models/gpt_internal.h"

namespace holdfast {

struct GpuShapes {
  bool tiny = false;
  int64_t layers = 12, heads = 12, width = 768, context = 1024, vocab = 50'257;
  int64_t batch = 16;       // sequences in a unit
  int64_t square = 8192;    // the product that all others are held against
  int64_t units = 8;        // in a step of the speed of training
  int64_t timed_steps = 8;  // of each kind
  int64_t bit_steps = 3;    // of the comparisons of bits
  int64_t probes = 100;
  double measure_ms = 20;  // the least time of one measurement

  static GpuShapes Tiny() {
    GpuShapes s;
    s.tiny = true;
    s.layers = 2, s.heads = 2, s.width = 32, s.context = 16, s.vocab = 61;
    s.batch = 2, s.square = 64, s.units = 4, s.timed_steps = 2, s.bit_steps = 2, s.probes = 3;
    s.measure_ms = 0;
    return s;
  }
  int64_t rows() const { return batch * context; }
  int64_t parameters() const {
    return layers * (12 * width * width + 13 * width) + (vocab + context + 2) * width;
  }
};

// Rows of logits that the model makes at a time on a GPU, and from row to row of them (see Layout).
inline int64_t LogitRows(const GpuShapes& s) {
  return std::min(s.rows(), std::max<int64_t>(64, gpt::kGpuLogitFloats / s.vocab));
}
inline int64_t LogitLeading(const GpuShapes& s) { return (s.vocab + 7) / 8 * 8; }

// A run of that model in bf16 with so many units a step, on the tokens of a .bin file.
inline Config GpuConfig(const GpuShapes& s, const std::string& data, int64_t units) {
  Config c;
  c.model = "gpt";
  c.data = {data};
  c.device = "cuda";
  c.precision = "bf16";
  c.layers = s.layers, c.heads = s.heads, c.embed = s.width, c.context = s.context;
  c.vocab_size = s.vocab;
  c.steps = 100'000;
  c.micro_batches = units;
  c.micro_batch_size = s.batch;
  c.learning_rate = 6e-4;
  c.warmup_steps = 10;
  return c;
}

}  // namespace holdfast
