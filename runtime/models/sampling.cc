#include "runtime/models/sampling.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/base/digest.h"

namespace holdfast {
namespace {

constexpr uint64_t kSalt = 0x53414D504C45;

// In [0, 1), 53 bits.
double Uniform(uint64_t seed, int64_t position) {
  const uint64_t bits = Mix64(Mix64(seed ^ kSalt) ^ static_cast<uint64_t>(position));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace

int32_t ChooseToken(std::span<const float> logits, const SamplingOptions& options,
                    int64_t position) {
  std::vector<int32_t> order;
  order.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) order.push_back(static_cast<int32_t>(i));
  }
  if (order.empty()) return -1;
  // Largest first, equal ones by number: a total order, so that nothing depends on the sort.
  const auto before = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const bool greedy = !(options.temperature > 0);
  const auto all = static_cast<int64_t>(order.size());
  const int64_t kept = greedy ? 1 : options.top_k > 0 ? std::min(options.top_k, all) : all;
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), before);
  if (kept == 1) return order[0];
  order.resize(static_cast<size_t>(kept));
  std::vector<double> upto(order.size());
  double sum = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const double below = static_cast<double>(logits[order[i]]) - logits[order[0]];
    upto[i] = sum += std::exp(below / options.temperature);
  }
  const double drawn = Uniform(options.seed, position) * sum;
  const auto at = std::upper_bound(upto.begin(), upto.end(), drawn);
  return order[std::min<size_t>(at - upto.begin(), order.size() - 1)];
}

}  // namespace holdfast
