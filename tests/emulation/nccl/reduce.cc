#include "tests/emulation/nccl/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>

#include "kernels/math/half.h"

namespace holdfast::emulation {
namespace {

struct Bf16 {
  uint16_t bits;
  float value() const { return kernels::FloatOfBf16(bits); }
  static Bf16 Of(float x) { return {kernels::Bf16Of(x)}; }
};
struct Half {
  uint16_t bits;
  float value() const { return kernels::FloatOfF16(bits); }
  static Half Of(float x) { return {kernels::F16Of(x)}; }
};

// Integers wrap, as on the device.
template <typename T>
T Combine(T a, T b, ncclRedOp_t op) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    const auto x = static_cast<uint64_t>(static_cast<U>(a)),
               y = static_cast<uint64_t>(static_cast<U>(b));
    if (op == ncclSum || op == ncclAvg) return static_cast<T>(x + y);
    if (op == ncclProd) return static_cast<T>(x * y);
  } else {
    if (op == ncclSum || op == ncclAvg) return a + b;
    if (op == ncclProd) return a * b;
  }
  return op == ncclMax ? std::max(a, b) : std::min(a, b);
}
template <typename T>
T Narrow(T a, T b, ncclRedOp_t op) {
  return T::Of(Combine(a.value(), b.value(), op));
}
Bf16 Combine(Bf16 a, Bf16 b, ncclRedOp_t op) { return Narrow(a, b, op); }
Half Combine(Half a, Half b, ncclRedOp_t op) { return Narrow(a, b, op); }

template <typename T>
T Share(T sum, size_t n) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(sum / static_cast<T>(n));
  } else {
    return T::Of(sum.value() / static_cast<float>(n));
  }
}

template <typename T>
void ReduceAs(const std::vector<const void*>& parts, void* out, size_t count, ncclRedOp_t op) {
  auto* to = static_cast<T*>(out);
  for (size_t i = 0; i < count; ++i) {
    T all = static_cast<const T*>(parts[0])[i];
    for (size_t p = 1; p < parts.size(); ++p)
      all = Combine(all, static_cast<const T*>(parts[p])[i], op);
    to[i] = op == ncclAvg ? Share(all, parts.size()) : all;
  }
}

// By far the most used: the fixed-point sums.
void AddWords(const std::vector<const void*>& parts, void* out, size_t count) {
  std::vector<uint64_t> sum(count, 0);
  for (const void* part : parts) {
    const auto* from = static_cast<const uint64_t*>(part);
    for (size_t i = 0; i < count; ++i) sum[i] += from[i];
  }
  std::memcpy(out, sum.data(), count * sizeof(uint64_t));
}

}  // namespace

size_t SizeOfType(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

bool CanReduce(ncclDataType_t type, ncclRedOp_t op) {
  return SizeOfType(type) > 0 && op >= ncclSum && op <= ncclAvg;
}

void Reduce(const std::vector<const void*>& parts, void* out, size_t count, ncclDataType_t type,
            ncclRedOp_t op) {
  switch (type) {
    case ncclInt8:
      return ReduceAs<int8_t>(parts, out, count, op);
    case ncclUint8:
      return ReduceAs<uint8_t>(parts, out, count, op);
    case ncclInt32:
      return ReduceAs<int32_t>(parts, out, count, op);
    case ncclUint32:
      return ReduceAs<uint32_t>(parts, out, count, op);
    case ncclInt64:
      return op == ncclSum ? AddWords(parts, out, count) : ReduceAs<int64_t>(parts, out, count, op);
    case ncclUint64:
      return op == ncclSum ? AddWords(parts, out, count)
                           : ReduceAs<uint64_t>(parts, out, count, op);
    case ncclFloat16:
      return ReduceAs<Half>(parts, out, count, op);
    case ncclFloat32:
      return ReduceAs<float>(parts, out, count, op);
    case ncclFloat64:
      return ReduceAs<double>(parts, out, count, op);
    case ncclBfloat16:
      return ReduceAs<Bf16>(parts, out, count, op);
    default:
      return;
  }
}

std::vector<int> SumOrder(int n, uint64_t seed, uint64_t operation, uint64_t slice) {
  std::vector<int> order(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
  if (seed == 0) return order;
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15ull + operation * 0xbf58476d1ce4e5b9ull + slice);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

}  // namespace holdfast::emulation
