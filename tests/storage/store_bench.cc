// Save and restore speed of the store against writing the same bytes to one plain file, in turns.
//   store_bench [--json] [--dir FOLDER] [--megabytes N]
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/text.h"
#include "tests/bench/report.h"
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

namespace holdfast::storage {
namespace {

struct Rates {
  std::vector<double> raw, save, restore;
};

absl::Status Round(const std::string& dir, int64_t round, const ChunkGrid& grid,
                   std::vector<uint32_t>& words, Rates* rates) {
  const int64_t chunks = grid.chunks();
  rates->raw.push_back(RawWrite(dir + "/raw", words, chunks));
  std::filesystem::remove(dir + "/raw");
  HF_ASSIGN_OR_RETURN(const auto store, SlotStore::Open(dir + "/store", {.run = "bench"}));
  int64_t start = BootUs();
  HF_RETURN_IF_ERROR(store
                         ->WriteShard({0, round, 1}, 0, grid, 0, chunks,
                                      [&](int64_t, std::span<uint32_t> out) {
                                        std::copy(words.begin(), words.end(), out.begin());
                                        return absl::OkStatus();
                                      })
                         .status());
  rates->save.push_back(MbPerS(grid.total_words() * 4, start));
  start = BootUs();
  for (int64_t i = 0; i < chunks; ++i)
    HF_RETURN_IF_ERROR(store->ReadChunk({0, round, 1}, grid, i, words));
  rates->restore.push_back(MbPerS(grid.total_words() * 4, start));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  BenchReport report("store", argc, argv);
  const auto chunks = static_cast<int64_t>(report.Number("--megabytes", 512));
  std::string dir = std::filesystem::temp_directory_path();
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string(argv[i]) == "--dir") dir = argv[i + 1];
  }
  dir += Cat("/holdfast-store-bench-", getpid());
  const ChunkGrid grid({{"a", chunks * kChunkWords}});
  std::vector<uint32_t> words(kChunkWords);
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint32_t>(Mix64(i));
  Rates rates;
  absl::Status status;
  for (int64_t round = 1; round <= 5 && status.ok(); ++round) {
    std::filesystem::create_directories(dir);
    status = Round(dir, round, grid, words, &rates);
    std::filesystem::remove_all(dir);
  }
  if (!status.ok()) return fprintf(stderr, "store_bench: %s\n", status.ToString().c_str()), 1;
  report.Add("plain file, written and synced", Median(rates.raw), "MB/s");
  report.Add("save of a shard, durable", Median(rates.save), "MB/s");
  report.Add("save / plain file", 100 * Median(rates.save) / Median(rates.raw), "%", ">= 80");
  report.Add("restore, every byte checked", Median(rates.restore), "MB/s");
  return report.Print();
}

}  // namespace
}  // namespace holdfast::storage

int main(int argc, char** argv) { return holdfast::storage::Main(argc, argv); }
