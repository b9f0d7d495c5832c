// Real processes, real SIGKILL: what was acknowledged is there and verifies, whatever the moment of
// death; a secondary reads beside a live, pruning writer; disk use stays flat; a full disk is an
// error and nothing more.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "runtime/base/clock.h"
#include "runtime/base/failpoint.h"
#include "tests/storage/crash_state.h"
#include "tests/storage/store_fixture.h"

namespace holdfast::storage {
namespace {

// A store_writer process whose lines are read from a pipe.
class Writer {
 public:
  Writer(const std::string& path, int64_t first_step, uint64_t generation,
         const std::string& failpoints = "") {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    const std::string step = Cat(first_step), gen = Cat(generation);
    const std::string setting = "HOLDFAST_FAILPOINTS=" + failpoints;
    const char* const arguments[] = {STORE_WRITER, path.c_str(), step.c_str(), gen.c_str(),
                                     nullptr};
    const char* const environment[] = {setting.c_str(), nullptr};
    if (posix_spawn(&pid_, STORE_WRITER, &actions, nullptr, const_cast<char**>(arguments),
                    const_cast<char**>(environment)) != 0) {
      std::abort();
    }
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    fd_ = ends[0];
  }
  ~Writer() {
    if (pid_ > 0) Kill();
    close(fd_);
  }
  // Reads for up to `ms`; false at the end of the pipe.
  bool Read(int64_t ms) {
    const Deadline deadline = Deadline::After(ms);
    while (!deadline.passed()) {
      pollfd ready{fd_, POLLIN, 0};
      if (poll(&ready, 1, static_cast<int>(deadline.left_ms())) <= 0) continue;
      char buffer[4096];
      const ssize_t n = read(fd_, buffer, sizeof buffer);
      if (n <= 0) return false;
      text_.append(buffer, static_cast<size_t>(n));
    }
    return true;
  }
  bool ReadUntil(const std::string& word, int64_t ms) {
    const Deadline deadline = Deadline::After(ms);
    while (text_.find(word) == std::string::npos && !deadline.passed()) {
      if (!Read(5)) break;
    }
    return text_.find(word) != std::string::npos;
  }
  void Kill() {
    kill(pid_, SIGKILL);
    int status;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    while (Read(1'000)) {
    }
  }
  // The highest step of the whole lines that begin with `word`; 0 when there is none.
  int64_t Last(const std::string& word) const {
    std::istringstream lines(text_.substr(0, text_.rfind('\n') + 1));
    std::string line;
    int64_t last = 0;
    while (std::getline(lines, line)) {
      if (line.rfind(word + " ", 0) == 0) last = std::atoll(line.c_str() + word.size() + 1);
    }
    return last;
  }
  const std::string& text() const { return text_; }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
  std::string text_;
};

// What must hold after the death of `writer`, whose generation it was. Returns the next free step.
int64_t CheckAfterDeath(const std::string& path, const Writer& writer, uint64_t generation) {
  const ChunkGrid grid(CrashRegions());
  auto store = OpenStore(path);
  if (store == nullptr) return -1;
  int64_t newest = 0;
  std::vector<int64_t> steps;
  const auto manifests = store->Manifests();
  EXPECT_TRUE(manifests.ok()) << manifests.status();
  for (const Manifest& manifest : *manifests) {
    newest = std::max(newest, manifest.id.step);
    steps.push_back(manifest.id.step);
  }
  const int64_t saved = writer.Last("saved"), shard = writer.Last("shard");
  EXPECT_GE(newest, saved) << "an acknowledged checkpoint is lost\n" << writer.text();
  for (const Manifest& manifest : *manifests) {
    // One that a prune cut short may lack chunks, and only an old one.
    const absl::Status verified = store->Verify(manifest.id, nullptr);
    const bool incomplete = store->Held(manifest.id)->empty();
    EXPECT_TRUE(verified.ok() || (incomplete && manifest.id.step < newest)) << verified;
  }
  if (shard > saved) {
    const CheckpointId id{0, shard, generation};
    const absl::Status verified = store->Verify(id, nullptr);
    EXPECT_TRUE(verified.ok()) << "an acknowledged shard is lost: " << verified;
  }
  const int64_t mark = writer.Last("mark");
  if (mark > 0) {
    const auto there = store->GetMark("step");
    EXPECT_TRUE(there.ok() && std::stoll(*there) >= mark) << there.status();
  }
  return newest + 2;
}

TEST(Crash, FortyKillsAtRandomMomentsLoseNothingAcknowledged) {
  TempDir dir;
  const std::string path = StorePath(dir.path(), 0);
  int64_t step = 1, acknowledged = 0;
  for (uint64_t round = 0; round < 40; ++round) {
    std::mt19937_64 random(round);
    Writer writer(path, step, round + 1);
    // A quarter of the kills may fall into the opening, the rest into saving and pruning.
    const bool opened = round % 4 == 0 || writer.ReadUntil("open\n", 20'000);
    ASSERT_TRUE(opened) << writer.text();
    writer.Read(static_cast<int64_t>(random() % 250));
    writer.Kill();
    acknowledged += writer.Last("saved") > 0;
    step = CheckAfterDeath(path, writer, round + 1);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "round " << round;
  }
  EXPECT_GT(acknowledged, 5);
}

TEST(Crash, KillsAtTheNamedPoints) {
  for (const char* point : {"ckpt.chunk.write", "ckpt.chunk.sync", "ckpt.manifest.write",
                            "ckpt.manifest.sync", "ckpt.prune"}) {
    TempDir dir;
    const std::string path = StorePath(dir.path(), 0);
    Writer writer(path, 1, 1, Cat(point, "=kill@4"));
    if (std::string(point) == "ckpt.prune") {
      Writer second(path + "-prune", 1, 1, Cat(point, "=kill@2"));
      EXPECT_FALSE(second.Read(20'000)) << second.text();  // it died by itself
      second.Kill();
      EXPECT_GE(CheckAfterDeath(path + "-prune", second, 1), 1);
      continue;
    }
    EXPECT_FALSE(writer.Read(20'000)) << writer.text();
    writer.Kill();
    EXPECT_EQ(writer.Last("saved"), 3) << point;
    EXPECT_GE(CheckAfterDeath(path, writer, 1), 5) << point;
    Writer next(path, 10, 2);
    EXPECT_TRUE(next.ReadUntil("mark 12", 20'000)) << point << next.text();
    next.Kill();
    CheckAfterDeath(path, next, 2);
  }
}

TEST(Crash, SecondariesReadBesideALivePruningWriter) {
  TempDir dir;
  const std::string path = StorePath(dir.path(), 0);
  const ChunkGrid grid(CrashRegions());
  Writer writer(path, 1, 1);
  ASSERT_TRUE(writer.ReadUntil("saved 3 ", 20'000)) << writer.text();
  int verified = 0;
  for (int pass = 0; pass < 25; ++pass) {
    auto reader = SlotStore::OpenSecondary(path, dir.path() + "/scratch");
    ASSERT_TRUE(reader.ok()) << reader.status();
    const auto manifests = (*reader)->Manifests();
    ASSERT_TRUE(manifests.ok()) << manifests.status();
    ASSERT_FALSE(manifests->empty());
    // The newest is never being pruned while we look; older ones may be.
    const absl::Status status = (*reader)->Verify(manifests->back().id, nullptr);
    EXPECT_TRUE(status.ok()) << status;
    verified += status.ok();
    writer.Read(20);
  }
  EXPECT_EQ(verified, 25);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path() + "/scratch"));
}

TEST(Soak, TwoHundredCheckpointsKeepDiskUseAndFileCountFlat) {
  TempDir dir;
  const std::string path = StorePath(dir.path(), 0);
  const ChunkGrid grid({{"a", 40'000}, {"b", 500}});
  auto store = OpenStore(path);
  int64_t early = 0, late = 0;
  std::vector<CheckpointId> kept;
  for (int64_t step = 1; step <= 200; ++step) {
    if (step % 50 == 0) {  // restarts in between
      store.reset();
      store = OpenStore(path);
    }
    Save({store.get()}, grid, {0, step, 1});
    kept.push_back({0, step, 1});
    if (kept.size() > 3) {
      ASSERT_TRUE(store->Prune(std::span(kept.data(), 1)).ok());
      kept.erase(kept.begin());
    }
    const int64_t tables = DiskUse(path + "/db", ".sst");
    if (step == 20) early = tables;
    if (step > 20) late = std::max(late, tables);
  }
  EXPECT_LE(late, early + 4096);
  EXPECT_LE(early, 3 * (grid.total_words() * 4 + 16'384));
  EXPECT_TRUE(std::filesystem::is_empty(path + "/staging"));
  ASSERT_EQ(store->Manifests()->size(), 3u);
  for (const CheckpointId& id : kept) EXPECT_TRUE(store->Verify(id, nullptr).ok());
}

// A file size limit makes write() fail like a full disk, for any user and on any file system.
TEST(FullDisk, IsAnErrorAndTheNextSaveWorks) {
  TempDir dir;
  const ChunkGrid grid(CrashRegions());
  auto store = OpenStore(StorePath(dir.path(), 0));
  Save({store.get()}, grid, {0, 1, 1});
  ASSERT_NE(signal(SIGXFSZ, SIG_IGN), SIG_ERR);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const rlim_t limit : {rlim_t{512 << 10}, rlim_t{1 << 10}}) {
    rlimit small = before;
    small.rlim_cur = limit;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const auto shard = store->WriteShard({0, 2, 1}, 0, grid, 0, grid.chunks(), Reader(grid, 2));
    const auto tiny = store->WriteShard({0, 3, 1}, 0, grid, 2, 3, Reader(grid, 3));
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_TRUE(absl::IsResourceExhausted(shard.status())) << shard.status();
    EXPECT_NE(shard.status().message().find(dir.path()), absl::string_view::npos) << shard.status();
    EXPECT_TRUE(store->Held({0, 2, 1})->empty());
    EXPECT_TRUE(tiny.ok() || absl::IsResourceExhausted(tiny.status())) << tiny.status();
    EXPECT_TRUE(store->Verify({0, 1, 1}, nullptr).ok());
  }
  Save({store.get()}, grid, {0, 4, 1});
  EXPECT_TRUE(store->Verify({0, 4, 1}, nullptr).ok());
  store.reset();
  store = OpenStore(StorePath(dir.path(), 0));
  EXPECT_TRUE(store->Verify({0, 1, 1}, nullptr).ok());
  EXPECT_TRUE(store->Verify({0, 4, 1}, nullptr).ok());
}

// The real thing where a small file system can be mounted (as root); the limit above covers the
// rest.
TEST(FullDisk, ASmallFileSystemFillsUpAndIsUsableAgainAfterPruning) {
  TempDir dir;
  if (mount("none", dir.path().c_str(), "tmpfs", 0, "size=24m") != 0) {
    GTEST_LOG_(INFO) << "no right to mount: the file size limit alone is tested here";
    return;
  }
  const ChunkGrid grid({{"a", 3 * kChunkWords}});
  const std::string path = StorePath(dir.path(), 0);
  auto store = OpenStore(path);
  int64_t step = 1;
  absl::Status full;
  for (; step < 20 && full.ok(); ++step) {
    const CheckpointId id{0, step, 1};
    auto shard = store->WriteShard(id, 0, grid, 0, 3, Reader(grid, step));
    full = shard.ok() ? store->WriteManifest(MakeManifest(grid, id, {*shard})) : shard.status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_NE(full.message().find(path), absl::string_view::npos) << full;
  const auto manifests = store->Manifests();
  ASSERT_TRUE(manifests.ok());
  ASSERT_GE(manifests->size(), 3u);
  std::vector<CheckpointId> old;
  for (const Manifest& manifest : *manifests) {
    EXPECT_TRUE(store->Verify(manifest.id, nullptr).ok());
    old.push_back(manifest.id);
  }
  old.pop_back();
  EXPECT_TRUE(store->Prune(old).ok());
  Save({store.get()}, grid, {0, 50, 1});
  store.reset();
  store = OpenStore(path);
  EXPECT_EQ(store->Manifests()->size(), 2u);
  EXPECT_TRUE(store->Verify({0, 50, 1}, nullptr).ok());
  // Filled to the last byte by somebody else in the middle of a save.
  std::ofstream filler(dir.path() + "/filler", std::ios::binary);
  const std::string block(64 << 10, 'x');
  const auto shard =
      store->WriteShard({0, 51, 1}, 0, grid, 0, 3, [&](int64_t ordinal, std::span<uint32_t> out) {
        for (int i = 0; ordinal == 1 && i < 1'000 && filler.write(block.data(), 64 << 10).flush();
             ++i) {
        }
        return Reader(grid, 51)(ordinal, out);
      });
  EXPECT_TRUE(absl::IsResourceExhausted(shard.status())) << shard.status();
  filler.close();
  std::filesystem::remove(dir.path() + "/filler");
  Save({store.get()}, grid, {0, 52, 1});
  EXPECT_TRUE(store->Verify({0, 52, 1}, nullptr).ok());
  store.reset();
  EXPECT_EQ(umount(dir.path().c_str()), 0);
}

}  // namespace
}  // namespace holdfast::storage
