#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "storage/catalog.h"
#include "tests/storage/store_fixture.h"

namespace holdfast::storage {
namespace {

class CatalogTest : public ::testing::Test {
 protected:
  void Fill(int slots, int checkpoints) {
    std::vector<std::unique_ptr<SlotStore>> stores;
    std::vector<SlotStore*> raw;
    for (int slot = 0; slot < slots; ++slot) {
      stores.push_back(OpenStore(StorePath(dir_.path(), slot)));
      raw.push_back(stores.back().get());
    }
    for (int step = 1; step <= checkpoints; ++step) Save(raw, grid_, {0, step, 1});
  }
  // Flips one byte in the middle of the largest table file of a slot that holds chunks of the
  // newest checkpoint.
  void Damage(int slot) {
    std::filesystem::path victim;
    for (const auto& entry :
         std::filesystem::directory_iterator(StorePath(dir_.path(), slot) + "/db")) {
      if (entry.path().extension() == ".sst" && entry.file_size() > 4000 &&
          (victim.empty() || entry.path() > victim)) {
        victim = entry.path();
      }
    }
    ASSERT_FALSE(victim.empty());
    std::fstream file(victim, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(2000);
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(2000);
    file.put(byte);
  }
  std::vector<std::string> VerifyLines(const Catalog& catalog, absl::Status* status) {
    std::vector<std::string> lines;
    *status = catalog.Verify([&](const CheckpointRow& row) { lines.push_back(ToString(row)); });
    return lines;
  }
  TempDir dir_;
  const ChunkGrid grid_{OddRegions()};
};

TEST_F(CatalogTest, SeveralSlotsAreSeenAsOne) {
  Fill(3, 2);
  Catalog catalog({.run = "test", .machine = "here"});
  ASSERT_TRUE(catalog.AddSlots(dir_.path()).ok());
  ASSERT_EQ(catalog.Offered().size(), 2u);
  const CheckpointId id = catalog.Offered().back().id;
  EXPECT_EQ(id.step, 2);
  ASSERT_EQ(catalog.Held(id).size(), 1u);
  EXPECT_EQ(catalog.Held(id)[0].second, grid_.chunks());
  std::vector<uint32_t> words(kChunkWords);
  for (int64_t ordinal = 0; ordinal < grid_.chunks(); ++ordinal) {
    const std::span out(words.data(), static_cast<size_t>(grid_.chunk(ordinal).words));
    EXPECT_TRUE(catalog.ReadChunk(id, grid_, ordinal, out).ok());
  }
  absl::Status status;
  const std::vector<std::string> lines = VerifyLines(catalog, &status);
  EXPECT_TRUE(status.ok()) << status;
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[1].find("step 2"), std::string::npos) << lines[1];
  EXPECT_NE(lines[1].find("3 workers, 7 chunks"), std::string::npos) << lines[1];
}

TEST_F(CatalogTest, ADamagedCheckpointIsNamedAndNoLongerOffered) {
  Fill(2, 2);
  Damage(1);
  Catalog catalog({.run = "test", .machine = "here"});
  ASSERT_TRUE(catalog.AddSlots(dir_.path()).ok());
  absl::Status status;
  const std::vector<std::string> lines = VerifyLines(catalog, &status);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find(", ok"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("damaged"), std::string::npos) << lines[1];
  EXPECT_NE(lines[1].find(".sst"), std::string::npos) << lines[1];
  const CheckpointId id{0, 2, 1};
  EXPECT_FALSE(catalog.IsBad(id));
  std::vector<uint32_t> words(kChunkWords);
  bool lost = false;
  for (int64_t ordinal = 0; ordinal < grid_.chunks(); ++ordinal) {
    const std::span out(words.data(), static_cast<size_t>(grid_.chunk(ordinal).words));
    lost = lost || absl::IsDataLoss(catalog.ReadChunk(id, grid_, ordinal, out));
  }
  EXPECT_TRUE(lost);
  ASSERT_EQ(catalog.Offered().size(), 1u);
  EXPECT_EQ(catalog.Offered()[0].id.step, 1);
  EXPECT_TRUE(catalog.Held(id).empty());
  EXPECT_TRUE(catalog.List()[1].damaged);
}

TEST_F(CatalogTest, AMissingSlotMakesItIncompleteUnlessItIsAnotherMachines) {
  Fill(2, 1);
  std::filesystem::remove_all(dir_.path() + "/slots/1");
  absl::Status status;
  {
    Catalog catalog({.run = "test", .machine = "here"});
    ASSERT_TRUE(catalog.AddSlots(dir_.path()).ok());
    const std::vector<std::string> lines = VerifyLines(catalog, &status);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(lines[0].find("incomplete (missing: chunks"), std::string::npos) << lines[0];
  }
  Catalog catalog({.run = "test", .machine = "other"});
  ASSERT_TRUE(catalog.AddSlots(dir_.path()).ok());
  EXPECT_NE(VerifyLines(catalog, &status)[0].find("on other machines"), std::string::npos);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(CatalogTest, OwnStoreOtherRunsUnfinishedSavesAndBrokenSlots) {
  Fill(3, 1);
  auto own = OpenStore(StorePath(dir_.path(), 0));
  ASSERT_TRUE(own->WriteShard({0, 9, 9}, 0, grid_, 0, 1, Reader(grid_, 9)).ok());
  OpenStore(StorePath(dir_.path(), 3), "another run");
  std::filesystem::create_directories(dir_.path() + "/slots/4/store");  // never opened
  std::ofstream(StorePath(dir_.path(), 2) + "/db/CURRENT") << "rubbish";
  std::filesystem::remove_all(StorePath(dir_.path(), 1) + "/db");
  std::filesystem::create_directories(StorePath(dir_.path(), 1) + "/db");
  absl::Status status;
  Catalog catalog({.run = "test"});
  catalog.Add(0, own.get());
  ASSERT_TRUE(catalog.AddSlots(dir_.path()).ok());
  const std::vector<std::string> lines = VerifyLines(catalog, &status);
  // Slot 2 is read in spite of its CURRENT, slot 1 is gone.
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("incomplete"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("unfinished"), std::string::npos) << lines[1];
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(catalog.Held({0, 1, 1}).size(), 2u);
}

}  // namespace
}  // namespace holdfast::storage
