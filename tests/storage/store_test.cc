#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/failpoint.h"
#include "runtime/base/status.h"
#include "tests/storage/store_fixture.h"

namespace holdfast::storage {
namespace {

class StoreTest : public ::testing::Test {
 protected:
  void TearDown() override { ASSERT_TRUE(SetFailpoints("").ok()); }
  std::string Path(int slot = 0) const { return StorePath(dir_.path(), slot); }
  TempDir dir_;
  const ChunkGrid grid_{OddRegions()};
};

TEST_F(StoreTest, SavesReopensAndReadsBack) {
  const CheckpointId id{0, 100, 3};
  {
    auto store = OpenStore(Path());
    const Manifest manifest = Save({store.get()}, grid_, id);
    EXPECT_EQ(manifest.state_digest, StateDigest(grid_, 100));
  }
  auto store = OpenStore(Path());
  const auto manifests = store->Manifests();
  ASSERT_TRUE(manifests.ok()) << manifests.status();
  ASSERT_EQ(manifests->size(), 1u);
  EXPECT_EQ((*manifests)[0].id, id);
  EXPECT_EQ((*manifests)[0].scalars, "step 100");
  const auto held = store->Held(id);
  ASSERT_TRUE(held.ok());
  ASSERT_EQ(held->size(), 1u);
  EXPECT_EQ((*held)[0], (std::pair<int64_t, int64_t>(0, grid_.chunks())));
  EXPECT_TRUE(CheckWords(*store, grid_, id, 0, grid_.chunks()).ok());
  int64_t calls = 0;
  EXPECT_TRUE(store
                  ->Verify(id,
                           [&](int64_t done, int64_t total) {
                             EXPECT_EQ(done, ++calls);
                             EXPECT_EQ(total, grid_.chunks());
                           })
                  .ok());
  EXPECT_EQ(calls, grid_.chunks());
  EXPECT_TRUE(absl::IsNotFound(store->Verify({9, 9, 9}, nullptr)));
  std::vector<uint32_t> out(5);
  EXPECT_TRUE(absl::IsNotFound(store->ReadChunk({9, 9, 9}, grid_, 2, out)));
  EXPECT_TRUE(absl::IsInvalidArgument(store->ReadChunk(id, grid_, 0, out)));
}

TEST_F(StoreTest, ManifestsComeInOrderOfNumbersNotOfText) {
  auto store = OpenStore(Path());
  const ChunkGrid small({{"a", 10}});
  for (const CheckpointId& id :
       {CheckpointId{0, 10'000, 2}, {1, 5, 9}, {0, 9'999, 2}, {0, 9'999, 1}}) {
    Save({store.get()}, small, id);
  }
  const auto manifests = store->Manifests();
  ASSERT_TRUE(manifests.ok());
  ASSERT_EQ(manifests->size(), 4u);
  for (size_t i = 1; i < 4; ++i) EXPECT_LT((*manifests)[i - 1].id, (*manifests)[i].id);
}

TEST_F(StoreTest, AnotherGridIsNotReadAsThisOne) {
  auto store = OpenStore(Path());
  Save({store.get()}, ChunkGrid({{"a", 10}}), {0, 1, 1});
  std::vector<uint32_t> out(10);
  EXPECT_TRUE(store->ReadChunk({0, 1, 1}, ChunkGrid({{"a", 10}}), 0, out).ok());
  EXPECT_TRUE(absl::IsDataLoss(store->ReadChunk({0, 1, 1}, ChunkGrid({{"b", 10}}), 0, out)));
}

TEST_F(StoreTest, PruneDropsExactlyTheNamedAndNeverTheNewest) {
  auto store = OpenStore(Path());
  for (int64_t step = 1; step <= 4; ++step) Save({store.get()}, grid_, {0, step, 1});
  const int64_t before = DiskUse(Path());
  const CheckpointId gone[] = {{0, 1, 1}, {0, 3, 1}};
  ASSERT_TRUE(store->Prune(gone).ok());
  EXPECT_LT(DiskUse(Path()), before - 2 * grid_.total_words() * 4 + (64 << 10));
  const auto manifests = store->Manifests();
  ASSERT_EQ(manifests->size(), 2u);
  EXPECT_EQ((*manifests)[0].id.step, 2);
  EXPECT_EQ((*manifests)[1].id.step, 4);
  EXPECT_TRUE(store->Held({0, 1, 1})->empty());
  EXPECT_TRUE(CheckWords(*store, grid_, {0, 2, 1}, 0, grid_.chunks()).ok());
  EXPECT_TRUE(CheckWords(*store, grid_, {0, 4, 1}, 0, grid_.chunks()).ok());
  const CheckpointId newest[] = {{0, 4, 1}};
  EXPECT_TRUE(absl::IsFailedPrecondition(store->Prune(newest)));
  EXPECT_TRUE(store->Prune(gone).ok());  // again: nothing to do
}

TEST_F(StoreTest, AnUnfinishedSaveIsKeptUntilANewerOneIsSaved) {
  auto store = OpenStore(Path());
  ASSERT_TRUE(store->WriteShard({0, 5, 1}, 0, grid_, 0, 2, Reader(grid_, 5)).ok());
  store.reset();
  store = OpenStore(Path());
  EXPECT_EQ(store->Held({0, 5, 1})->size(), 1u);  // opening deleted nothing
  Save({store.get()}, grid_, {0, 6, 1});
  EXPECT_EQ(store->Held({0, 5, 1})->size(), 1u);  // nor did a manifest
  ASSERT_TRUE(store->Prune({}).ok());
  EXPECT_TRUE(store->Held({0, 5, 1})->empty());
  EXPECT_TRUE(store->Verify({0, 6, 1}, nullptr).ok());
}

TEST_F(StoreTest, ASecondTryWithTheSameIdReplacesTheFirstUntilTheManifestIsThere) {
  auto store = OpenStore(Path());
  const CheckpointId id{0, 7, 1};
  ASSERT_TRUE(store->WriteShard(id, 0, grid_, 0, 5, Reader(grid_, 999)).ok());
  ASSERT_TRUE(store->WriteShard(id, 1, grid_, 5, 6, Reader(grid_, 7)).ok());
  const auto again = store->WriteShard(id, 0, grid_, 1, 4, Reader(grid_, 7));
  ASSERT_TRUE(again.ok()) << again.status();
  const auto held = store->Held(id);
  ASSERT_EQ(held->size(), 2u);
  EXPECT_EQ((*held)[0], (std::pair<int64_t, int64_t>(1, 4)));
  EXPECT_EQ((*held)[1], (std::pair<int64_t, int64_t>(5, 6)));
  EXPECT_TRUE(CheckWords(*store, grid_, id, 1, 4).ok());
  const Manifest manifest = Save({store.get()}, grid_, id);
  EXPECT_TRUE(store->WriteManifest(manifest).ok());  // the same again is nothing
  Manifest other = manifest;
  other.scalars = "other";
  EXPECT_TRUE(absl::IsFailedPrecondition(store->WriteManifest(other)));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(store->WriteShard(id, 0, grid_, 0, 5, Reader(grid_, 7)).status()));
}

TEST_F(StoreTest, ManifestsThatDoNotAddUpAreRefused) {
  auto store = OpenStore(Path());
  Manifest manifest = Save({store.get()}, grid_, {0, 1, 1});
  manifest.id.step = 2;
  manifest.state_digest ^= 1;
  EXPECT_TRUE(absl::IsInvalidArgument(store->WriteManifest(manifest)));
  manifest.state_digest ^= 1;
  manifest.run = "other";
  EXPECT_TRUE(absl::IsInvalidArgument(store->WriteManifest(manifest)));
}

TEST_F(StoreTest, MarksAreReplacedAndSurvive) {
  auto store = OpenStore(Path());
  EXPECT_TRUE(absl::IsNotFound(store->GetMark("generation").status()));
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(store->PutMark("generation", Cat("value ", i)).ok());
    ASSERT_TRUE(store->PutMark("gen", "short").ok());
  }
  EXPECT_EQ(*store->GetMark("generation"), "value 39");
  store.reset();
  store = OpenStore(Path());
  EXPECT_EQ(*store->GetMark("generation"), "value 39");
  EXPECT_EQ(*store->GetMark("gen"), "short");
  EXPECT_TRUE(absl::IsInvalidArgument(store->PutMark("", "x")));
}

TEST_F(StoreTest, AnyWorldSizeReadsWhatAnotherWrote) {
  for (int writers = 1; writers <= 5; ++writers) {
    TempDir dir;
    std::vector<std::unique_ptr<SlotStore>> stores;
    std::vector<SlotStore*> raw;
    for (int slot = 0; slot < writers; ++slot) {
      stores.push_back(OpenStore(StorePath(dir.path(), slot)));
      raw.push_back(stores.back().get());
    }
    const CheckpointId id{0, writers, 1};
    const Manifest manifest = Save(raw, grid_, id);
    EXPECT_EQ(SlotsIn(dir.path()).size(), static_cast<size_t>(writers));
    for (int readers = 1; readers <= 5; ++readers) {
      uint64_t digest = 0;
      std::vector<uint32_t> words(kChunkWords);
      for (int rank = 0; rank < readers; ++rank) {
        const auto [first, last] = grid_.Owned(rank, readers);
        for (int64_t ordinal = first; ordinal < last; ++ordinal) {
          const Chunk& chunk = grid_.chunk(ordinal);
          const std::span out(words.data(), static_cast<size_t>(chunk.words));
          int found = 0;
          for (SlotStore* store : raw) found += store->ReadChunk(id, grid_, ordinal, out).ok();
          ASSERT_EQ(found, 1);
          digest += DigestWords(out.data(), chunk.words, static_cast<uint64_t>(chunk.region),
                                chunk.first);
        }
      }
      EXPECT_EQ(digest, manifest.state_digest) << writers << " -> " << readers;
    }
  }
}

TEST_F(StoreTest, FailuresAtEveryPointLeaveTheNextSaveFree) {
  auto store = OpenStore(Path());
  Save({store.get()}, grid_, {0, 1, 1});
  int64_t step = 2;
  for (const char* point : {"ckpt.chunk.write", "ckpt.chunk.sync"}) {
    for (const char* fault : {"enospc", "EIO"}) {
      ASSERT_TRUE(SetFailpoints(Cat(point, "=1*return(", fault, ")")).ok());
      const auto shard = store->WriteShard({0, step, 1}, 0, grid_, 0, 7, Reader(grid_, step));
      EXPECT_EQ(shard.status().code(), std::string(fault) == "enospc"
                                           ? absl::StatusCode::kResourceExhausted
                                           : absl::StatusCode::kUnavailable)
          << shard.status();
      EXPECT_TRUE(store->Held({0, step, 1})->empty());
      EXPECT_TRUE(std::filesystem::is_empty(Path() + "/staging"));
      Save({store.get()}, grid_, {0, step, 1});  // the same id again
      EXPECT_TRUE(store->Verify({0, step, 1}, nullptr).ok());
      ++step;
    }
  }
  ASSERT_TRUE(SetFailpoints("ckpt.manifest.write=1*return(EIO)").ok());
  Manifest manifest = (*store->Manifests())[0];
  manifest.id.step = 50;
  EXPECT_TRUE(absl::IsUnavailable(store->WriteManifest(manifest)));
  EXPECT_TRUE(store->WriteManifest(manifest).ok());
  // A failing source of words is reported as it is.
  const auto shard = store->WriteShard(
      {0, 60, 1}, 0, grid_, 0, 7,
      [](int64_t, std::span<uint32_t>) { return absl::CancelledError("asked to stop"); });
  EXPECT_TRUE(absl::IsCancelled(shard.status()));
  EXPECT_TRUE(store->Verify({0, 1, 1}, nullptr).ok());
}

TEST_F(StoreTest, APruneCutShortIsRepeated) {
  auto store = OpenStore(Path());
  for (int64_t step = 1; step <= 3; ++step) Save({store.get()}, grid_, {0, step, 1});
  const CheckpointId gone[] = {{0, 1, 1}, {0, 2, 1}};
  ASSERT_TRUE(SetFailpoints("ckpt.prune=1*return(EIO)").ok());
  EXPECT_FALSE(store->Prune(gone).ok());
  EXPECT_TRUE(store->Held({0, 1, 1})->empty());
  EXPECT_EQ(store->Manifests()->size(), 3u);  // seen as incomplete, not as gone
  EXPECT_TRUE(store->Prune(gone).ok());
  EXPECT_EQ(store->Manifests()->size(), 1u);
}

TEST_F(StoreTest, ForeignDirectoriesAndOtherRunsAreRefusedAndLeftAlone) {
  std::filesystem::create_directories(dir_.path() + "/photos");
  std::ofstream(dir_.path() + "/photos/cat.jpg") << "meow";
  EXPECT_TRUE(absl::IsFailedPrecondition(
      SlotStore::Open(dir_.path() + "/photos", {.run = "test"}).status()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path() + "/photos"), {}), 1);
  OpenStore(Path());
  const absl::Status other = SlotStore::Open(Path(), {.run = "second"}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(other)) << other;
  EXPECT_NE(other.message().find("'test'"), absl::string_view::npos) << other;
  EXPECT_TRUE(absl::IsNotFound(
      SlotStore::Open(dir_.path() + "/none", {.run = "test", .create = false}).status()));
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/none"));
  std::filesystem::create_directories(dir_.path() + "/slots/007/store");
  std::filesystem::create_directories(dir_.path() + "/slots/x/store");
  EXPECT_EQ(SlotsIn(dir_.path()), std::vector<int>{0});
}

TEST_F(StoreTest, ASecondWriterIsRefusedNamingThePid) {
  auto store = OpenStore(Path());
  const absl::Status second = SlotStore::Open(Path(), {.run = "test"}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_NE(second.message().find(Cat("pid ", getpid())), absl::string_view::npos) << second;
  store.reset();
  EXPECT_NE(OpenStore(Path()), nullptr);
}

TEST_F(StoreTest, ASecondaryReadsBesideAPruningWriterAndCannotWrite) {
  auto store = OpenStore(Path());
  Save({store.get()}, grid_, {0, 1, 1});
  auto reader = SlotStore::OpenSecondary(Path(), dir_.path() + "/scratch");
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->run(), "test");
  Save({store.get()}, grid_, {0, 2, 1});
  const CheckpointId gone[] = {{0, 1, 1}};
  ASSERT_TRUE(store->Prune(gone).ok());
  EXPECT_TRUE((*reader)->Verify({0, 1, 1}, nullptr).ok());  // it keeps what it opened
  EXPECT_TRUE(absl::IsFailedPrecondition((*reader)->PutMark("a", "b")));
  EXPECT_TRUE(absl::IsFailedPrecondition((*reader)->Prune(gone)));
}

}  // namespace
}  // namespace holdfast::storage
