// A GPU runs its blocks in the order that it likes.
#include <cstdint>

namespace holdfast::emulation {
void ShuffleBlocks(uint64_t seed);
void ShuffleBlocks(uint64_t /*seed*/) {}
}  // namespace holdfast::emulation
