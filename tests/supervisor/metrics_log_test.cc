// metrics.csv and the event files across kills and resumes; the metrics page; workers in the view.
#include "runtime/supervisor/metrics_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_split.h"
#include "runtime/base/clock.h"
#include "runtime/supervisor/metrics_page.h"
#include "runtime/supervisor/report.h"
#include "runtime/supervisor/run_view.h"

namespace holdfast {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Metrics : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = (fs::temp_directory_path() / "holdfast-metrics-XXXXXX").string();
    dir_ = mkdtemp(path.data());
  }
  void TearDown() override { fs::remove_all(dir_); }
  std::unique_ptr<MetricsLog> Open(bool tensorboard = true) const {
    auto log = MetricsLog::Open(dir_, tensorboard);
    EXPECT_TRUE(log.ok()) << log.status();
    return std::move(*log);
  }
  static void Append(MetricsLog& log, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; step += 10) {
      metrics::Row row;
      row.step = step;
      row.loss = 5.0 / static_cast<double>(step);
      log.Append(row);
    }
  }
  std::string Csv() const { return *ReadSmallFile(dir_ + "/metrics.csv"); }
  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    ForEachLine(dir_ + "/metrics.csv", [&](std::string_view line) {
      if (metrics::CsvStep(line) >= 0) steps.push_back(metrics::CsvStep(line));
    });
    return steps;
  }
  // The event files in the order in which TensorBoard reads them.
  std::vector<std::string> EventFiles() const {
    std::vector<std::string> files;
    if (!fs::exists(dir_ + "/tensorboard")) return files;
    for (const auto& entry : fs::directory_iterator(dir_ + "/tensorboard"))
      files.push_back(*ReadSmallFile(entry.path().string()));
    std::sort(files.begin(), files.end());
    return files;
  }
  std::string dir_;
};

TEST_F(Metrics, AResumedRunHasEachStepOnce) {
  {
    const auto log = Open();
    Append(*log, 10, 270);
  }
  const std::string before = Csv();
  {
    const auto log = Open();  // resumed from a checkpoint at 250
    EXPECT_EQ(log->last_step(), 270);
    Append(*log, 260, 300);
  }
  EXPECT_TRUE(Csv().starts_with(before));
  std::vector<int64_t> expected;
  for (int64_t step = 10; step <= 300; step += 10) expected.push_back(step);
  EXPECT_EQ(Steps(), expected);
  EXPECT_EQ(Csv().find("step,"), Csv().rfind("step,wall"));  // one header
  EXPECT_EQ(EventFiles().size(), 2u);
}

TEST_F(Metrics, ABranchLeavesLaterRowsBehind) {
  Append(*Open(), 10, 270);
  const auto log = Open();
  ASSERT_TRUE(log->CutAfter(300).ok());
  EXPECT_EQ(Steps().size(), 27u);
  ASSERT_TRUE(log->CutAfter(250).ok());
  EXPECT_EQ(log->last_step(), 250);
  Append(*log, 260, 300);
  EXPECT_EQ(Steps().size(), 30u);
  EXPECT_TRUE(Csv().starts_with(metrics::CsvHeader() + "\n10,"));
  std::vector<int64_t> left;
  ForEachLine(dir_ + "/metrics.left.csv",
              [&](std::string_view line) { left.push_back(metrics::CsvStep(line)); });
  EXPECT_EQ(left, (std::vector<int64_t>{260, 270}));
  EXPECT_EQ(EventFiles().size(), 2u);
}

TEST_F(Metrics, TheBooksFollowABranch) {
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  Console console(nowhere, nowhere);
  Config config;
  config.log_every = 1;
  config.eval_every = 2;
  const auto report = [&] {
    auto opened = Report::Open(dir_, config, "vm", &console);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return std::move(*opened);
  };
  const auto steps = [](Report& r, int64_t first, int64_t last, int branch, double loss) {
    for (int64_t step = first; step <= last; ++step) {
      if (step % 2 == 0) r.OnMessage(0, {{"type", "eval"}, {"step", step}, {"loss", loss}});
      r.OnMessage(0, {{"type", "step"},
                      {"step", step},
                      {"digest", Cat("0123456789abc", branch, step < 10 ? "0" : "", step)},
                      {"loss", loss},
                      {"branch", branch}});
    }
  };
  {
    const auto first = report();
    first->OnMessage(0, {{"type", "joined"}, {"generation", 1}, {"step", 0}, {"forks", {{0u, 0}}}});
    steps(*first, 1, 9, 0, 5.0);
  }
  const auto second = report();
  EXPECT_EQ(second->Snapshot(BootMs()).eval_step, 8);
  second->OnMessage(
      0, {{"type", "joined"}, {"generation", 2}, {"step", 6}, {"forks", {{0u, 0}, {1u, 6}}}});
  view::Snapshot s = second->Snapshot(BootMs());
  EXPECT_EQ(s.losses.back().step, 6);
  EXPECT_EQ(s.evals.back().step, 6);
  EXPECT_EQ(s.eval_step, -1);
  steps(*second, 7, 12, 1, 4.0);
  EXPECT_EQ(second->corrupt(), "");
  s = second->Snapshot(BootMs());
  EXPECT_EQ(s.losses.back(), (view::Point{12, 4.0}));
  EXPECT_EQ(s.recent[6], (view::Point{7, 4.0}));
  EXPECT_EQ(s.evals.back(), (view::Point{12, 4.0}));
  std::vector<int64_t> expected;
  for (int64_t step = 1; step <= 12; ++step) expected.push_back(step);
  EXPECT_EQ(Steps(), expected);
  close(nowhere);
}

