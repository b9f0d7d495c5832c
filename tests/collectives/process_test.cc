// Real processes: one is killed or stopped in the middle of a large all-reduce or while nothing is
// queued; how long until every survivor knows. The times are printed; the bounds only catch
// hanging, since the machine may be loaded. And: 200 rebuilds among survivors in one process leave
// descriptors, threads and memory as they were.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/collectives/members.h"
#include "tests/collectives/world.h"

namespace holdfast {
namespace {

constexpr int64_t kHardBoundMs = 2000;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const char kReduce[] = " reduce 8388608";  // every byte costs many times as much there
constexpr uint64_t kRebuilds = 60;
#else
constexpr uint64_t kRebuilds = 200;
const char kReduce[] = " reduce 67108864";
#endif

// Brings the world into the middle of a reduction: the victim has begun round 2. Says how long each
// round took: a test that was slow shows where.
void AwaitMiddle(MemberWorld& members, int victim) {
  const int64_t start_us = BootUs();
  std::string line;
  do {
    line = members[victim].Hear(60'000);
    ASSERT_EQ(line.rfind("round ", 0), 0u)
        << "the victim said '" << line << "' (nothing: it is dead, or silent for a minute)";
    std::printf("%s after %.0f ms\n", line.c_str(), static_cast<double>(BootUs() - start_us) / 1e3);
  } while (line != "round 2");
  std::this_thread::sleep_for(
      std::chrono::milliseconds(20));  // so that data flows; any moment is right
}

// Milliseconds from `since_us` to the error of member `rank`; the text of the error in `text`.
double ErrorAfterMs(MemberWorld& members, int rank, int64_t since_us, std::string* text) {
  for (;;) {
    const std::string line = members[rank].Hear(30'000);
    if (line.empty()) return 1e9;
    std::istringstream words(line);
    std::string word;
    int64_t at_us = 0;
    words >> word >> at_us;
    if (word != "error") continue;
    std::getline(words, *text);
    return static_cast<double>(at_us - since_us) / 1000;
  }
}

void ExpectAllKnow(MemberWorld& members, int world, int victim, int64_t since_us, double bound_ms,
                   const char* what) {
  for (int r = 0; r < world; ++r) {
    if (r == victim) continue;
    std::string text;
    const double ms = ErrorAfterMs(members, r, since_us, &text);
    std::printf("%s: rank %d of %d knew after %.1f ms:%s\n", what, r, world, ms, text.c_str());
    EXPECT_LT(ms, bound_ms) << text;
    EXPECT_NE(text.find("rank " + std::to_string(victim) + " "), std::string::npos) << text;
  }
}

// What carries the words: see members.h.
class Processes : public testing::TestWithParam<const char*> {
 protected:
  std::string Mode(const char* what) const { return GetParam() + std::string(what); }
};
INSTANTIATE_TEST_SUITE_P(Carriers, Processes, testing::Values("tcp", "shm", "staged"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Processes, KilledInTheMiddleOfAnAllReduce) {
  for (const int victim : {0, 2}) {
    MemberWorld members(4, Mode(kReduce), 60'000);
    ASSERT_NO_FATAL_FAILURE(AwaitMiddle(members, victim));
    const int64_t at_us = BootUs();
    members[victim].Signal(SIGKILL);
    ExpectAllKnow(members, 4, victim, at_us, kHardBoundMs, "killed in an all-reduce");
  }
}

TEST_P(Processes, KilledWhileIdle) {
  MemberWorld members(4, Mode(" idle"), 60'000);
  const int64_t at_us = BootUs();
  members[1].Signal(SIGKILL);
  ExpectAllKnow(members, 4, 1, at_us, kHardBoundMs, "killed while idle");
}

TEST_P(Processes, StoppedInTheMiddleOfAnAllReduce) {
  MemberWorld members(3, Mode(kReduce), 500);
  ASSERT_NO_FATAL_FAILURE(AwaitMiddle(members, 1));
  const int64_t at_us = BootUs();
  members[1].Signal(SIGSTOP);
  ExpectAllKnow(members, 3, 1, at_us, 500 + kHardBoundMs, "stopped in an all-reduce");
  // When it goes on, it learns that the others have gone.
  members[1].Signal(SIGCONT);
  std::string text;
  EXPECT_LT(ErrorAfterMs(members, 1, at_us, &text), 60'000);
}

TEST_P(Processes, StoppedWhileIdle) {
  MemberWorld members(3, Mode(" idle"), 500);
  const int64_t at_us = BootUs();
  members[2].Signal(SIGSTOP);
  ExpectAllKnow(members, 3, 2, at_us, 500 + kHardBoundMs, "stopped while idle");
}

// All are stopped and go on: nobody may accuse anybody for the time in which he himself was away.
TEST_P(Processes, JudgesThatSleptDoNotJudge) {
  MemberWorld members(3, Mode(" idle"), 2000);
  for (int r = 0; r < 3; ++r) members[r].Signal(SIGSTOP);
  std::this_thread::sleep_for(
      std::chrono::milliseconds(4000));  // longer than detect: this is what is tested
  for (int r = 0; r < 3; ++r) members[r].Signal(SIGCONT);
  for (int r = 0; r < 3; ++r) EXPECT_EQ(members[r].Hear(500), "") << r;
}

struct Usage {
  int64_t fds = 0, threads = 0, kib = 0, mappings = 0;
  int64_t named = 0;  // entries of /dev/shm
};

Usage UsageNow() {
  Usage usage;
  usage.fds = std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                            std::filesystem::directory_iterator());
  usage.named = std::distance(std::filesystem::directory_iterator("/dev/shm"),
                              std::filesystem::directory_iterator());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    usage.mappings += line.find("memfd:holdfast") != std::string::npos ? 1 : 0;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("Threads:", 0) == 0) usage.threads = std::stoll(line.substr(8));
    if (line.rfind("VmRSS:", 0) == 0) usage.kib = std::stoll(line.substr(6));
  }
  return usage;
}

TEST_P(Processes, TwoHundredRebuildsLeaveNothingBehind) {
  World world(4, GetParam() == std::string("tcp") ? Transport::kTcp : Transport::kShm);
  std::vector<SharedBlock> blocks(4);
  for (int r = 0; r < 4 && GetParam() == std::string("shm"); ++r) {
    blocks[r] = *SharedBlock::Create(1 << 20, true);
    world.shared[r] = {&blocks[r]};
  }
  Usage before;
  int64_t build_us = 0;
  for (uint64_t generation = 1; generation <= 20 + kRebuilds; ++generation) {
    if (generation == 21) before = UsageNow();  // allocator and libraries are warm
    const int64_t start_us = BootUs();
    auto members = world.Build(generation);
    build_us += BootUs() - start_us;
    CheckAllReduce(world, members, generation % 2 == 0 ? 100 : 40'000, generation);
    // One drops out, in another way each time; the survivors see it and build again.
    const int victim = static_cast<int>(generation % 4);
    if (generation % 3 == 0) members[victim]->Abort(absl::AbortedError("drill"));
    if (generation % 3 == 1) members[victim].reset();
    world.Run([&](int r) {
      if (members[r] == nullptr) return;
      std::vector<int64_t> own(40'000, 1);
      const std::span<int64_t> data =
          blocks[r].data() != nullptr ? std::span(blocks[r].as<int64_t>(), own.size()) : own;
      if (generation % 3 == 2) {
        EXPECT_TRUE(members[r]->Close(Long()).ok());
      } else {
        EXPECT_EQ(members[r]->Wait(members[r]->AllReduce(data, {}), Long()).code(),
                  absl::StatusCode::kAborted);
      }
    });
  }
  const Usage after = UsageNow();
  std::printf(
      "%lu rebuilds: fds %ld -> %ld, threads %ld -> %ld, RSS %ld -> %ld KiB, %.1f ms a build\n",
      kRebuilds, before.fds, after.fds, before.threads, after.threads, before.kib, after.kib,
      static_cast<double>(build_us) / static_cast<double>(20 + kRebuilds) / 1000);
  EXPECT_EQ(after.fds, before.fds);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_EQ(after.mappings, before.mappings);
  EXPECT_EQ(after.named, before.named);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(after.kib, before.kib + 8192);
#endif
}

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "member") return holdfast::RunMember(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
