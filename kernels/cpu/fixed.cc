#include <algorithm>
#include <cassert>

#include "kernels/device_ops.h"
#include "kernels/math/fixed.h"
#include "runtime/base/digest.h"

namespace holdfast::kernels {
namespace {

constexpr int64_t kChunk =
    2048;  // looked at for its largest element, then converted while it is in the L1 cache
constexpr uint32_t kInfinityBits = 0x7f800000u;

// The bits of |x| compare like the numbers; infinities and NaN are above all of them.
uint32_t LargestBits(int64_t n, const float* x) {
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = static_cast<int32_t>(BitsOf(x[i]) & 0x7fffffffu);
    largest = bits > largest ? bits : largest;
  }
  return static_cast<uint32_t>(largest);
}

template <bool kAdd>
void ConvertClean(int64_t n, double scale, const float* __restrict x, uint64_t* __restrict acc) {
  for (int64_t i = 0; i < n; ++i) {
    const auto fixed = static_cast<uint64_t>(FixedOf(static_cast<double>(x[i]) * scale));
    acc[i] = kAdd ? acc[i] + fixed : fixed;
  }
}

// A chunk with at least one element to be flagged.
template <bool kAdd>
void ConvertFlagged(int64_t n, double scale, double bound, const float* x, uint64_t* acc,
                    FixedFlags* flags) {
  for (int64_t i = 0; i < n; ++i) {
    int64_t fixed;
    const bool ok = ToFixed(x[i], scale, bound, &fixed);
    const bool finite = (BitsOf(x[i]) & 0x7fffffffu) < kInfinityBits;
    if (finite) {
      flags->max_abs = std::max(flags->max_abs, std::fabs(x[i]));
      flags->out_of_range += ok ? 0 : 1;
    } else {
      ++flags->nonfinite;
    }
    acc[i] = (kAdd ? acc[i] : 0) + static_cast<uint64_t>(fixed);
  }
}

template <bool kAdd>
void Convert(const FixedScale& s, int64_t n, const float* x, int64_t* acc, FixedFlags* flags) {
  assert(s.exponent >= -200 && s.exponent <= 200 && s.micro_batches >= 1);
  const double scale = PowerOfTwo(s.exponent), bound = FixedBound(s.micro_batches);
  auto* words = reinterpret_cast<uint64_t*>(acc);
  for (int64_t c = 0; c < n; c += kChunk) {
    const int64_t count = std::min(kChunk, n - c);
    const uint32_t largest = LargestBits(count, x + c);
    const float max_abs = FloatOf(largest);
    if (largest < kInfinityBits && static_cast<double>(max_abs) * scale < bound) {
      flags->max_abs = std::max(flags->max_abs, max_abs);
      ConvertClean<kAdd>(count, scale, x + c, words + c);
    } else {
      ConvertFlagged<kAdd>(count, scale, bound, x + c, words + c, flags);
    }
  }
}

}  // namespace

void AccumulateFixed(Stream& stream, const FixedScale& scale, int64_t n, const float* x,
                     int64_t* acc, FixedFlags* flags) {
  if (const DeviceOps* ops = stream.ops())
    return ops->AccumulateFixed(stream, scale, n, x, acc, flags);
  stream.Launch([=] { Convert<true>(scale, n, x, acc, flags); });
}

void StoreFixed(Stream& stream, const FixedScale& scale, int64_t n, const float* x, int64_t* acc,
                FixedFlags* flags) {
  if (const DeviceOps* ops = stream.ops()) return ops->StoreFixed(stream, scale, n, x, acc, flags);
  stream.Launch([=] { Convert<false>(scale, n, x, acc, flags); });
}

void FixedToFloat(Stream& stream, int64_t n, double factor, const int64_t* acc, float* out) {
  if (const DeviceOps* ops = stream.ops()) return ops->FixedToFloat(stream, n, factor, acc, out);
  stream.Launch([=] {
    const int64_t* __restrict from = acc;
    float* __restrict to = out;
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(DoubleOfFixed(from[i]) * factor);
  });
}

void AddWords(Stream& stream, int64_t n, const int64_t* other, int64_t* acc) {
  if (const DeviceOps* ops = stream.ops()) return ops->AddWords(stream, n, other, acc);
  stream.Launch([=] {
    const auto* __restrict from = reinterpret_cast<const uint64_t*>(other);
    auto* __restrict to = reinterpret_cast<uint64_t*>(acc);
    for (int64_t i = 0; i < n; ++i) to[i] += from[i];
  });
}

void SumWords(Stream& stream, int64_t n, const int64_t* words, uint64_t* sum) {
  if (const DeviceOps* ops = stream.ops()) return ops->SumWords(stream, n, words, sum);
  stream.Launch([=] {
    uint64_t total = 0;
    for (int64_t i = 0; i < n; ++i) total += static_cast<uint64_t>(words[i]);
    *sum = total;
  });
}

void Digest(Stream& stream, const void* words, int64_t count, uint64_t region, int64_t first,
            uint64_t* digest) {
  if (const DeviceOps* ops = stream.ops())
    return ops->Digest(stream, words, count, region, first, digest);
  stream.Launch([=] { *digest = DigestWords(words, count, region, first); });
}

double SumTerms(int64_t n, const float* terms) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(terms[i]);
  return sum;
}

bool ScalarToFixed(double x, const FixedScale& scale, int64_t* fixed) {
  // Beyond 2^51 the magic addition would lose bits; llrint is exact to 2^62, and one scalar's time
  // does not matter.
  const double scaled = x * PowerOfTwo(scale.exponent);
  const bool ok = std::fabs(scaled) < 0x1p62 / static_cast<double>(scale.micro_batches);
  *fixed = ok ? std::llrint(scaled) : 0;
  return ok;
}

double FixedToScalar(int64_t fixed, int exponent) {
  return DoubleOfFixed(fixed) * PowerOfTwo(-exponent);
}

}  // namespace holdfast::kernels
