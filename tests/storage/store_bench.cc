// Save and restore speed of the store against writing the same bytes to one plain file. Not a test.
// Usage: store_bench DIRECTORY [MEGABYTES]
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/base/clock.h"
#include "tests/storage/store_fixture.h"

namespace {

double MbPerS(int64_t bytes, int64_t since_us) {
  return static_cast<double>(bytes) / static_cast<double>(holdfast::BootUs() - since_us);
}

double RawWrite(const std::string& path, const std::vector<uint32_t>& words, int64_t chunks) {
  const int64_t start = holdfast::BootUs();
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  for (int64_t i = 0; i < chunks; ++i) {
    if (write(fd, words.data(), words.size() * 4) != static_cast<ssize_t>(words.size() * 4))
      exit(1);
  }
  if (fdatasync(fd) != 0) exit(1);
  close(fd);
  return MbPerS(chunks * static_cast<int64_t>(words.size()) * 4, start);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace holdfast::storage;
  if (argc < 2) return fprintf(stderr, "usage: store_bench DIRECTORY [MEGABYTES]\n"), 2;
  const std::string dir = std::string(argv[1]) + "/store_bench";
  const int64_t chunks = argc > 2 ? atoll(argv[2]) : 512;
  const ChunkGrid grid({{"a", chunks * kChunkWords}});
  std::vector<uint32_t> words(kChunkWords);
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint32_t>(holdfast::Mix64(i));
  std::filesystem::create_directories(dir);
  for (int round = 1; round <= 3; ++round) {
    const double raw = RawWrite(dir + "/raw", words, chunks);
    std::filesystem::remove(dir + "/raw");
    auto store = SlotStore::Open(dir + "/store", {.run = "bench"});
    if (!store.ok()) return fprintf(stderr, "%s\n", store.status().ToString().c_str()), 1;
    int64_t start = holdfast::BootUs();
    auto shard = (*store)->WriteShard({0, round, 1}, 0, grid, 0, chunks,
                                      [&](int64_t, std::span<uint32_t> out) {
                                        std::copy(words.begin(), words.end(), out.begin());
                                        return absl::OkStatus();
                                      });
    if (!shard.ok()) return fprintf(stderr, "%s\n", shard.status().ToString().c_str()), 1;
    const double save = MbPerS(grid.total_words() * 4, start);
    start = holdfast::BootUs();
    for (int64_t i = 0; i < chunks; ++i) {
      if (!(*store)->ReadChunk({0, round, 1}, grid, i, words).ok()) return 1;
    }
    printf("%lld MB: plain file %.0f MB/s, save %.0f MB/s, restore %.0f MB/s\n",
           static_cast<long long>(chunks), raw, save, MbPerS(grid.total_words() * 4, start));
    store->reset();
    std::filesystem::remove_all(dir + "/store");
  }
  std::filesystem::remove_all(dir);
  return 0;
}
