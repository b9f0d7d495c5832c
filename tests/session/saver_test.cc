// Saves of one worker into a real store.
#include "runtime/session/saver.h"

#include <condition_variable>
#include <cstring>
#include <mutex>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/session/save_world.h"

namespace holdfast {
namespace {

using storage::CheckpointId;
using testing::ElementsAre;

// A real store whose shard writes can be held up or made to fail.
class Gate final : public storage::SlotStore {
 public:
  explicit Gate(storage::SlotStore* inner) : inner_(inner) {}

  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  void Open() {
    std::lock_guard lock(mutex_);
    closed_ = false;
    changed_.notify_all();
  }
  bool fail = false, fail_marks = false;  // set while the writer rests

  absl::StatusOr<storage::ShardInfo> WriteShard(
      const CheckpointId& id, int owner, const storage::ChunkGrid& grid, int64_t first,
      int64_t last,
      const std::function<absl::Status(int64_t, std::span<uint32_t>)>& read) override {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !closed_; });
    }
    if (fail) return absl::ResourceExhaustedError("the disk is full");
    return inner_->WriteShard(id, owner, grid, first, last, read);
  }
  absl::Status WriteManifest(const storage::Manifest& m) override {
    return inner_->WriteManifest(m);
  }
  absl::StatusOr<std::vector<storage::Manifest>> Manifests() const override {
    return inner_->Manifests();
  }
  absl::StatusOr<std::vector<CheckpointId>> Ids() const override { return inner_->Ids(); }
  absl::StatusOr<std::vector<std::pair<int64_t, int64_t>>> Held(
      const CheckpointId& id) const override {
    return inner_->Held(id);
  }
  absl::Status ReadChunk(const CheckpointId& id, const storage::ChunkGrid& grid, int64_t ordinal,
                         std::span<uint32_t> out) const override {
    return inner_->ReadChunk(id, grid, ordinal, out);
  }
  absl::Status Verify(const CheckpointId& id,
                      const std::function<void(int64_t, int64_t)>& progress) const override {
    return inner_->Verify(id, progress);
  }
  absl::Status Prune(std::span<const CheckpointId> ids) override { return inner_->Prune(ids); }
  absl::Status PutMark(std::string_view key, std::string_view value) override {
    if (fail_marks) return absl::ResourceExhaustedError("the disk is full");
    return inner_->PutMark(key, value);
  }
  absl::StatusOr<std::string> GetMark(std::string_view key) const override {
    return inner_->GetMark(key);
  }
  const std::string& run() const override { return inner_->run(); }

 private:
  storage::SlotStore* inner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
};

class SaverTest : public testing::Test {
 protected:
  SaverTest() : store_(OpenSlot(dir_.Path(""), 0)), gate_(store_.get()), saver_(&gate_, 2) {}

  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    const auto manifests = store_->Manifests();
    EXPECT_TRUE(manifests.ok()) << manifests.status();
    for (const auto& m : *manifests) steps.push_back(m.id.step);
    return steps;
  }
  std::vector<int64_t> AnySteps() {
    std::vector<int64_t> steps;
    const auto ids = store_->Ids();
    EXPECT_TRUE(ids.ok()) << ids.status();
    for (const auto& id : *ids) steps.push_back(id.step);
    return steps;
  }
  void Save(int64_t step, uint64_t generation = 1) {
    const auto state = StateOf(step);
    SaveAll(*state, {&saver_}, generation);
  }

  TempDir dir_;
  std::unique_ptr<storage::SlotStore> store_;
  Gate gate_;
  Saver saver_;
};

