// A step allocates nothing that grows with the model: every allocation of this process goes through
// the functions below (glibc lets a program put its own in front), which count what is asked for
// while steps are taken.
#include <cerrno>
#include <cstdlib>

#include "gtest/gtest.h"
#include "tests/models/temp_dir.h"
#include "tests/session/engine_world.h"

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
}

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> blocks{0}, bytes{0}, largest{0};

void Count(size_t size) {
  if (!counting.load(std::memory_order_relaxed)) return;
  blocks.fetch_add(1, std::memory_order_relaxed);
  bytes.fetch_add(static_cast<int64_t>(size), std::memory_order_relaxed);
  int64_t most = largest.load(std::memory_order_relaxed);
  while (most < static_cast<int64_t>(size) &&
         !largest.compare_exchange_weak(most, static_cast<int64_t>(size))) {
  }
}

}  // namespace

extern "C" {
void* malloc(size_t size) {
  Count(size);
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  Count(count * size);
  return __libc_calloc(count, size);
}
void* realloc(void* old, size_t size) {
  Count(size);
  return __libc_realloc(old, size);
}
void* memalign(size_t alignment, size_t size) {
  Count(size);
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  Count(size);
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, size_t alignment, size_t size) {
  Count(size);
  *out = __libc_memalign(alignment, size);
  return *out == nullptr ? ENOMEM : 0;
}
}

namespace holdfast {
namespace {

Config SmallGpt(const std::string& text) {
  Config c;
  c.model = "gpt";
  c.data = {text};
  c.steps = 1000;
  c.micro_batches = 4;
  c.micro_batch_size = 2;
  return c;
}

void ExpectSmallSteps(int world) {
  const testing_models::TempDir dir;
  const std::string text = dir.Write("text.txt", std::string(20'000, 'x'));
  EngineWorld ranks(SmallGpt(text), BuiltInTrainer(), world);
  for (int i = 0; i < 3; ++i) ranks.Step();  // workspace, packed products, queues
  blocks = bytes = largest = 0;
  counting = true;
  constexpr int kSteps = 5;
  for (int i = 0; i < kSteps; ++i) ranks.Step();
  counting = false;
  std::printf("%d ranks: %.0f blocks and %.0f bytes a step and rank, the largest %lld\n", world,
              static_cast<double>(blocks) / kSteps / world,
              static_cast<double>(bytes) / kSteps / world, static_cast<long long>(largest.load()));
  // The gradient of this model is 3.3 MB: no block comes near it, nor do all of them together.
  // (oneDNN takes about 16 KiB for each product, and gives them back.)
  EXPECT_GT(blocks.load(), 0) << "the counting functions are not in front";
  EXPECT_LT(largest.load(), 64 << 10);
  EXPECT_LT(bytes.load() / kSteps / world, 834'304 * 4);
}

TEST(Allocation, OneRank) { ExpectSmallSteps(1); }
TEST(Allocation, TwoRanks) { ExpectSmallSteps(2); }

}  // namespace
}  // namespace holdfast