TEST_F(Metrics, ATornRowIsCutAndWrittenAgain) {
  Append(*Open(), 10, 50);
  const std::string whole = Csv();
  for (const char* torn : {"6", "60,17960", "60,1796000000.1,0.08,,,,0,0.0,0,0.0,4,3,"}) {
    std::ofstream(dir_ + "/metrics.csv", std::ios::trunc) << whole << torn;
    const auto log = Open();
    EXPECT_EQ(log->last_step(), 50) << torn;
    Append(*log, 60, 60);
    EXPECT_EQ(Steps(), (std::vector<int64_t>{10, 20, 30, 40, 50, 60})) << torn;
  }
  std::ofstream(dir_ + "/metrics.csv", std::ios::trunc) << "step,wa";  // killed in the header
  Append(*Open(), 10, 10);
  EXPECT_TRUE(Csv().starts_with(metrics::CsvHeader() + "\n10,"));
}

TEST_F(Metrics, ALifeWithoutARowLeavesNoEventFile) {
  (void)Open();
  EXPECT_TRUE(EventFiles().empty());
  Append(*Open(false), 10, 20);
  EXPECT_FALSE(fs::exists(dir_ + "/tensorboard"));
}

TEST_F(Metrics, AFolderThatCannotBeMadeCostsTheEventsOnly) {
  std::ofstream(dir_ + "/tensorboard") << "in the way";
  const auto log = Open();
  Append(*log, 10, 30);
  EXPECT_EQ(Steps().size(), 3u);
  EXPECT_THAT(log->TakeWarning(), HasSubstr("tensorboard"));
  EXPECT_EQ(log->TakeWarning(), "");
}

TEST_F(Metrics, TheTimeOfAWorkerThatDiedStaysOnTheAccount) {
  Config config;
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  Console console(nowhere, nowhere);
  auto report = Report::Open(dir_, config, "vm", &console);
  ASSERT_TRUE(report.ok()) << report.status();
  (*report)->OnMessage(0, {{"type", "step"},
                           {"step", 1},
                           {"digest", "0123456789abcdef"},
                           {"loss", 2.5},
                           {"time", {{"compute", 6.0}, {"reduce", 2.0}}}});
  (*report)->OnFault(0, 1, "killed", BootMs(), Json::object());
  const Json time = (*report)->SummaryJson(ExitCode::kOk, "")["time"];
  EXPECT_EQ(time["compute"], 6.0);
  EXPECT_EQ(time["reduce"], 2.0);
  EXPECT_LT(time["lost"], 5.0);
  close(nowhere);
}

