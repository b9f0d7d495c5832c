// Damaged and full disks: never a silent use of damaged bytes, never a start from zero where
// progress is on record.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "runtime/base/text.h"
#include "tests/process/train_run.h"

namespace holdfast::testing {
namespace {

namespace fs = std::filesystem;
using chaos::FaultKind;

// The data files of all slots' stores, newest first.
std::vector<fs::path> DataFiles(const std::string& dir) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(dir + "/slots")) {
    if (entry.path().extension() == ".sst" && entry.file_size() > 20'000)
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(fs::last_write_time(a), a) > std::pair(fs::last_write_time(b), b);
  });
  return files;
}

void FlipByteInTheMiddle(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
  file.seekg(middle);
  const char byte = static_cast<char>(file.get());
  file.seekp(middle);
  file.put(static_cast<char>(byte ^ 0x10));
  ASSERT_TRUE(file.good()) << path;
}

// The step of the newest checkpoint that the run calls saved.
int64_t NewestSaved(const std::string& dir) {
  int64_t newest = 0;
  const auto events = chaos::ReadEvents(dir);
  if (!events.ok()) return 0;
  for (const chaos::EventLine& event : *events) {
    const bool saved = event.line.find("\"phase\":\"saved\"") != std::string::npos;
    if (event.kind == "save" && saved) newest = std::max(newest, event.step);
  }
  return newest;
}

// A run that was killed when three checkpoints were saved, the newest at step 30 or a little later.
std::string KilledRun(int workers, int keep = 3) {
  const std::string dir = FreshFolder("damaged");
  TrainRun run({.dir = dir,
                .flags = {{"workers", Cat(workers)}, {"keep", Cat(keep)}},
                .failpoints = "step.begin=sleep(40)"});
  EXPECT_TRUE(chaos::WaitUntil(
      Deadline::After(kRunMs), [&] { return NewestSaved(dir) >= 30 || run.process().Poll(); }, 10));
  run.Do({.kind = FaultKind::kKillAll, .at_step = 30});
  run.WaitText();
  run.ExpectNoResidue(true);
  return dir;
}

TEST(Damage, OneFlippedByteInTheNewestCheckpoint) {
  const std::string dir = KilledRun(1);
  const std::vector<fs::path> files = DataFiles(dir);
  ASSERT_GE(files.size(), 2u);
  FlipByteInTheMiddle(files[0]);
  const CommandResult verify = Command({"checkpoint", "verify", "--dir", dir});
  EXPECT_NE(verify.code, 0) << verify.output;
  TrainRun run({.dir = dir, .flags = {{"workers", "2"}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(dir);
  EXPECT_GE(CountEventLines(dir, "checkpoint_skipped"), 1) << run.Output();
  run.ExpectNoResidue();
}

TEST(Damage, EveryCheckpointDamagedIsRefused) {
  const std::string dir = KilledRun(1);
  for (const fs::path& path : DataFiles(dir)) FlipByteInTheMiddle(path);
  TrainRun run({.dir = dir, .flags = {{"workers", "2"}, {"restore-wait-ms", "2000"}}});
  EXPECT_EQ(run.Wait(), static_cast<int>(ExitCode::kCheckpoint)) << run.Output();
  run.ExpectNoResidue();
}

TEST(Damage, ASlotsStoreIsGone) {
  const std::string dir = KilledRun(3);
  fs::remove_all(dir + "/slots/1");
  TrainRun run({.dir = dir, .flags = {{"workers", "3"}, {"restore-wait-ms", "2000"}}});
  const int code = run.Wait();
  // One copy of each range on one machine: without slot 1 no checkpoint is whole. Refused, never
  // step 0.
  EXPECT_EQ(code, static_cast<int>(ExitCode::kCheckpoint)) << run.Output();
  run.ExpectNoResidue();
}

TEST(Damage, ATornLineOfSteps) {
  const std::string dir = KilledRun(2);
  std::ofstream(dir + "/steps.jsonl", std::ios::app) << "{\"step\":37,\"lo";
  TrainRun run({.dir = dir, .flags = {{"workers", "2"}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(dir);
}

// `checkpoint list` and `verify` on a healthy run. Nothing is pruned in it: a kill in the middle of
// a prune leaves an old checkpoint that is rightly shown as incomplete (FORMAT.md, "After a
// crash").
TEST(Damage, ListAndVerify) {
  const std::string dir = KilledRun(2, 100);
  const CommandResult list = Command({"checkpoint", "list", "--dir", dir});
  EXPECT_EQ(list.code, 0) << list.output;
  EXPECT_NE(list.output.find(Cat(NewestSaved(dir))), std::string::npos) << list.output;
  const CommandResult verify = Command({"checkpoint", "verify", "--dir", dir});
  EXPECT_EQ(verify.code, 0) << verify.output;
}

// A disk that is full from the start of the second save on: training goes on, the failure is on
// record, the run ends with its own code after --checkpoint-max-failures or, with room for one
// more, finishes.
TEST(Damage, DiskFull) {
  const std::string dir = FreshFolder("full");
  fs::create_directories(dir);
  if (mount("holdfast-test", dir.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, "size=64m") != 0) {
    std::printf(
        "tmpfs cannot be mounted here (not root): this fault is covered by the storage tests "
        "only\n");
    return;
  }
  {
    TrainRun run({.dir = dir,
                  .flags = {{"workers", "1"}, {"checkpoint-max-failures", "3"}},
                  .failpoints = "step.begin=sleep(10)"});
    ASSERT_TRUE(run.WaitForStep(12));
    // Takes the rest of the room, but for what logs need.
    std::ofstream filler(dir + "/filler", std::ios::binary);
    const std::string block(1 << 16, 'x');
    while (fs::space(dir).available > (1 << 18) && filler.good())
      filler.write(block.data(), block.size()).flush();
    EXPECT_EQ(run.Wait(), static_cast<int>(ExitCode::kCheckpoint)) << run.Output();
    run.ExpectNoResidue();
    EXPECT_GE(CountEventLines(dir, "\"phase\":\"failed\""), 1);
  }
  fs::remove(dir + "/filler");
  TrainRun run({.dir = dir, .flags = {{"workers", "2"}}});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameBits(dir);
  EXPECT_EQ(umount(dir.c_str()), 0);
}

}  // namespace
}  // namespace holdfast::testing
