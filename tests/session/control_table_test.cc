// The verdict as a pure function of the table.
#include "runtime/session/control_table.h"

#include <functional>
#include <vector>

#include "gtest/gtest.h"

namespace holdfast {
namespace {

constexpr int kMicroBatches = 6;

TableExpectation Expected() {
  TableExpectation e;
  e.generation = 4;
  e.step = 10;
  e.micro_batches = kMicroBatches;
  e.work_hash = ExpectedWorkHash(1, e.step, kMicroBatches);
  return e;
}

// A table of `world` rows on which nothing is wrong: micro-batch j was computed by rank j % world.
std::vector<ControlRow> GoodTable(int world) {
  std::vector<ControlRow> rows(world);
  for (int r = 0; r < world; ++r) {
    ControlRow& row = rows[r];
    row.generation = 4;
    row.step = 10;
    row.flags = kRowStep | kRowSaverIdle;
    row.contributed = 100 + r;
    row.reduced = r == 0 ? static_cast<uint64_t>(100 * world + world * (world - 1) / 2) : 0;
    row.gradient_digest = 7;
    row.parameter_digest = 8;
    row.state_digest = 9;
    row.samples_hash = r;
    row.machine = r / 2;
    for (int j = r; j < kMicroBatches; j += world) {
      ++row.work_count;
      row.work_hash += LedgerHash(1, 10, j);
    }
  }
  return rows;
}

void SetIntents(std::vector<ControlRow>& rows, int rank, uint32_t intents) {
  rows[rank].intents |= intents;
}

struct StepCase {
  const char* name;
  std::function<void(std::vector<ControlRow>&, TableExpectation&)> change;
  Decision decision;
  std::vector<int> bad = {};
};

using Rows = std::vector<ControlRow>;

const StepCase kStepCases[] = {
    {"nothing wrong", [](Rows&, TableExpectation&) {}, Decision::kApply},
    {"ledger short", [](Rows& r, TableExpectation&) { --r[1].work_count; }, Decision::kRetryWork},
    {"ledger double",
     [](Rows& r, TableExpectation&) {
       ++r[1].work_count;
       r[1].work_hash += LedgerHash(1, 10, 0);
     },
     Decision::kRetryWork},
    {"right number, wrong micro-batch",
     [](Rows& r, TableExpectation&) {
       r[1].work_hash += LedgerHash(1, 10, 2) - LedgerHash(1, 10, 1);
     },
     Decision::kRetryWork},
    {"a micro-batch of another step",
     [](Rows& r, TableExpectation&) {
       r[1].work_hash += LedgerHash(1, 11, 1) - LedgerHash(1, 10, 1);
     },
     Decision::kRetryWork},
    {"words lost on the way", [](Rows& r, TableExpectation&) { ++r[2].contributed; },
     Decision::kRetrySums},
    {"a reduced word changed", [](Rows& r, TableExpectation&) { r[2].reduced ^= 1ull << 63; },
     Decision::kRetrySums},
    {"gathered gradients differ", [](Rows& r, TableExpectation&) { r[2].gradient_digest = 1; },
     Decision::kRetrySums},
    {"reduced scalars differ", [](Rows& r, TableExpectation&) { r[2].scalars_digest = 1; },
     Decision::kRetrySums},
    {"gradients differ in fast mode",
     [](Rows& r, TableExpectation& e) { e.check_sums = false, r[0].gradient_digest = 1; },
     Decision::kRetrySums},
    {"sums are not looked at without check_sums",
     [](Rows& r, TableExpectation& e) { e.check_sums = false, ++r[0].contributed; },
     Decision::kApply},
    {"one state differs",
     [](Rows& r, TableExpectation&) { r[1].state_digest = 1; },
     Decision::kHeal,
     {1}},
    {"one used other parameters",
     [](Rows& r, TableExpectation&) { r[3].parameter_digest = 1; },
     Decision::kHeal,
     {3}},
    {"healing goes before everything else",
     [](Rows& r, TableExpectation&) { r[0].state_digest = 1, r[1].work_count = 0; },
     Decision::kHeal,
     {0}},
    {"a tie names all",
     [](Rows& r, TableExpectation&) { r[0].state_digest = r[1].state_digest = 1; },
     Decision::kHeal,
     {0, 1, 2, 3}},
    {"the self-bad does not vote: two against one",
     [](Rows& r, TableExpectation&) {
       r[0].flags |= kRowSelfBad;
       r[0].parameter_digest = r[1].parameter_digest = 1;
     },
     Decision::kHeal,
     {0, 1}},
    {"self-bad with a digest like the others'",
     [](Rows& r, TableExpectation&) { r[2].flags |= kRowSelfBad; },
     Decision::kHeal,
     {2}},
    {"out of range", [](Rows& r, TableExpectation&) { r[2].flags |= kRowOutOfRange; },
     Decision::kRetryRange},
    {"out of range from changed words is no range",
     [](Rows& r, TableExpectation&) { r[2].flags |= kRowOutOfRange, ++r[0].reduced; },
     Decision::kRetrySums},
};

TEST(ControlTable, StepVerdicts) {
  for (const StepCase& c : kStepCases) {
    SCOPED_TRACE(c.name);
    Rows rows = GoodTable(4);
    TableExpectation expected = Expected();
    c.change(rows, expected);
    const Verdict v = Judge(rows, expected);
    EXPECT_EQ(v.decision, c.decision) << v.text;
    EXPECT_EQ(v.bad_ranks, c.bad);
    EXPECT_EQ(v.text.empty(), c.decision == Decision::kApply);
  }
}

TEST(ControlTable, SamplesAddUpWithoutRegardToTheSplit) {
  for (const int world : {1, 2, 3, 6}) {
    Rows rows = GoodTable(world);
    EXPECT_EQ(Judge(rows, Expected()).decision, Decision::kApply) << world;
    EXPECT_EQ(Judge(rows, Expected()).samples_hash, static_cast<uint64_t>(world * (world - 1) / 2));
  }
}

TEST(ControlTable, TwoReplicasThatDifferAreBothBadUnlessOneKnowsItself) {
  Rows rows = GoodTable(2);
  rows[1].state_digest = 5;
  EXPECT_EQ(Judge(rows, Expected()).bad_ranks, (std::vector<int>{0, 1}));
  rows[1].flags |= kRowSelfBad;
  EXPECT_EQ(Judge(rows, Expected()).bad_ranks, (std::vector<int>{1}));
  Rows alone = GoodTable(1);
  alone[0].flags |= kRowSelfBad;
  EXPECT_EQ(Judge(alone, Expected()).bad_ranks, (std::vector<int>{0}));
}

void Flag(ControlRow& row, int32_t index, uint64_t bits) {
  ++row.nonfinite_count;
  row.nonfinite_hash += bits;
  if (row.nonfinite_first < 0) row.nonfinite_first = index;
}

TEST(ControlTable, NonFiniteIsComputedAgainAndSkippedOnlyWithTheSameBits) {
  Rows rows = GoodTable(3);
  Flag(rows[2], 5, 77);
  Flag(rows[1], 4, 66);
  TableExpectation expected = Expected();
  const Verdict first = Judge(rows, expected);
  EXPECT_EQ(first.decision, Decision::kRecheck);
  EXPECT_EQ(first.nonfinite_first, 4);
  EXPECT_EQ(first.nonfinite_rank, 1);
  EXPECT_EQ(first.nonfinite_count, 2);

  // The same two, found by other ranks.
  Rows again = GoodTable(3);
  Flag(again[0], 4, 66);
  Flag(again[0], 5, 77);
  expected.recheck_count = first.nonfinite_count;
  expected.recheck_hash = first.nonfinite_hash;
  EXPECT_EQ(Judge(again, expected).decision, Decision::kSkip);

  Rows other_bits = GoodTable(3);
  Flag(other_bits[0], 4, 66);
  Flag(other_bits[0], 5, 78);
  EXPECT_EQ(Judge(other_bits, expected).decision, Decision::kRecheck);
  Rows fewer = GoodTable(3);
  Flag(fewer[0], 4, 66);
  EXPECT_EQ(Judge(fewer, expected).decision, Decision::kRecheck);
  EXPECT_EQ(Judge(GoodTable(3), expected).decision, Decision::kApply) << "it was transient";
}

struct EndCase {
  const char* name;
  int world;
  std::function<void(Rows&, TableExpectation&)> change;
  EndReason end;
  std::vector<int> leavers;
  bool farewell;
};

const EndCase kEndCases[] = {
    {"nothing", 4, [](Rows&, TableExpectation&) {}, EndReason::kNone, {}, false},
    {"stop: all leave, saved",
     4,
     [](Rows& r, TableExpectation&) { SetIntents(r, 3, kIntentStop | kIntentDrain); },
     EndReason::kStop,
     {0, 1, 2, 3},
     true},
    {"stop needs no store",
     2,
     [](Rows& r, TableExpectation&) {
       SetIntents(r, 0, kIntentStop);
       r[1].contact_age_ms = 60'000;
     },
     EndReason::kStop,
     {0, 1},
     true},
    {"store lost",
     2,
     [](Rows& r, TableExpectation&) { SetIntents(r, 1, kIntentStoreLost); },
     EndReason::kStoreLost,
     {0, 1},
     true},
    {"one of four drains",
     4,
     [](Rows& r, TableExpectation&) { SetIntents(r, 2, kIntentDrain); },
     EndReason::kDrain,
     {2},
     false},
    {"one of two drains",
     2,
     [](Rows& r, TableExpectation&) { SetIntents(r, 0, kIntentDrain); },
     EndReason::kDrain,
     {0},
     false},
    {"more than half drain: saved by all",
     4,
     [](Rows& r, TableExpectation&) {
       for (int i = 0; i < 3; ++i) SetIntents(r, i, kIntentDrain);
     },
     EndReason::kDrain,
     {0, 1, 2},
     true},
    {"the rest is below min_workers: saved by all",
     4,
     [](Rows& r, TableExpectation& e) {
       SetIntents(r, 0, kIntentDrain);
       e.min_workers = 4;
     },
     EndReason::kDrain,
     {0},
     true},
    {"the rest is min_workers",
     4,
     [](Rows& r, TableExpectation& e) {
       SetIntents(r, 0, kIntentDrain);
       e.min_workers = 3;
     },
     EndReason::kDrain,
     {0},
     false},
    {"the only one drains",
     1,
     [](Rows& r, TableExpectation&) { SetIntents(r, 0, kIntentDrain); },
     EndReason::kDrain,
     {0},
     true},
    {"a machine drains: both of its workers",
     4,
     [](Rows& r, TableExpectation&) { SetIntents(r, 2, kIntentDrainMachine); },
     EndReason::kDrain,
     {2, 3},
     false},
    {"a drain without the store saves first",
     4,
     [](Rows& r, TableExpectation&) {
       SetIntents(r, 2, kIntentDrain);
       r[0].contact_age_ms = 3001;
     },
     EndReason::kDrain,
     {2},
     true},
    {"joiners",
     4,
     [](Rows& r, TableExpectation&) { SetIntents(r, 2, kIntentAdmit); },
     EndReason::kAdmit,
     {},
     false},
    {"joiners wait while one row has no contact",
     4,
     [](Rows& r, TableExpectation&) {
       SetIntents(r, 2, kIntentAdmit);
       r[0].contact_age_ms = 3001;
     },
     EndReason::kNone,
     {},
     false},
    {"joiners wait for a save under way",
     4,
     [](Rows& r, TableExpectation& e) {
       SetIntents(r, 2, kIntentAdmit);
       e.save_step = 8;
     },
     EndReason::kNone,
     {},
     false},
    {"a drain does not wait for a save",
     4,
     [](Rows& r, TableExpectation& e) {
       SetIntents(r, 2, kIntentDrain);
       e.save_step = 8;
     },
     EndReason::kDrain,
     {2},
     false},
    {"no end in the middle of a step",
     4,
     [](Rows& r, TableExpectation&) {
       SetIntents(r, 2, kIntentStop);
       r[0].work_count = 0;
     },
     EndReason::kNone,
     {},
     false},
};

TEST(ControlTable, Ends) {
  for (const EndCase& c : kEndCases) {
    SCOPED_TRACE(c.name);
    Rows rows = GoodTable(c.world);
    TableExpectation expected = Expected();
    c.change(rows, expected);
    const Verdict v = Judge(rows, expected);
    EXPECT_EQ(v.end, c.end);
    EXPECT_EQ(v.leavers, c.leavers);
    EXPECT_EQ(v.farewell, c.farewell);
  }
}

TEST(ControlTable, IntentsOfAllRowsAreSeenWhateverTheStepCameTo) {
  Rows rows = GoodTable(3);
  rows[0].state_digest = 1;
  SetIntents(rows, 2, kIntentStop);
  EXPECT_EQ(Judge(rows, Expected()).decision, Decision::kHeal);
  EXPECT_TRUE(Judge(rows, Expected()).intents & kIntentStop);
}

TEST(ControlTable, SavesBeginWhenAllAreReady) {
  Rows rows = GoodTable(3);
  EXPECT_EQ(Judge(rows, Expected()).save, SaveDecision::kNone);
  SetIntents(rows, 1, kIntentSave);
  EXPECT_EQ(Judge(rows, Expected()).save, SaveDecision::kBegin);
  rows[2].flags &= ~kRowSaverIdle;
  EXPECT_EQ(Judge(rows, Expected()).save, SaveDecision::kNone) << "one is still busy";
  rows[2].flags |= kRowSaverIdle;
  rows[2].work_count = 0;
  EXPECT_EQ(Judge(rows, Expected()).save, SaveDecision::kNone) << "not at a boundary";
  Rows range = GoodTable(3);
  SetIntents(range, 1, kIntentSave);
  range[1].flags |= kRowOutOfRange;
  EXPECT_EQ(Judge(range, Expected()).save, SaveDecision::kNone) << "not at a boundary";
}

class SaveUnderWay : public testing::Test {
 protected:
  SaveUnderWay() : rows_(GoodTable(3)), expected_(Expected()) {
    expected_.save_step = 8;
    expected_.save_digest = 60;
    for (int r = 0; r < 3; ++r) {
      rows_[r].flags = kRowStep;
      rows_[r].save_step = 8;
    }
  }
  void Durable(int r) {
    rows_[r].flags |= kRowShardDurable;
    rows_[r].shard_digest = 10 * (r + 1);
  }
  SaveDecision Save() const { return Judge(rows_, expected_).save; }
  Rows rows_;
  TableExpectation expected_;
};

TEST_F(SaveUnderWay, TwoCounts) {
  EXPECT_EQ(Save(), SaveDecision::kNone);
  Durable(0);
  Durable(1);
  EXPECT_EQ(Save(), SaveDecision::kNone);
  Durable(2);
  EXPECT_EQ(Save(), SaveDecision::kWriteManifest);
  rows_[0].flags |= kRowManifestDurable;
  rows_[1].flags |= kRowManifestDurable;
  EXPECT_NE(Save(), SaveDecision::kSaved);
  rows_[2].flags |= kRowManifestDurable;
  EXPECT_EQ(Save(), SaveDecision::kSaved);
}

TEST_F(SaveUnderWay, ShardsThatDoNotMakeUpTheStateFail) {
  for (int r = 0; r < 3; ++r) Durable(r);
  rows_[1].shard_digest ^= 1;
  EXPECT_EQ(Save(), SaveDecision::kFailed);
}

TEST_F(SaveUnderWay, OneFailureIsAllsFailure) {
  for (int r = 0; r < 3; ++r) Durable(r);
  rows_[2].flags |= kRowSaveFailed;
  EXPECT_EQ(Save(), SaveDecision::kFailed);
}

TEST_F(SaveUnderWay, DurableOfAnotherSaveDoesNotCount) {
  for (int r = 0; r < 3; ++r) Durable(r);
  rows_[2].save_step = 6;
  EXPECT_EQ(Save(), SaveDecision::kNone);
  for (int r = 0; r < 3; ++r) rows_[r].flags |= kRowManifestDurable;
  EXPECT_EQ(Save(), SaveDecision::kNone);
}

TEST_F(SaveUnderWay, NothingIsSavedOfReplicasThatDiffer) {
  for (int r = 0; r < 3; ++r) {
    Durable(r);
    rows_[r].flags |= kRowManifestDurable;
  }
  rows_[1].state_digest = 1;
  EXPECT_EQ(Save(), SaveDecision::kNone);
}

TEST_F(SaveUnderWay, JoinersAreTakenWhenItIsSaved) {
  for (int r = 0; r < 3; ++r) {
    Durable(r);
    rows_[r].flags |= kRowManifestDurable;
  }
  SetIntents(rows_, 0, kIntentAdmit);
  EXPECT_EQ(Judge(rows_, expected_).end, EndReason::kAdmit);
}

TEST(ControlTable, ARoundWithoutAStepAppliesNothing) {
  Rows rows = GoodTable(2);
  TableExpectation expected = Expected();
  expected.is_step = false;
  for (ControlRow& row : rows) row.work_count = 0, row.flags = kRowSaverIdle;
  SetIntents(rows, 0, kIntentSave);
  const Verdict v = Judge(rows, expected);
  EXPECT_EQ(v.decision, Decision::kNone);
  EXPECT_EQ(v.save, SaveDecision::kBegin);
  rows[0].state_digest = 1;
  EXPECT_EQ(Judge(rows, expected).decision, Decision::kHeal);
}

TEST(ControlTable, RowsOfAnotherRoundAreAnError) {
  const TableExpectation expected = Expected();
  std::string why;
  EXPECT_TRUE(SameRound(GoodTable(3), expected, &why));
  for (int field = 0; field < 4; ++field) {
    Rows rows = GoodTable(3);
    if (field == 0) ++rows[1].generation;
    if (field == 1) --rows[1].step;
    if (field == 2) ++rows[1].attempt;
    if (field == 3) rows[1].flags &= ~kRowStep;
    EXPECT_FALSE(SameRound(rows, expected, &why)) << field;
    EXPECT_NE(why.find("rank 1"), std::string::npos) << why;
  }
}

}  // namespace
}  // namespace holdfast
