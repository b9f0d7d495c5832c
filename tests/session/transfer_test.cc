// How the members of a generation come to one state: from memory, and from a checkpoint.
#include "runtime/session/transfer.h"

#include <thread>

#include "gtest/gtest.h"
#include "runtime/base/failpoint.h"
#include "runtime/base/text.h"
#include "tests/session/engine_world.h"
#include "tests/session/save_world.h"

namespace holdfast {
namespace {

using rendezvous::Roster;
using rendezvous::Source;

class TransferTest : public testing::Test {
 protected:
  void TearDown() override { ASSERT_TRUE(SetFailpoints("").ok()); }

  // Saves the state of `step` with a world of `world`, in slots 0 .. world - 1.
  void SaveWith(int world, int64_t step) {
    const auto state = StateOf(step);
    std::vector<std::unique_ptr<storage::SlotStore>> stores;
    std::vector<std::unique_ptr<Saver>> savers;
    std::vector<Saver*> all;
    for (int r = 0; r < world; ++r) {
      stores.push_back(OpenSlot(dir_.Path("run"), r));
      savers.push_back(std::make_unique<Saver>(stores.back().get(), 9));
      all.push_back(savers.back().get());
    }
    SaveAll(*state, all);
  }

  // The stores as a world of `world` workers holds them. Where no checkpoint matters all share one:
  // opening a store takes its time.
  void OpenWorld(int world, bool share = false) {
    held_.clear();
    stores_.clear();
    states_.clear();
    const int stores = share ? 1 : world;
    for (int r = 0; r < stores; ++r) stores_.push_back(OpenSlot(dir_.Path("run"), r));
    for (int r = 0; r < world; ++r) {
      auto held =
          HeldCheckpoints::Open(dir_.Path("run"), "run", r, world, stores_[r % stores].get());
      ASSERT_TRUE(held.ok()) << held.status();
      held_.push_back(*std::move(held));
      states_.push_back(StateOf(-1));
    }
  }

  // As the round would share it out: each chunk of the newest one to the first rank that has it.
  Roster FromOffers(std::vector<std::vector<rendezvous::HeldCheckpoint>>* offers) {
    Roster roster = MakeRoster(Source::kCheckpoint);
    for (size_t r = 0; r < held_.size(); ++r) {
      offers->push_back(held_[r]->Offers(states_[r]->grid(), "bits"));
    }
    for (const auto& offer : *offers) {
      if (!offer.empty() && offer.back().step >= roster.checkpoint.step) {
        roster.checkpoint = offer.back();
      }
    }
    roster.step = roster.checkpoint.step;
    roster.digest = roster.checkpoint.state_digest;
    std::vector<bool> taken(roster.checkpoint.chunks, false);
    for (size_t r = 0; r < held_.size(); ++r) {
      for (const auto& offer : (*offers)[r]) {
        if (offer.step != roster.step) continue;
        for (const auto& [first, last] : offer.ranges) {
          for (int64_t c = first; c < last; ++c) {
            if (taken[c]) continue;
            taken[c] = true;
            roster.members[r].ranges.emplace_back(c, c + 1);
          }
        }
      }
    }
    for (size_t c = 0; c < taken.size(); ++c) EXPECT_TRUE(taken[c]) << c;
    return roster;
  }

  Roster MakeRoster(Source source) const {
    Roster roster;
    roster.generation = 3;
    roster.source = source;
    roster.members.resize(states_.size());
    return roster;
  }
  Roster FromMemory(std::vector<bool> holders, const State& holder) const {
    Roster roster = MakeRoster(Source::kMemory);
    roster.step = holder.scalars.step;
    roster.digest = holder.Digest();
    for (size_t r = 0; r < holders.size(); ++r) roster.members[r].has_state = holders[r];
    return roster;
  }

