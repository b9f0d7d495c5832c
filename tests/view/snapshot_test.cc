// The snapshot as JSON: what others may send, and what fits.
#include "runtime/view/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/base/text.h"

namespace holdfast::view {
namespace {

Snapshot Full() {
  Snapshot s;
  s.run = "book";
  s.machine = "vm-1";
  s.phase = "training";
  s.step = 450;
  s.steps = 1000;
  s.generation = 3;
  s.world_size = 4;
  s.seconds_left = 130;
  s.step_age_s = 1;
  s.loss = 2.3141;
  s.eval_loss = 2.4;
  s.eval_step = 400;
  s.saved_step = 400;
  s.saved_age_s = 12;
  s.time_s = {84, 6, 2, 1, 7};
  s.workers.push_back({1, 2, 77, 3, 450, 1, "vm-1", "training", Tone::kGood});
  s.losses = {{1, 5.5}, {450, 2.3}};
  s.evals = {{400, 2.4}};
  s.events = {{9, "saved step 400", Tone::kGood}};
  return s;
}

TEST(Snapshot, ComesBackAsItWas) {
  const Snapshot s = Full();
  const auto back = FromJson(ToJson(s));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToJson(*back), ToJson(s));
  EXPECT_EQ(back->workers[0].state, "training");
  EXPECT_EQ(back->losses, s.losses);
  EXPECT_EQ(back->events[0].text, "saved step 400");
  EXPECT_TRUE(std::isnan(back->gradient_norm));
  EXPECT_EQ(back->time_s, s.time_s);
}

TEST(Snapshot, AgesGrow) {
  Snapshot s = Full();
  s.Age(10);
  EXPECT_EQ(s.saved_age_s, 22);
  EXPECT_EQ(s.step_age_s, 11);
  EXPECT_EQ(s.events[0].age_s, 19);
  s.saved_age_s = -1;  // not known stays not known
  s.Age(10);
  EXPECT_EQ(s.saved_age_s, -1);
  s.Age(-5);
  EXPECT_EQ(s.step_age_s, 21);
}

TEST(Snapshot, AlwaysFitsAndKeepsWhatMattersMost) {
  Snapshot s = Full();
  for (int i = 0; i < 5000; ++i) {
    s.workers.push_back({i, i, i, 1, 1, 0, "a-machine", std::string(300, 'x'), Tone::kGood});
    s.losses.push_back({1000 + i, 1.0 / 3});
    s.recent.push_back({i, 1.0 / 7});
    s.events.push_back({i, std::string(1000, 'e'), Tone::kBad});
  }
  const std::string text = ToJson(s);
  EXPECT_LE(text.size(), kSnapshotBytesMax);
  const auto back = FromJson(text);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->step, 450);
  EXPECT_FALSE(back->losses.empty());
  EXPECT_FALSE(back->events.empty());
  s.run = std::string(100'000, 'r');
  EXPECT_EQ(ToJson(s), "{}");
}

TEST(Snapshot, WhateverOthersSendIsTakenOrRefused) {
  EXPECT_FALSE(FromJson("").ok());
  EXPECT_FALSE(FromJson("[1]").ok());
  EXPECT_FALSE(FromJson("{\"run\":").ok());
  EXPECT_FALSE(FromJson(std::string(kSnapshotBytesMax + 1, ' ')).ok());
  const auto odd = FromJson(
      R"({"run":7,"step":"x","loss":"nan","workers":[1,{"slot":"a"},[]],"losses":[[1],[2,3],[2,4],"x"],)"
      R"("events":{},"tone":99,"time_s":[1]})");
  ASSERT_TRUE(odd.ok());
  EXPECT_EQ(odd->run, "");
  EXPECT_EQ(odd->step, 0);
  EXPECT_EQ(odd->workers.size(), 1u);
  EXPECT_EQ(odd->losses, (std::vector<Point>{{2, 3}}));
  EXPECT_EQ(odd->tone, Tone::kQuiet);
}

}  // namespace
}  // namespace holdfast::view