TEST_F(SaverTest, OneSaveFromBeginToSaved) {
  EXPECT_TRUE(saver_.idle());
  EXPECT_EQ(RowOf(saver_).flags, kRowSaverIdle);
  const auto state = StateOf(10);
  gate_.Close();
  saver_.Begin(*state, TargetOf(*state, 0, 1));
  EXPECT_TRUE(saver_.in_flight());
  EXPECT_FALSE(saver_.idle());
  ControlRow row = RowOf(saver_);
  EXPECT_EQ(row.flags, 0u);
  EXPECT_EQ(row.save_step, 10);
  // Training goes on: what is written is the state at the beginning.
  const uint64_t saved_digest = state->RegionsDigest();
  FillState(*state, 11);
  gate_.Open();
  ASSERT_TRUE(saver_.WaitWriter(60'000));
  row = RowOf(saver_);
  EXPECT_EQ(row.flags, kRowShardDurable);
  EXPECT_EQ(row.shard_digest, saved_digest);
  EXPECT_GT(row.shard_bytes, 0);
  EXPECT_GT(saver_.write_ms(), 0);
  EXPECT_THAT(Steps(), ElementsAre()) << "no manifest before all shards are durable";

  saver_.WriteManifest({ShardOf(*state, row, 0, 1)});
  saver_.WriteManifest({});  // the verdict comes with every table until all have it
  ASSERT_TRUE(saver_.WaitWriter(60'000));
  EXPECT_EQ(RowOf(saver_).flags, kRowShardDurable | kRowManifestDurable);
  EXPECT_THAT(Steps(), ElementsAre(10));
  saver_.Saved();
  EXPECT_FALSE(saver_.in_flight());
  ASSERT_TRUE(saver_.WaitWriter(60'000));
  EXPECT_TRUE(saver_.idle());
  EXPECT_TRUE(store_->Verify({0, 10, 1}, {}).ok());
}

TEST_F(SaverTest, KeepsTheNewest) {
  for (const int64_t step : {10, 20, 30, 40}) Save(step);
  EXPECT_THAT(Steps(), ElementsAre(30, 40));
  EXPECT_THAT(AnySteps(), ElementsAre(30, 40));
}

TEST_F(SaverTest, TheBestStaysBesideTheNewest) {
  Save(10);
  saver_.KeepBest({true, {0, 10, 1}, 2.5, 100});
  ASSERT_TRUE(saver_.WaitWriter(60'000));
  for (const int64_t step : {20, 30, 40}) Save(step);
  EXPECT_THAT(Steps(), ElementsAre(10, 30, 40));
  // A later process knows it from the store, before anybody tells it.
  Saver later(&gate_, 2);
  EXPECT_EQ(later.best().id.step, 10);
  EXPECT_EQ(later.best().loss, 2.5);
  const auto state = StateOf(50);
  SaveAll(*state, {&later});
  EXPECT_THAT(Steps(), ElementsAre(10, 40, 50));
  // One that is among the newest takes no extra room, and sets the former one free.
  later.KeepBest({true, {0, 50, 1}, 2.25, 100});
  ASSERT_TRUE(later.WaitWriter(60'000));
  const auto newest = StateOf(60);
  SaveAll(*newest, {&later});
  EXPECT_THAT(Steps(), ElementsAre(50, 60));
}

// The record is durable before anything that it does not name is dropped.
TEST_F(SaverTest, NothingIsPrunedWhenTheBestCannotBeWrittenDown) {
  Save(10);
  gate_.fail_marks = true;
  saver_.KeepBest({true, {0, 10, 1}, 2.5, 100});
  ASSERT_TRUE(saver_.WaitWriter(60'000));
  for (const int64_t step : {20, 30, 40}) Save(step);
  EXPECT_THAT(Steps(), ElementsAre(10, 20, 30, 40));
  gate_.fail_marks = false;
  Save(50);
  EXPECT_THAT(Steps(), ElementsAre(10, 40, 50));
}

TEST_F(SaverTest, NothingOfAnOlderCheckpointGoesBeforeANewerOneIsSaved) {
  Save(10);
  Save(20);
  const auto state = StateOf(30);
  saver_.Begin(*state, TargetOf(*state, 0, 1));
  ASSERT_TRUE(saver_.WaitWriter(60'000));
  saver_.WriteManifest({ShardOf(*state, RowOf(saver_), 0, 1)});
  ASSERT_TRUE(saver_.WaitWriter(60'000));
  saver_.Abandon();  // this one saw no second count
  EXPECT_THAT(Steps(), ElementsAre(10, 20, 30)) << "a manifest is never undone";
}

TEST_F(SaverTest, AbandonDoesNotBlockAndTheNextSaveWorks) {
  const auto state = StateOf(10);
  gate_.Close();
  saver_.Begin(*state, TargetOf(*state, 0, 1));
  saver_.Abandon();
  EXPECT_FALSE(saver_.in_flight());
  EXPECT_FALSE(saver_.idle()) << "the writer still reads the snapshot";
  EXPECT_EQ(RowOf(saver_).flags, 0u);
  EXPECT_EQ(RowOf(saver_).save_step, -1);
  saver_.Abandon();  // once more does nothing
  gate_.Open();
  ASSERT_TRUE(saver_.WaitWriter(60'000));
  EXPECT_TRUE(saver_.idle());
  EXPECT_EQ(RowOf(saver_).flags, kRowSaverIdle);
  EXPECT_THAT(AnySteps(), ElementsAre(10)) << "bytes stay where they are";
  Save(10, /*generation=*/2);
  EXPECT_THAT(Steps(), ElementsAre(10));
  EXPECT_EQ(store_->Ids()->size(), 1u) << "the remains go when a newer one is saved";
}

TEST_F(SaverTest, RemainsOfAFormerProcessGoWithTheNextSave) {
  {
    Saver former(&gate_, 2);
    const auto state = StateOf(5);
    former.Begin(*state, TargetOf(*state, 0, 1));
    ASSERT_TRUE(former.WaitWriter(60'000));
  }
  EXPECT_THAT(AnySteps(), ElementsAre(5));
  Save(10);
  EXPECT_THAT(AnySteps(), ElementsAre(10));
}

TEST_F(SaverTest, AFailedWriteIsSaidAndTheNextSaveWorks) {
  Save(10);
  gate_.fail = true;
  const auto state = StateOf(20);
  saver_.Begin(*state, TargetOf(*state, 0, 1));
  ASSERT_TRUE(saver_.WaitWriter(60'000));
  EXPECT_EQ(RowOf(saver_).flags, kRowSaveFailed);
  EXPECT_TRUE(absl::IsResourceExhausted(saver_.status())) << saver_.status();
  EXPECT_NE(saver_.status().message().find("step 20"), absl::string_view::npos);
  saver_.Abandon();
  EXPECT_TRUE(saver_.idle());
  gate_.fail = false;
  Save(30);
  EXPECT_THAT(Steps(), ElementsAre(10, 30));
}

TEST_F(SaverTest, TheWriterMayEndWhileItWrites) {
  const auto state = StateOf(10);
  saver_.Begin(*state, TargetOf(*state, 0, 1));  // the destructor finishes it
}

TEST(Saver, SlicesOfSeveralWorkersMakeUpTheState) {
  const TempDir dir;
  const auto state = StateOf(10);
  for (const int world : {2, 9}) {  // nine for fewer chunks: some write nothing
    std::vector<std::unique_ptr<storage::SlotStore>> stores;
    std::vector<std::unique_ptr<Saver>> savers;
    std::vector<Saver*> all;
    for (int r = 0; r < world; ++r) {
      stores.push_back(OpenSlot(dir.Path(std::to_string(world)), r));
      savers.push_back(std::make_unique<Saver>(stores.back().get(), 1));
      all.push_back(savers.back().get());
    }
    SaveAll(*state, all);
    const std::string bytes = (*stores[0]->Manifests())[0].ToBytes();
    for (const auto& store : stores) EXPECT_EQ((*store->Manifests())[0].ToBytes(), bytes);
  }
}

}  // namespace
}  // namespace holdfast
