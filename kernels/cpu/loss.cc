#include <algorithm>

#include "kernels/cpu/simd.h"
#include "kernels/device_ops.h"
#include "kernels/math/activation.h"

namespace holdfast::kernels {
namespace {

constexpr int64_t kChunk = 512;  // a multiple of the 32 lanes below

float RowMax(int64_t n, const float* x) {
  if (n < 8) {
    float m = x[0];
    for (int64_t i = 1; i < n; ++i) m = x[i] > m ? x[i] : m;
    return m;
  }
  F8 m = F8::Load(x);
  for (int64_t i = 8; i + 8 <= n; i += 8) m = Larger(F8::Load(x + i), m);
  m = Larger(F8::Load(x + n - 8), m);
  return MaxLanes(m);
}

void ExpRow(int64_t n, const float* x, float max, float* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = SoftmaxValue(x[i], max);
}

// Adds up chunk after chunk in 32 lanes, so that the order does not depend on where the values are
// kept.
class LaneSum {
 public:
  void Add(int64_t n, const float* x) {
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
      for (int w = 0; w < 4; ++w) lanes_[w] = lanes_[w] + F8::Load(x + i + 8 * w);
    }
    for (; i < n; ++i) rest_ += x[i];  // in the last chunk only
  }
  float Total() const {
    return SumLanes((lanes_[0] + lanes_[1]) + (lanes_[2] + lanes_[3])) + rest_;
  }

 private:
  F8 lanes_[4] = {F8::Zero(), F8::Zero(), F8::Zero(), F8::Zero()};
  float rest_ = 0;
};

// Sum of e^(x - max); the terms are written to `terms` where given.
float SumExp(int64_t n, const float* x, float max, float* terms) {
  float chunk[kChunk];
  LaneSum sum;
  for (int64_t c = 0; c < n; c += kChunk) {
    const int64_t count = std::min(kChunk, n - c);
    float* out = terms != nullptr ? terms + c : chunk;
    ExpRow(count, x + c, max, out);
    sum.Add(count, out);
  }
  return sum.Total();
}

void ScaleRow(int64_t n, float factor, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

float LossOf(float max, float sum, float target_logit) { return Log(sum) + (max - target_logit); }

}  // namespace

void SoftmaxCrossEntropy(Stream& stream, const LogitsShape& s, const int32_t* targets, float scale,
                         float* logits, float* losses) {
  if (const DeviceOps* ops = stream.ops())
    return ops->SoftmaxCrossEntropy(stream, s, targets, scale, logits, losses);
  const int64_t leading = s.leading == 0 ? s.vocab : s.leading;
  stream.Launch([=] {
    for (int64_t row = 0; row < s.rows; ++row) {
      float* x = logits + row * leading;
      const int32_t target = targets[row];
      if (target < 0) {
        losses[row] = 0;
        std::fill_n(x, s.vocab, 0.0f);
        continue;
      }
      const float max = RowMax(s.vocab, x);
      const float target_logit = x[target];
      const float sum = SumExp(s.vocab, x, max, x);
      losses[row] = LossOf(max, sum, target_logit);
      ScaleRow(s.vocab, scale / sum, x);
      x[target] -= scale;
    }
  });
}

void CrossEntropyLoss(Stream& stream, const LogitsShape& s, const int32_t* targets,
                      const float* logits, float* losses) {
  if (const DeviceOps* ops = stream.ops())
    return ops->CrossEntropyLoss(stream, s, targets, logits, losses);
  const int64_t leading = s.leading == 0 ? s.vocab : s.leading;
  stream.Launch([=] {
    for (int64_t row = 0; row < s.rows; ++row) {
      const float* x = logits + row * leading;
      losses[row] = 0;
      if (targets[row] < 0) continue;
      const float max = RowMax(s.vocab, x);
      losses[row] = LossOf(max, SumExp(s.vocab, x, max, nullptr), x[targets[row]]);
    }
  });
}

void ArgMaxHits(Stream& stream, const LogitsShape& s, const int32_t* targets, const float* logits,
                float* hits) {
  if (const DeviceOps* ops = stream.ops()) return ops->ArgMaxHits(stream, s, targets, logits, hits);
  const int64_t leading = s.leading == 0 ? s.vocab : s.leading;
  stream.Launch([=] {
    for (int64_t row = 0; row < s.rows; ++row) {
      const float* x = logits + row * leading;
      const int32_t target = targets[row];
      bool hit = target >= 0 && x[target] == x[target];
      for (int64_t i = 0; hit && i < s.vocab; ++i)
        hit = i < target ? x[i] < x[target] : x[i] <= x[target];
      hits[row] = hit ? 1.0f : 0.0f;
    }
  });
}

}  // namespace holdfast::kernels
