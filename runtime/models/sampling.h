// Choosing the next token from a model's scores. Pure functions: the same arguments give the same
// token, on any machine whose exp() gives the same bits.
#pragma once

#include <cstdint>
#include <span>

namespace holdfast {

struct SamplingOptions {
  double temperature = 1;  // 0: the largest score, the first of equal ones
  int64_t top_k = 0;       // only the k largest scores count; 0: all
  uint64_t seed = 1;
};

// position: the number of tokens drawn before; each has random bits of its own. Scores that are not
// finite are never drawn; -1 when there is none that is.
int32_t ChooseToken(std::span<const float> logits, const SamplingOptions& options,
                    int64_t position);

}  // namespace holdfast
