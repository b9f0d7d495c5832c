// One picture of a run from what several machines pinned up and what the roster says.
#include "runtime/cli/status_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

rendezvous::PinnedView Pin(const std::string& machine, int64_t age_ms, bool ended = false) {
  view::Snapshot s;
  s.run = "book";
  s.machine = machine;
  s.phase = ended ? "left on request" : "training";
  s.ended = ended;
  s.step = 100;
  s.saved_step = 90;
  s.saved_age_s = 5;
  s.workers.push_back({0, 0, 77, 1, 100, 0, machine, "training", view::Tone::kGood});
  return {machine, view::ToJson(s), age_ms};
}

nlohmann::json Roster() {
  return {{"run", "book"},
          {"exists", true},
          {"generation", 4},
          {"members",
           {{{"machine", "a"}, {"slot", 0}, {"rank", 0}, {"lease_ms", 2000}, {"step", 99}},
            {{"machine", "c"},
             {"slot", 1},
             {"rank", 1},
             {"lease_ms", 0},
             {"step", 99},
             {"loss", 2.5},
             {"phase", "training"}}}}};
}

TEST(Merge, WorkersOfAllMachinesAndFiguresOfTheFreshest) {
  bool stale = true;
  const auto s = MergeViews({Pin("a", 900), Pin("b", 100)}, Roster(), &stale);
  EXPECT_FALSE(stale);
  EXPECT_EQ(s.machine, "b");
  EXPECT_EQ(s.notice, "");
  ASSERT_EQ(s.workers.size(), 3u);  // c has published nothing: the roster tells
  EXPECT_EQ(s.workers[2].machine, "c");
  EXPECT_EQ(s.workers[2].state, "no sign of life");
}

TEST(Merge, AStaleViewIsSaidToBeStaleAndAges) {
  bool stale = false;
  const auto s = MergeViews({Pin("a", 40'000)}, Roster(), &stale);
  EXPECT_TRUE(stale);
  EXPECT_EQ(s.phase, "no news");
  EXPECT_THAT(s.notice, AllOf(HasSubstr("no news for 40s"), HasSubstr("supervisor on a")));
  EXPECT_EQ(s.saved_age_s, 45);
  EXPECT_THAT(s.workers[0].state, HasSubstr("no news for 40s"));
}

TEST(Merge, OneSilentMachineAmongOthersIsSaidAtItsWorkers) {
  bool stale = true;
  const auto s = MergeViews({Pin("a", 40'000), Pin("b", 100)}, Roster(), &stale);
  EXPECT_FALSE(stale);
  EXPECT_EQ(s.workers[0].state, "training");
  EXPECT_THAT(s.workers[1].state, HasSubstr("no news"));
}

TEST(Merge, WhoHasLeftIsNoPartOfIt) {
  bool stale = true;
  auto s = MergeViews({Pin("a", 10, true), Pin("b", 2000)}, Roster(), &stale);
  EXPECT_EQ(s.machine, "b");
  EXPECT_FALSE(s.ended);
  for (const auto& w : s.workers) EXPECT_NE(w.machine, "a");
  s = MergeViews({Pin("a", 3'600'000, true)}, nlohmann::json::object(), &stale);  // an hour ago
  EXPECT_TRUE(s.ended);
  EXPECT_FALSE(stale);
}

TEST(Merge, WithoutViewsTheRosterHasToDo) {
  bool stale = true;
  auto s = MergeViews({{"a", "damaged", 5}}, Roster(), &stale);
  EXPECT_FALSE(stale);
  EXPECT_EQ(s.run, "book");
  EXPECT_EQ(s.generation, 4);
  EXPECT_EQ(s.world_size, 2);
  EXPECT_EQ(s.step, 99);
  EXPECT_EQ(s.workers.size(), 2u);
  auto roster = Roster();
  roster["finished"] = {{"step", 120}, {"state_digest", "00ff"}};
  s = MergeViews({}, roster, &stale);
  EXPECT_TRUE(s.ended);
  EXPECT_THAT(s.end_text, AllOf(HasSubstr("120"), HasSubstr("00ff")));
  s = MergeViews({}, nlohmann::json{{"exists", false}, {"members", nullptr}}, &stale);
  EXPECT_EQ(s.workers.size(), 0u);
}

}  // namespace
}  // namespace holdfast