TEST(RunView, KnowsWhatEachWorkerDoes) {
  RunView view(0);
  const auto event = [&](const char* kind, nlohmann::json fields,
                         LogLevel level = LogLevel::kInfo) {
    view.OnEvent(kind, level, kind, fields, 1000);
  };
  const auto state = [&](int slot) {
    view::Snapshot s;
    view.Fill(2000, &s);
    for (const view::WorkerLine& w : s.workers) {
      if (w.slot == slot) return w.state;
    }
    return std::string("none");
  };
  const auto phase = [&] {
    view::Snapshot s;
    view.Fill(2000, &s);
    return s.phase;
  };
  EXPECT_EQ(phase(), "starting");
  event("start", {{"worker", 0}, {"pid", 7}}, LogLevel::kDebug);
  event("start", {{"worker", 1}, {"pid", 8}}, LogLevel::kDebug);
  EXPECT_EQ(state(0), "starting");
  for (const int slot : {0, 1}) {
    event("joined", {{"worker", slot}, {"rank", slot}, {"step", 5}, {"generation", 1}});
    view.OnWorkerStep(slot, 6);
  }
  EXPECT_EQ(state(1), "training");
  EXPECT_EQ(phase(), "training");
  event("death", {{"worker", 1}, {"step", 6}}, LogLevel::kError);
  event("lost", {{"worker", 0}}, LogLevel::kDebug);
  EXPECT_EQ(state(0), "regrouping");
  EXPECT_EQ(state(1), "dead");
  EXPECT_EQ(phase(), "regrouping");
  event("joined", {{"worker", 0}, {"rank", 0}, {"step", 6}, {"generation", 2}});
  view.OnWorkerStep(0, 7);
  EXPECT_EQ(phase(), "training");
  event("stopped", {{"worker", 0}});
  EXPECT_EQ(state(0), "stopped");
  event("drain", {{"cause", "SIGINT"}});
  EXPECT_EQ(phase(), "stopping");
  view::Snapshot s;
  view.Fill(61'000, &s);
  EXPECT_EQ(s.events.back().text, "drain");
  EXPECT_EQ(s.events.back().age_s, 60);
  EXPECT_EQ(s.workers[1].deaths, 1);
}

TEST(RunView, SavesAgeAndFailuresCountUntilTheNext) {
  RunView view(0);
  view.OnEvent("save", LogLevel::kWarning, "failed", {{"worker", 0}, {"phase", "failed"}}, 500);
  view::Snapshot s;
  view.Fill(1000, &s);
  EXPECT_EQ(s.saved_step, -1);
  EXPECT_EQ(s.save_failures, 1);
  view.OnSaved(50, 2000);
  view.OnSaved(40, 9000);  // comes late
  view.Fill(12'000, &s);
  EXPECT_EQ(s.saved_step, 50);
  EXPECT_EQ(s.saved_age_s, 10);
  EXPECT_EQ(s.save_failures, 0);
}

TEST(RunView, WhatComesOftenDoesNotPushOutWhatCameOnce) {
  RunView view(0);
  view.OnEvent("death", LogLevel::kError, "worker 1 died", Json::object(), 0);
  for (int i = 0; i < 500; ++i) {
    view.OnEvent("save", LogLevel::kInfo, Cat("saved step ", i), {{"phase", "saved"}}, i);
    view.OnEvent("eval", LogLevel::kInfo, "held-out loss", Json::object(), i);
    view.OnEvent("best", LogLevel::kInfo, Cat("smallest so far: ", i), Json::object(), i);
  }
  view::Snapshot s;
  view.Fill(1000, &s);
  ASSERT_EQ(s.events.size(), 3u);
  EXPECT_EQ(s.events[0].text, "worker 1 died");
  EXPECT_EQ(s.events[1].text, "saved step 499");
  EXPECT_EQ(s.events[2].text, "smallest so far: 499");
}

// Every metric: named by the conventions, with HELP and TYPE, each once.
TEST(MetricsPage, FollowsTheConventions) {
  view::Snapshot s;
  s.run = "book";
  s.step = 5;
  s.loss = 2.5;
  s.eval_step = 5;
  s.eval_loss = 2.6;
  s.gradient_norm = 0.5;
  s.learning_rate = 1e-3;
  s.saved_step = 5;
  s.saved_age_s = 3;
  s.step_s = 0.1;
  s.seconds_left = 9;
  RunCounters counters;
  counters.steps = 5;
  counters.worker_s[0] = 1.5;
  const std::string page = MetricsPage(s, counters, {{"training", 3}, {"dead", 1}});
  EXPECT_THAT(page, AllOf(HasSubstr("holdfast_step 5\n"), HasSubstr("holdfast_train_loss 2.5\n"),
                          HasSubstr("holdfast_workers{state=\"training\"} 3\n"),
                          HasSubstr("holdfast_worker_seconds_total{activity=\"compute\"} 1.5\n"),
                          HasSubstr("holdfast_checkpoint_age_seconds 3\n"),
                          HasSubstr("holdfast_run_info{run=\"book\"")));
  std::string name, type;
  std::set<std::string> seen;
  const std::vector<std::string> lines = absl::StrSplit(page, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words[1] == "HELP") {
      name = words[2];
      EXPECT_TRUE(seen.insert(name).second) << name;
      EXPECT_TRUE(name.starts_with("holdfast_"));
      EXPECT_GT(words.size(), 4u);
    } else if (words[1] == "TYPE") {
      EXPECT_EQ(words[2], name);
      type = words[3];
      EXPECT_EQ(type == "counter", name.ends_with("_total")) << name;
    } else {
      EXPECT_EQ(line.substr(0, line.find_first_of("{ ")), name);
    }
  }
  EXPECT_GE(seen.size(), 25u);
  s = view::Snapshot();
  EXPECT_THAT(MetricsPage(s, counters, {}),
              AllOf(Not(HasSubstr("NaN")), Not(HasSubstr("holdfast_checkpoint_age"))));
}

}  // namespace
}  // namespace holdfast
