// Line files and the step log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/digest.h"
#include "runtime/base/text.h"
#include "runtime/supervisor/line_file.h"
#include "runtime/supervisor/step_log.h"

namespace holdfast {
namespace {

using Outcome = StepLog::Outcome;
using ::testing::HasSubstr;

class Books : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = (std::filesystem::temp_directory_path() / "holdfast-books-XXXXXX").string();
    dir_ = mkdtemp(path.data());
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string Path() const { return dir_ + "/steps.jsonl"; }
  static std::string Line(int64_t step, uint64_t digest) {
    return Cat("{\"step\":", step, ",\"state_digest\":\"", Hex64(digest), "\"}");
  }
  static Outcome Add(StepLog& log, int64_t step, uint64_t digest, int64_t now_ms = 0) {
    return log.Add(step, Hex64(digest), Line(step, digest), now_ms);
  }
  std::string dir_;
};

TEST_F(Books, TornTailsOfAnyLengthAreCut) {
  for (const size_t tail : {1, 100, 4095, 4096, 4097, 20'000}) {
    std::ofstream(Path(), std::ios::trunc) << "one\ntwo\n" << std::string(tail, 'x');
    auto file = LineFile::Open(Path());
    ASSERT_TRUE(file.ok());
    EXPECT_EQ((*file)->cut_bytes(), static_cast<int64_t>(tail));
    EXPECT_TRUE((*file)->Append("three"));
    EXPECT_EQ(*ReadSmallFile(Path()), "one\ntwo\nthree\n");
  }
}

TEST_F(Books, AFileOfOneTornLineBecomesEmpty) {
  std::ofstream(Path()) << std::string(9000, 'y');
  ASSERT_TRUE(LineFile::Open(Path()).ok());
  EXPECT_EQ(*ReadSmallFile(Path()), "");
}

TEST_F(Books, EachStepOnceWhoeverReportsIt) {
  auto log = StepLog::Open(Path());
  ASSERT_TRUE(log.ok());
  for (int64_t step = 1; step <= 50; ++step) {
    EXPECT_EQ(Add(**log, step, 7 * step), Outcome::kWritten);
    EXPECT_EQ(Add(**log, step, 7 * step), Outcome::kKnown);
  }
  EXPECT_EQ(Add(**log, 20, 1), Outcome::kDiffers);
  EXPECT_EQ((*log)->last_step(), 50);
  *log = nullptr;
  auto again = StepLog::Open(Path());  // another life: resumed at 40
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(Add(**again, 41, 7 * 41), Outcome::kKnown);
  EXPECT_EQ(Add(**again, 42, 5), Outcome::kDiffers);
  EXPECT_EQ(Add(**again, 51, 7 * 51), Outcome::kWritten);
  int lines = 0;
  ForEachLine(Path(), [&](std::string_view) { ++lines; });
  EXPECT_EQ(lines, 51);
}

// After an accepted change the run forks at step 30: what was taken beyond it moves aside, and the
// new steps take their place. Following the same branches again changes nothing.
TEST_F(Books, StepsOfAnAbandonedHistoryMoveAside) {
  const std::vector<std::pair<uint32_t, int64_t>> forks = {{0, 0}, {1, 30}};
  const auto on_branch = [](int64_t step) {
    return Cat("{\"step\":", step, ",\"state_digest\":\"", Hex64(9 * step), "\",\"branch\":1}");
  };
  {
    auto log = StepLog::Open(Path());
    ASSERT_TRUE(log.ok());
    for (int64_t step = 1; step <= 40; ++step) Add(**log, step, 7 * step);
    ASSERT_TRUE((*log)->Follow({{0, 0}}).ok());
    EXPECT_EQ((*log)->last_step(), 40);
    ASSERT_TRUE((*log)->Follow(forks).ok());
    EXPECT_EQ((*log)->last_step(), 30);
    EXPECT_EQ(Add(**log, 30, 7 * 30), Outcome::kKnown);
    EXPECT_EQ(Add(**log, 30, 1), Outcome::kDiffers);
    EXPECT_EQ((*log)->Add(31, Hex64(9 * 31), on_branch(31), 0), Outcome::kWritten);
  }
  auto again = StepLog::Open(Path());
  ASSERT_TRUE(again.ok());
  ASSERT_TRUE((*again)->Follow(forks).ok());
  EXPECT_EQ((*again)->last_step(), 31);
  EXPECT_EQ((*again)->Add(32, Hex64(9 * 32), on_branch(32), 0), Outcome::kWritten);
  int lines = 0, aside = 0;
  ForEachLine(Path(), [&](std::string_view) { ++lines; });
  ForEachLine(dir_ + "/steps.branch-0.jsonl", [&](std::string_view) { ++aside; });
  EXPECT_EQ(lines, 32);
  EXPECT_EQ(aside, 10);
}

TEST_F(Books, AMissingStepIsWaitedForAndThenGivenUp) {
  auto log = StepLog::Open(Path());
  ASSERT_TRUE(log.ok());
  Add(**log, 1, 1);
  EXPECT_EQ(Add(**log, 3, 3, 100), Outcome::kHeld);
  EXPECT_EQ(Add(**log, 3, 4, 100), Outcome::kDiffers);
  EXPECT_EQ((*log)->last_step(), 1);
  EXPECT_EQ(Add(**log, 2, 2, 200), Outcome::kWritten);  // came from another worker: order is kept
  EXPECT_EQ((*log)->last_step(), 3);
  EXPECT_EQ(Add(**log, 6, 6, 300), Outcome::kHeld);
  (*log)->Flush(400, false);
  EXPECT_EQ((*log)->last_step(), 3);
  (*log)->Flush(10'000, false);
  EXPECT_EQ((*log)->last_step(), 6);
  EXPECT_EQ((*log)->missing(), 2);
}

TEST_F(Books, FilesAreReplacedWhole) {
  ASSERT_TRUE(WriteFileAtomically(dir_ + "/f", "old").ok());
  ASSERT_TRUE(WriteFileAtomically(dir_ + "/f", "new", 0600).ok());
  EXPECT_EQ(*ReadSmallFile(dir_ + "/f"), "new");
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/f.new"));
  EXPECT_FALSE(WriteFileAtomically(dir_ + "/no/f", "x").ok());
}

}  // namespace
}  // namespace holdfast