  std::vector<absl::Status> Take(const Roster& roster) {
    const int world = static_cast<int>(states_.size());
    auto comms = Connect(world);
    std::vector<absl::Status> statuses(world);
    std::vector<std::thread> threads;
    for (int r = 0; r < world; ++r) {
      threads.emplace_back([&, r] {
        Roster mine = roster;
        mine.rank = r;
        TransferOptions options;
        options.seed = 5;
        statuses[r] = TakeState(*comms[r], mine, options, *held_[r], *states_[r]);
        if (!statuses[r].ok()) comms[r]->Abort(statuses[r]);
        // Who is done stays until all are.
        if (statuses[r].ok()) {
          (void)comms[r]->Wait(comms[r]->Barrier({1 << 20, 0, 0}), Deadline::After(kLongMs));
        }
      });
    }
    for (auto& t : threads) t.join();
    return statuses;
  }

  void ExpectAllHold(int64_t step) {
    const auto want = StateOf(step);
    for (const auto& state : states_) {
      EXPECT_TRUE(state->valid);
      EXPECT_FALSE(state->marked);
      EXPECT_EQ(state->scalars.step, step);
      EXPECT_EQ(state->Digest(), want->Digest());
      EXPECT_TRUE(state->Redigest().ok());
      EXPECT_EQ(state->Digest(), want->Digest()) << "memory is what the digest says";
    }
  }

  TempDir dir_;
  std::vector<std::unique_ptr<storage::SlotStore>> stores_;
  std::vector<std::unique_ptr<HeldCheckpoints>> held_;  // destroyed before the stores
  std::vector<std::unique_ptr<State>> states_;
};

TEST_F(TransferTest, FreshIsTheSameForAll) {
  OpenWorld(2, /*share=*/true);
  for (const absl::Status& s : Take(MakeRoster(Source::kFresh))) EXPECT_TRUE(s.ok()) << s;
  EXPECT_EQ(states_[0]->Digest(), states_[1]->Digest());
  EXPECT_EQ(states_[0]->scalars.step, 0);
}

TEST_F(TransferTest, FromMemoryToOneAndToTwo) {
  for (const std::vector<bool>& holders :
       {std::vector<bool>{true, false, true}, {false, true, false}, {true, false, false}}) {
    OpenWorld(3, /*share=*/true);
    for (int r = 0; r < 3; ++r) FillState(*states_[r], holders[r] ? 7 : 6);
    const auto want = StateOf(7);
    for (const absl::Status& s : Take(FromMemory(holders, *want))) EXPECT_TRUE(s.ok()) << s;
    ExpectAllHold(7);
  }
}

TEST_F(TransferTest, WhereAllHoldItNothingIsSent) {
  OpenWorld(2, /*share=*/true);
  for (auto& state : states_) FillState(*state, 7);
  for (const absl::Status& s : Take(FromMemory({true, true}, *states_[0]))) EXPECT_TRUE(s.ok());
  ExpectAllHold(7);
}

TEST_F(TransferTest, BrokenOffInTheMiddleHoldersStayWholeAndTheNeedyIsMarked) {
  OpenWorld(3, /*share=*/true);
  FillState(*states_[0], 7);
  FillState(*states_[1], 7);
  FillState(*states_[2], 5);  // whole, but an older one
  const Roster roster = FromMemory({true, true, false}, *states_[0]);
  const int world = 3;
  auto comms = Connect(world);
  std::vector<absl::Status> statuses(world);
  std::vector<std::thread> threads;
  ASSERT_TRUE(SetFailpoints("transfer.piece=sleep(5)").ok());
  const int64_t fired = FailpointFired("transfer.piece");
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      Roster mine = roster;
      mine.rank = r;
      statuses[r] = TakeState(*comms[r], mine, {}, *held_[r], *states_[r]);
      if (!statuses[r].ok()) comms[r]->Abort(statuses[r]);
    });
  }
  const Deadline deadline = Deadline::After(kLongMs);
  while (FailpointFired("transfer.piece") < fired + 3 && !deadline.passed()) {
    std::this_thread::yield();
  }
  comms[1]->Abort(absl::AbortedError("rank 1 dies"));
  for (auto& t : threads) t.join();
  EXPECT_FALSE(statuses[2].ok());
  EXPECT_TRUE(states_[2]->marked);
  for (int r = 0; r < 2; ++r) {
    EXPECT_TRUE(states_[r]->valid && !states_[r]->marked);
    EXPECT_TRUE(states_[r]->Redigest().ok());
    EXPECT_EQ(states_[r]->Digest(), StateOf(7)->Digest());
  }
}

