#include "chaos/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "runtime/base/digest.h"
#include "runtime/base/text.h"

namespace holdfast::chaos {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

SpawnOptions Shell(const std::string& script) {
  return {.args = {"/bin/sh", "-c", script},
          .output_path = Cat(::testing::TempDir(), "process_", Hex64(RandomNonce()))};
}

TEST(Process, EndsWithItsCodeAndOutput) {
  SpawnOptions options = Shell("read line; echo \"$line $GREETING\"; echo to-stderr >&2; exit 7");
  options.env["GREETING"] = "hello";
  options.input = "input\n";
  auto child = ChildProcess::Start(options);
  ASSERT_TRUE(child.ok()) << child.status();
  const auto end = (*child)->Wait(Deadline::After(20'000));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->Text(), "exit 7");
  EXPECT_EQ((*child)->Output(), "input hello\nto-stderr\n");
  EXPECT_FALSE((*child)->Signal(SIGTERM).ok());
}

TEST(Process, AMissingProgramIsExit127) {
  SpawnOptions options = Shell("");
  options.args = {"/no/such/program"};
  auto child = ChildProcess::Start(options);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ((*child)->Wait(Deadline::After(20'000))->Text(), "exit 127");
}

TEST(Process, WaitHasADeadlineAndSeesASignal) {
  auto child = ChildProcess::Start(Shell("exec sleep 100"));
  ASSERT_TRUE(child.ok());
  EXPECT_EQ((*child)->Wait(Deadline::After(50)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE((*child)->Signal(SIGKILL).ok());
  const auto end = (*child)->Wait(Deadline::After(20'000));
  ASSERT_TRUE(end.ok());
  EXPECT_THAT(end->Text(), HasSubstr("signal 9"));
}

TEST(Process, TooMuchOutputIsAFault) {
  SpawnOptions options = Shell("yes");
  options.output_limit_bytes = 100'000;
  auto child = ChildProcess::Start(options);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ((*child)->Wait(Deadline::After(20'000)).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// A grandchild in a session of its own is found by the mark and does not outlive the ChildProcess.
TEST(Process, NothingOutlivesTheDrill) {
  std::string mark;
  {
    auto child = ChildProcess::Start(Shell("setsid sleep 100 & exec sleep 100"));
    ASSERT_TRUE(child.ok());
    mark = (*child)->mark();
    ASSERT_TRUE(
        WaitUntil(Deadline::After(20'000), [&] { return MarkedProcesses(mark).size() == 2; }));
  }
  EXPECT_THAT(MarkedProcesses(mark), SizeIs(0));
}

TEST(Process, FindsWorkersBySlot) {
  auto child =
      ChildProcess::Start(Shell("sh -c 'sleep 100; :' worker --slot 1 & sh -c 'sleep 100; :' "
                                "worker --slot=0 & sh -c 'sleep 100; :' other & wait"));
  ASSERT_TRUE(child.ok());
  const pid_t pid = (*child)->pid();
  ASSERT_TRUE(WaitUntil(Deadline::After(20'000), [&] { return WorkersOf(pid).size() == 2; }));
  EXPECT_EQ(WorkersOf(pid)[0].slot, 0);
  const auto worker = WorkerInSlot(pid, 1);
  ASSERT_TRUE(worker.has_value());
  EXPECT_THAT(worker->process.args, ::testing::Contains("1"));
  EXPECT_FALSE(WorkerInSlot(pid, 2).has_value());
}

}  // namespace
}  // namespace holdfast::chaos
