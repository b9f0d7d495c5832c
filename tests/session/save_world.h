// A small state and a slot store for the tests of saves and transfers.
#pragma once

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "runtime/base/digest.h"
#include "runtime/session/saver.h"
#include "runtime/session/state.h"
#include "tests/models/temp_dir.h"

namespace holdfast {

using testing_models::TempDir;

// Four chunks (one region is larger than a chunk), two optimizer slots, a buffer.
inline StatePlan SmallPlan() {
  ModelSpec spec;
  spec.tensors = {{.name = "a", .shape = {storage::kChunkWords + 1000}},
                  {.name = "b", .shape = {77}},
                  {.name = "buffer", .shape = {9}, .role = Role::kBuffer, .init = "ones"}};
  return *MakePlan(spec, [](const std::string&) { return 2; });
}

// A whole state of `step`: the same for everybody.
inline void FillState(State& state, int64_t step) {
  ASSERT_TRUE(state.Initialise(static_cast<uint64_t>(step), 0).ok());
  state.scalars.step = step;
  state.scalars.updates = step - 1;
  for (size_t i = 0; i < state.grid().regions().size(); ++i) {
    state.RegionData(static_cast<int64_t>(i))[0] = static_cast<float>(step + 1);
  }
  (void)state.Redigest();
}

inline std::unique_ptr<State> StateOf(int64_t step) {
  auto state = State::Allocate(SmallPlan());
  EXPECT_TRUE(state.ok()) << state.status();
  if (step >= 0) FillState(**state, step);
  return *std::move(state);
}

inline std::unique_ptr<storage::SlotStore> OpenSlot(const std::string& dir, int slot) {
  const std::string path = storage::StorePath(dir, slot);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  auto store = storage::SlotStore::Open(path, {.run = "run"});
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

inline Saver::Target TargetOf(State& state, int rank, int world, uint64_t generation = 1) {
  Saver::Target target;
  storage::Manifest& m = target.manifest;
  m.run = "run";
  m.run_uuid = "uuid";
  m.fingerprint = "bits";
  m.id = {0, state.scalars.step, generation};
  m.world_size = world;
  m.regions = state.grid().regions();
  m.scalars = state.scalars.Encode();
  m.state_digest = state.RegionsDigest();
  target.rank = rank;
  target.world_size = world;
  return target;
}

inline storage::ShardInfo ShardOf(State& state, const ControlRow& row, int rank, int world) {
  storage::ShardInfo s;
  s.owner = rank;
  s.machine = "machine";
  s.slot = rank;
  std::tie(s.first, s.last) = state.grid().Owned(rank, world);
  s.state_digest = row.shard_digest;
  s.bytes = row.shard_bytes;
  return s;
}

inline ControlRow RowOf(Saver& saver) {
  ControlRow row;
  saver.FillRow(&row);
  return row;
}

// Both counts of a save by a world of savers.size(), as the tables would take them.
inline void SaveAll(State& state, const std::vector<Saver*>& savers, uint64_t generation = 1) {
  const int world = static_cast<int>(savers.size());
  for (int r = 0; r < world; ++r) {
    ASSERT_TRUE(savers[r]->WaitWriter(60'000));
    ASSERT_TRUE(savers[r]->idle());
    savers[r]->Begin(state, TargetOf(state, r, world, generation));
  }
  std::vector<storage::ShardInfo> shards;
  uint64_t digest = 0;
  for (int r = 0; r < world; ++r) {
    ASSERT_TRUE(savers[r]->WaitWriter(60'000));
    const ControlRow row = RowOf(*savers[r]);
    ASSERT_TRUE(row.flags & kRowShardDurable) << savers[r]->status();
    shards.push_back(ShardOf(state, row, r, world));
    digest += row.shard_digest;
  }
  ASSERT_EQ(digest, state.RegionsDigest());
  for (Saver* saver : savers) saver->WriteManifest(shards);
  for (Saver* saver : savers) {
    ASSERT_TRUE(saver->WaitWriter(60'000));
    ASSERT_TRUE(RowOf(*saver).flags & kRowManifestDurable) << saver->status();
  }
  for (Saver* saver : savers) saver->Saved();
  for (Saver* saver : savers) ASSERT_TRUE(saver->WaitWriter(60'000));
}

}  // namespace holdfast