TEST_F(TransferTest, AHolderWhoseMemoryChangedIsFoundOut) {
  OpenWorld(2, /*share=*/true);
  FillState(*states_[0], 7);
  const Roster roster = FromMemory({true, false}, *states_[0]);
  states_[0]->slot(1)[3] += 1;
  const auto statuses = Take(roster);
  EXPECT_TRUE(absl::IsAborted(statuses[1])) << statuses[1];
  EXPECT_TRUE(states_[1]->marked);
}

TEST_F(TransferTest, FromACheckpointAtTheSameAndOtherWorldSizes) {
  SaveWith(3, 40);
  for (const int world : {3, 1, 4}) {
    SCOPED_TRACE(world);
    OpenWorld(world);
    std::vector<std::vector<rendezvous::HeldCheckpoint>> offers;
    const Roster roster = FromOffers(&offers);
    EXPECT_EQ(roster.step, 40);
    for (const absl::Status& s : Take(roster)) EXPECT_TRUE(s.ok()) << s;
    ExpectAllHold(40);
  }
}

TEST_F(TransferTest, OtherBitsAreNotOffered) {
  SaveWith(1, 40);
  OpenWorld(1);
  EXPECT_TRUE(held_[0]->Offers(states_[0]->grid(), "other bits").empty());
  EXPECT_EQ(held_[0]->progress(), 40) << "but they prove progress";
}

// Overwrites bytes in the middle of the largest file below `path`.
void Damage(const std::string& path) {
  std::filesystem::path largest;
  uintmax_t size = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file() && entry.path().extension() == ".sst" && entry.file_size() > size) {
      size = entry.file_size();
      largest = entry.path();
    }
  }
  ASSERT_GT(size, 1000u) << path;
  std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(size / 3));
  file.write("damaged!damaged!", 16);
}

TEST_F(TransferTest, ADamagedChunkFailsAllAndIsNotOfferedAgain) {
  SaveWith(2, 40);
  Damage(storage::StorePath(dir_.Path("run"), 0));
  OpenWorld(2);
  std::vector<std::vector<rendezvous::HeldCheckpoint>> offers;
  const Roster roster = FromOffers(&offers);
  const auto statuses = Take(roster);
  EXPECT_TRUE(absl::IsDataLoss(statuses[0])) << statuses[0];
  EXPECT_FALSE(statuses[1].ok());
  for (const auto& state : states_) EXPECT_FALSE(state->valid && !state->marked);
  for (const auto& offer : held_[0]->Offers(states_[0]->grid(), "bits")) {
    EXPECT_TRUE(offer.ranges.empty()) << "offered again";
  }
}

TEST_F(TransferTest, ChunksThatDoNotMakeTheStateAreRefusedByAll) {
  SaveWith(2, 40);
  OpenWorld(2);
  std::vector<std::vector<rendezvous::HeldCheckpoint>> offers;
  Roster roster = FromOffers(&offers);
  roster.digest ^= 1;
  const auto statuses = Take(roster);
  int found_out = 0;
  for (int r = 0; r < 2; ++r) {
    EXPECT_FALSE(statuses[r].ok());
    EXPECT_TRUE(states_[r]->marked);
    // Who finds out leaves at once; the other may see that first, and finds out the next time.
    // (Its error then tells the other's reason, after whose it is.)
    if (StdView(statuses[r].message()).rfind("state transfer: got", 0) != 0) continue;
    ++found_out;
    EXPECT_TRUE(held_[r]->Offers(states_[r]->grid(), "bits").empty());
  }
  EXPECT_GE(found_out, 1);
}

}  // namespace
}  // namespace holdfast
