// The view: what it shows, that it fits any window, and what stays longest.
#include "runtime/view/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "runtime/base/text.h"
#include "runtime/view/text.h"

namespace holdfast::view {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Snapshot Busy() {
  Snapshot s;
  s.run = "book";
  s.machine = "vm";
  s.phase = "training";
  s.tone = Tone::kGood;
  s.up_s = 7300;
  s.step = 450'000;
  s.steps = 1'000'000;
  s.loss = 2.3141;
  s.eval_loss = 2.4012;
  s.eval_step = 449'750;
  s.gradient_norm = 0.873;
  s.learning_rate = 9.6e-4;
  s.tokens_per_s = 41'234;
  s.flops_per_s = 43.7e9;
  s.step_s = 0.0186;
  s.world_size = 3;
  s.generation = 2;
  s.saved_step = 449'800;
  s.saved_age_s = 252;
  s.seconds_left = 130;
  s.step_age_s = 0;
  s.workers_lost = 1;
  s.recovery_ms = 80;
  s.steps_lost = 12;
  s.time_s = {84, 6, 2, 1, 7};
  for (int i = 0; i < 4; ++i)
    s.workers.push_back({i, i, 100 + i, 2, 450'000, i == 2 ? 1 : 0, "vm",
                         i == 2 ? "dead" : "training", i == 2 ? Tone::kBad : Tone::kGood});
  for (int i = 1; i <= 200; ++i) s.losses.push_back({i * 2250, 2 + 3.0 / i});
  for (int i = 0; i < 100; ++i) s.recent.push_back({449'901 + i, 2.31 + 0.01 * (i % 5)});
  for (int i = 1; i <= 20; ++i) s.evals.push_back({i * 22'000, 2.4 + 2.0 / i});
  for (int i = 0; i < 30; ++i)
    s.events.push_back({300 - 10 * i, Cat("event number ", i), Tone::kQuiet});
  return s;
}

std::string Text(const Snapshot& s, int width, int height, bool utf8 = false, bool colour = false) {
  return absl::StrJoin(Draw(s, {width, height, utf8, colour}), "\n");
}

TEST(Draw, ShowsWhatAPersonWantsToKnow) {
  const std::string text = Text(Busy(), 120, 40);
  for (const char* part : {"book",
                           "training",
                           "3 workers",
                           "generation 2",
                           "up 2h 1m",
                           "45%",
                           "450,000 of 1,000,000",
                           "2m 10s left",
                           "loss 2.3141",
                           "held-out 2.4012 at step 449,750",
                           "gradient norm 0.873",
                           "9.60e-04",
                           "41.2k tokens/s",
                           "43.7 GFLOP/s",
                           "18.6 ms a step",
                           "checkpoint step 449,800, 4m 12s ago",
                           "1 worker lost",
                           "last recovery 80 ms",
                           "12 steps computed again",
                           "compute 84%",
                           "lost 7.0%",
                           "worker 2",
                           "dead",
                           "died once",
                           "pid 103",
                           "event number 29",
                           "10s ago",
                           "loss, o held-out",
                           "newest steps"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(Draw, FitsAnyWindowInAnyDress) {
  const Snapshot busy = Busy();
  Snapshot odd = busy;
  odd.run = "数据\x1b[2J";
  odd.notice = "no news for 40s";
  odd.events.back().text = std::string(500, 'x') + "\n\x1b]0;title\x07 ü 数据数据";
  odd.workers.clear();
  odd.ended = true;
  odd.end_text = "first\nsecond";
  for (const Snapshot& s : {busy, odd, Snapshot()}) {
    for (int width = 1; width < 200; width = width < 40 ? width + 1 : width + 7) {
      for (int height = 1; height < 60; ++height) {
        for (const bool utf8 : {false, true}) {
          const auto lines = Draw(s, {width, height, utf8, false});
          ASSERT_LE(lines.size(), static_cast<size_t>(height));
          ASSERT_FALSE(lines.empty());
          for (const std::string& line : lines) {
            ASSERT_LE(Columns(line), width) << line;
            ASSERT_EQ(line.find_first_of("\n\r\x1b\x07"), std::string::npos) << line;
            if (!utf8) {
              for (const char c : line) ASSERT_GE(c, ' ');
            }
          }
        }
      }
    }
  }
}

TEST(Draw, ProgressStaysLongestAndANoticeNextToIt) {
  Snapshot s = Busy();
  EXPECT_THAT(Text(s, 80, 1), AllOf(HasSubstr("45%"), HasSubstr("left")));
  EXPECT_THAT(Text(s, 80, 2), AllOf(HasSubstr("45%"), HasSubstr("loss 2.3141")));
  s.notice = "no news for 40s";
  EXPECT_THAT(Text(s, 80, 2), AllOf(HasSubstr("45%"), HasSubstr("no news for 40s")));
  EXPECT_THAT(Text(s, 9, 1), HasSubstr("45%"));
}

TEST(Draw, ColoursOnlyWhereWanted) {
  EXPECT_EQ(Text(Busy(), 100, 30).find('\x1b'), std::string::npos);
  EXPECT_THAT(Text(Busy(), 100, 30, true, true), HasSubstr("\x1b[32m"));
}

TEST(Draw, TroubleIsNotHiddenByASummaryOfWorkers) {
  Snapshot s = Busy();
  for (int i = 4; i < 64; ++i)
    s.workers.push_back({i, i, 100, 2, 1, 0, "vm", "training", Tone::kGood});
  const std::string text = Text(s, 100, 24);
  EXPECT_THAT(text, AllOf(HasSubstr("dead"), HasSubstr(" more: "), HasSubstr(" training")));
}

TEST(Draw, MachinesAreNamedWhereThereAreSeveral) {
  Snapshot s = Busy();
  EXPECT_THAT(Text(s, 120, 40), Not(HasSubstr("on vm")));
  s.workers.back().machine = "other";
  EXPECT_THAT(Text(s, 120, 40), AllOf(HasSubstr("on vm"), HasSubstr("on other")));
}

TEST(Draw, SilenceAndWhatIsMissingAreSaid) {
  Snapshot s = Busy();
  EXPECT_THAT(Text(s, 100, 20), Not(HasSubstr("no step for")));
  s.step_age_s = 40;
  EXPECT_THAT(Text(s, 120, 20), HasSubstr("no step for 40s"));
  s.saved_step = -1;
  s.save_failures = 2;
  s.loss = NAN;
  EXPECT_THAT(Text(s, 120, 20),
              AllOf(HasSubstr("none saved yet"), HasSubstr("2 saves failed"), HasSubstr("loss ?")));
}

TEST(Draw, APlainLineIsOneLine) {
  Snapshot s = Busy();
  s.notice = "two\nlines\x1b[2J";
  const std::string line = PlainLine(s);
  EXPECT_EQ(line.find_first_of("\n\x1b"), std::string::npos);
  EXPECT_THAT(line, AllOf(HasSubstr("450000/1000000"), HasSubstr("2m 10s left")));
}

}  // namespace
}  // namespace holdfast::view
