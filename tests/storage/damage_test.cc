// Every kind of damage to every class of file, each on a fresh copy: never silent, and what is
// whole stays readable.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/status.h"
#include "tests/storage/store_fixture.h"

namespace holdfast::storage {
namespace {

namespace fs = std::filesystem;

std::string Slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Spill(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

enum class Damage {
  kFlipFirst,
  kFlipMiddle,
  kFlipLast,
  kCutOne,
  kCutHalf,
  kEmpty,
  kZeroBlock,
  kRemove
};
constexpr Damage kAll[] = {Damage::kFlipFirst, Damage::kFlipMiddle, Damage::kFlipLast,
                           Damage::kCutOne,    Damage::kCutHalf,    Damage::kEmpty,
                           Damage::kZeroBlock, Damage::kRemove};

void Apply(Damage damage, const fs::path& path) {
  std::string bytes = Slurp(path);
  const size_t size = bytes.size();
  ASSERT_GT(size, 0u);
  const auto flip = [&](size_t at) { bytes[at] = static_cast<char>(bytes[at] ^ 0x10); };
  switch (damage) {
    case Damage::kFlipFirst:
      flip(0);
      break;
    case Damage::kFlipMiddle:
      flip(size / 2);
      break;
    case Damage::kFlipLast:
      flip(size - 1);
      break;
    case Damage::kCutOne:
      bytes.resize(size - 1);
      break;
    case Damage::kCutHalf:
      bytes.resize(size / 2);
      break;
    case Damage::kEmpty:
      bytes.clear();
      break;
    case Damage::kZeroBlock:
      for (size_t i = size / 3; i < std::min(size, size / 3 + 4096); ++i) bytes[i] = 0;
      break;
    case Damage::kRemove:
      fs::remove(path);
      return;
  }
  Spill(path, bytes);
}

class DamageTest : public ::testing::Test {
 protected:
  static constexpr int kSteps = 3;

  void SetUp() override {
    original_ = dir_.path() + "/original";
    {
      auto store = OpenStore(original_);
      for (int64_t step = 1; step <= kSteps; ++step) Save({store.get()}, grid_, {0, step, 1});
      ASSERT_TRUE(store->PutMark("generation", "41").ok());
      ASSERT_TRUE(store->PutMark("generation", "42").ok());
    }
    OpenStore(original_);  // a reopening rewrites RocksDB's manifest: the state that a resume finds
  }

  // Number of checkpoints that read back in full. Wrong words, or a mark with a wrong value, fail
  // the test.
  int Whole(SlotStore& store) {
    int whole = 0;
    const auto manifests = store.Manifests();
    EXPECT_TRUE(manifests.ok()) << manifests.status();
    for (const Manifest& manifest : *manifests) {
      const absl::Status words = CheckWords(store, grid_, manifest.id, 0, grid_.chunks());
      EXPECT_FALSE(absl::IsInternal(words)) << words;
      const absl::Status verified = store.Verify(manifest.id, nullptr);
      if (!words.ok()) {
        EXPECT_FALSE(verified.ok());
        EXPECT_TRUE(absl::IsDataLoss(words) || absl::IsNotFound(words)) << words;
      }
      whole += words.ok() && verified.ok();
    }
    const auto mark = store.GetMark("generation");
    marks_lost_ = !mark.ok();
    EXPECT_EQ(mark.ok() ? *mark : "42", "42");
    return whole;
  }

  // The files of one class in the store's database.
  std::vector<fs::path> Files(const std::string& prefix, const std::string& extension) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(original_ + "/db")) {
      const std::string name = entry.path().filename();
      if (name.rfind(prefix, 0) == 0 && entry.path().extension() == extension &&
          entry.file_size() > 0) {
        files.push_back(entry.path().filename());
      }
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  // Damages db/`file` of a copy and opens it. Returns the number of whole checkpoints afterwards.
  int After(Damage damage, const fs::path& file) {
    marks_lost_ = false;
    const std::string copy = dir_.path() + "/copy";
    fs::remove_all(copy);
    fs::copy(original_, copy, fs::copy_options::recursive);
    Apply(damage, fs::path(copy) / "db" / file);
    int whole = 0;
    for (int opening = 0; opening < 2;
         ++opening) {  // what one opening repaired, the next finds whole
      auto store = SlotStore::Open(copy, {.run = "test"});
      EXPECT_TRUE(store.ok()) << store.status();
      if (!store.ok()) return -1;
      whole = Whole(**store);
      if (opening == 0) continue;
      // The store goes on: a new save is whole, old ones can be pruned.
      Save({store->get()}, grid_, {0, 77, 2});
      EXPECT_TRUE(CheckWords(**store, grid_, {0, 77, 2}, 0, grid_.chunks()).ok());
      const CheckpointId old[] = {{0, 1, 1}, {0, 2, 1}, {0, 3, 1}};
      EXPECT_TRUE((*store)->Prune(old).ok());
      EXPECT_EQ((*store)->Ids()->size(), 1u);
    }
    return whole;
  }

  TempDir dir_;
  std::string original_;
  const ChunkGrid grid_{{{"a", kChunkWords + 7}, {"b", 3000}}};
  bool marks_lost_ = false;
};

TEST_F(DamageTest, OneTableFileCostsAtMostItsOwnCheckpoint) {
  const auto files = Files("", ".sst");
  ASSERT_EQ(files.size(), 3u * kSteps + 2);
  // Files are numbered in the order of writing: the chunks, shard record and manifest of the first
  // checkpoint, and those of the last; then the newest mark.
  const std::vector<fs::path> classes = {files[1], files[2], files[3],
                                         files[7], files[9], files[10]};
  for (const fs::path& file : classes) {
    for (const Damage damage : kAll) {
      const int whole = After(damage, file);
      EXPECT_GE(whole, kSteps - 1) << file << " damage " << static_cast<int>(damage);
      EXPECT_FALSE(whole < kSteps && marks_lost_) << file;
    }
  }
}

TEST_F(DamageTest, RocksDbsManifestAndCurrentCostNothing) {
  std::vector<fs::path> files = Files("MANIFEST", "");
  ASSERT_EQ(files.size(), 1u);
  files.push_back("CURRENT");
  for (const fs::path& file : files) {
    for (const Damage damage : kAll) {
      EXPECT_EQ(After(damage, file), kSteps) << file << " damage " << static_cast<int>(damage);
      EXPECT_FALSE(marks_lost_) << file << " damage " << static_cast<int>(damage);
    }
  }
}

TEST_F(DamageTest, TheOtherFilesOfTheDatabaseCostNothing) {
  for (const char* prefix : {"IDENTITY", "OPTIONS-"}) {
    for (const fs::path& file : Files(prefix, "")) {
      for (const Damage damage : {Damage::kFlipFirst, Damage::kEmpty, Damage::kRemove}) {
        EXPECT_EQ(After(damage, file), kSteps) << file << " damage " << static_cast<int>(damage);
      }
    }
  }
}

TEST_F(DamageTest, ADamagedStampIsMendedFromTheDatabaseAndStillGuardsTheRun) {
  for (const Damage damage : kAll) {
    const std::string copy = dir_.path() + "/copy";
    fs::remove_all(copy);
    fs::copy(original_, copy, fs::copy_options::recursive);
    Apply(damage, fs::path(copy) / "STORE");
    EXPECT_TRUE(absl::IsFailedPrecondition(SlotStore::Open(copy, {.run = "second"}).status()));
    auto reader = SlotStore::OpenSecondary(copy, dir_.path() + "/scratch");
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->run(), "test");
    reader->reset();
    auto store = SlotStore::Open(copy, {.run = "test"});
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(Whole(**store), kSteps);
    EXPECT_EQ(Slurp(copy + "/STORE"), Slurp(original_ + "/STORE"));
  }
}

TEST_F(DamageTest, AnotherCheckpointsFileUnderThisNameIsFound) {
  const auto files = Files("", ".sst");
  std::vector<fs::path> chunks;
  for (const fs::path& file : files) {
    if (fs::file_size(fs::path(original_) / "db" / file) > kChunkWords * 4) chunks.push_back(file);
  }
  ASSERT_EQ(chunks.size(), static_cast<size_t>(kSteps));
  const std::string copy = dir_.path() + "/copy";
  fs::copy(original_, copy, fs::copy_options::recursive);
  fs::copy_file(fs::path(copy) / "db" / chunks[0], fs::path(copy) / "db" / chunks[2],
                fs::copy_options::overwrite_existing);
  auto store = OpenStore(copy);
  EXPECT_EQ(Whole(*store), kSteps - 1);
  EXPECT_TRUE(absl::IsDataLoss(store->Verify({0, 3, 1}, nullptr)));
}

TEST_F(DamageTest, ASecondaryOfADamagedStoreReadsWhatIsWhole) {
  for (const fs::path& file : Files("", ".sst")) {
    const std::string copy = dir_.path() + "/copy";
    fs::remove_all(copy);
    fs::copy(original_, copy, fs::copy_options::recursive);
    Apply(Damage::kCutHalf, fs::path(copy) / "db" / file);
    auto reader = SlotStore::OpenSecondary(copy, dir_.path() + "/scratch");
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_GE(Whole(**reader), kSteps - 1);
  }
}

}  // namespace
}  // namespace holdfast::storage
