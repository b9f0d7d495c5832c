#include <cassert>
#include <cstring>

#include "kernels/device_ops.h"

namespace holdfast::kernels {
namespace {

void AddRow(int64_t n, const float* x, float* to) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] += x[i];
}

void SumRow(int64_t n, const float* a, const float* b, float* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

}  // namespace

void EmbeddingForward(Stream& stream, const EmbeddingShape& s, const int32_t* tokens,
                      const float* token_table, const float* position_table, float* out) {
  if (const DeviceOps* ops = stream.ops())
    return ops->EmbeddingForward(stream, s, tokens, token_table, position_table, out);
  stream.Launch([=] {
    for (int64_t row = 0; row < s.batch * s.context; ++row) {
      assert(tokens[row] >= 0 && tokens[row] < s.vocab);
      SumRow(s.width, token_table + tokens[row] * s.width,
             position_table + row % s.context * s.width, out + row * s.width);
    }
  });
}

void EmbeddingBackward(Stream& stream, const EmbeddingShape& s, const int32_t* tokens,
                       const float* d_out, float* d_token_table, float* d_position_table) {
  if (const DeviceOps* ops = stream.ops())
    return ops->EmbeddingBackward(stream, s, tokens, d_out, d_token_table, d_position_table);
  stream.Launch([=] {
    const size_t row_bytes = static_cast<size_t>(s.width) * sizeof(float);
    if (s.batch == 0) std::memset(d_position_table, 0, row_bytes * static_cast<size_t>(s.context));
    for (int64_t row = 0; row < s.batch * s.context; ++row) {
      assert(tokens[row] >= 0 && tokens[row] < s.vocab);
      const float* from = d_out + row * s.width;
      AddRow(s.width, from, d_token_table + tokens[row] * s.width);
      float* position = d_position_table + row % s.context * s.width;
      if (row < s.context) {
        std::memcpy(position, from, row_bytes);
      } else {
        AddRow(s.width, from, position);
      }
    }
  });
}

}  // namespace holdfast::kernels
