#include "tests/process/train_run.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runtime/base/digest.h"
#include "runtime/base/text.h"

namespace holdfast::testing {
namespace {

namespace fs = std::filesystem;

class Scratch : public ::testing::Environment {
 public:
  Scratch()
      : path_((fs::temp_directory_path() / Cat("holdfast-test-", Hex64(RandomNonce()))).string()) {
    fs::create_directories(path_);
    chaos::AdoptOrphans();
  }
  void TearDown() override {
    std::error_code error;
    if (::testing::UnitTest::GetInstance()->Failed() || std::getenv("HOLDFAST_KEEP") != nullptr) {
      std::printf("kept for a look: %s\n", path_.c_str());
    } else {
      fs::remove_all(path_, error);
    }
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Registered before main runs the tests, so that TearDown comes after all of them.
Scratch* const scratch = static_cast<Scratch*>(::testing::AddGlobalTestEnvironment(new Scratch()));

std::vector<std::string> ToArgs(const Flags& flags) {
  std::vector<std::string> args;
  for (const auto& [name, value] : flags) {
    args.push_back("--" + name);
    if (!value.empty()) args.push_back(value);
  }
  return args;
}

void Report(const std::string& dir, const std::vector<std::string>& complaints) {
  for (const std::string& complaint : complaints) ADD_FAILURE() << dir << ": " << complaint;
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  int port = 0;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    port = ntohs(address.sin_port);
  }
  close(fd);
  return port;
}

std::string FindInPath(const std::string& name) {
  for (const char* folder : {"/usr/bin/", "/usr/local/bin/", "/bin/"}) {
    if (access((folder + name).c_str(), X_OK) == 0) return folder + name;
  }
  return name;
}

}  // namespace

const std::string& ScratchFolder() { return scratch->path(); }

std::string FreshFolder(const std::string& name) {
  static int count = 0;
  return Cat(ScratchFolder(), "/", ++count, "-", name);
}

std::string TextFile(int64_t bytes) {
  static const std::vector<std::string> words = {
      "the",  "of",     "and",   "a",     "to",     "in",    "is",      "was",   "he",      "for",
      "it",   "with",   "as",    "his",   "on",     "be",    "at",      "by",    "had",     "not",
      "are",  "but",    "from",  "or",    "have",   "an",    "they",    "which", "one",     "were",
      "all",  "her",    "ship",  "rope",  "anchor", "storm", "harbour", "night", "captain", "holds",
      "fast", "breaks", "mends", "again", "water",  "wind"};
  const std::string path = Cat(ScratchFolder(), "/text-", bytes, ".txt");
  if (fs::exists(path)) return path;
  std::string text;
  for (uint64_t i = 0; static_cast<int64_t>(text.size()) < bytes; ++i) {
    // Each word leans on the one before, so that there is something to learn.
    const uint64_t draw = Mix64(i) % 4 == 0 ? Mix64(i * 31) : Mix64(i / 3) + i % 3;
    text += words[draw % words.size()];
    text += i % 11 == 10 ? ".\n" : " ";
  }
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string ProgramPath() {
  const char* path = std::getenv("HOLDFAST_PROGRAM");
  return path != nullptr ? path : "build/holdfast";
}

namespace {

Flags& AddedFlags() {
  static Flags flags;
  return flags;
}

}  // namespace

void AddToBaseFlags(const Flags& flags) {
  for (const auto& [name, value] : flags) AddedFlags()[name] = value;
}

Flags BaseFlags() {
  Flags base = {{"data", TextFile()},
                {"layers", "2"},
                {"heads", "2"},
                {"embed", "32"},
                {"context", "16"},
                {"micro-batches", "6"},
                {"micro-batch-size", "2"},
                {"steps", Cat(kSteps)},
                {"warmup-steps", "5"},
                {"checkpoint-every", "10"},
                {"eval-every", "30"},
                {"eval-batches", "2"},
                {"seed", "7"},
                {"workers", "1"}};
  for (const auto& [name, value] : AddedFlags()) base[name] = value;
  return base;
}

TrainRun::TrainRun(const RunSpec& spec) : dir_(spec.dir.empty() ? FreshFolder("run") : spec.dir) {
  Flags flags = BaseFlags();
  for (const auto& [name, value] : spec.flags) flags[name] = value;
  flags["dir"] = dir_;
  std::vector<std::string> args = {ProgramPath(), "run"};
  for (std::string& arg : ToArgs(flags)) args.push_back(std::move(arg));
  std::map<std::string, std::string> env = spec.env;
  if (!spec.failpoints.empty()) env["HOLDFAST_FAILPOINTS"] = spec.failpoints;
  auto started =
      chaos::ChildProcess::Start({.args = args, .env = env, .output_path = dir_ + ".output"});
  if (!started.ok()) {
    ADD_FAILURE() << started.status();
    std::abort();
  }
  process_ = std::move(*started);
}

std::string TrainRun::WaitText(int64_t ms) {
  const auto end = process_->Wait(Deadline::After(ms));
  if (!end.ok()) {
    ADD_FAILURE() << dir_ << ": " << end.status() << "\n" << process_->Output(6000);
    return "hangs";
  }
  return end->Text();
}

int TrainRun::Wait(int64_t ms) {
  const std::string text = WaitText(ms);
  const auto end = process_->Poll();
  if (!end) return -1;
  if (!end->exited)
    ADD_FAILURE() << dir_ << ": ended by " << text << "\n" << process_->Output(6000);
  return end->exited ? end->code : -1;
}

bool TrainRun::WaitForStep(int64_t step) {
  const auto seen = chaos::WaitForStep(*process_, dir_, step, Deadline::After(kRunMs));
  if (!seen.ok()) ADD_FAILURE() << dir_ << ": " << seen.status() << "\n" << process_->Output(6000);
  return seen.ok();
}

chaos::Proof TrainRun::Do(const chaos::Fault& fault) { return DoTogether({fault}); }

chaos::Proof TrainRun::DoTogether(const std::vector<chaos::Fault>& faults) {
  auto proof = chaos::InjectTogether(*process_, dir_, faults, Deadline::After(kRunMs));
  if (!proof.ok()) {
    ADD_FAILURE() << dir_ << ": inconclusive, the fault was not done: " << proof.status() << "\n"
                  << process_->Output(6000);
    return {};
  }
  return *proof;
}

void TrainRun::ExpectNoResidue(bool killed) {
  Report(dir_, residue_.Check(process_->mark(), killed ? "" : dir_, Deadline::After(10'000)));
}

CommandResult Command(const std::vector<std::string>& args,
                      const std::map<std::string, std::string>& env) {
  std::vector<std::string> all = {ProgramPath()};
  all.insert(all.end(), args.begin(), args.end());
  auto started =
      chaos::ChildProcess::Start({.args = all, .env = env, .output_path = FreshFolder("command")});
  if (!started.ok()) return {};
  const auto end = (*started)->Wait(Deadline::After(60'000));
  if (!end.ok() || !end->exited)
    return {-1, Cat(end.ok() ? end->Text() : end.status().ToString(), "\n", (*started)->Output())};
  return {end->code, (*started)->Output()};
}

const chaos::StepLog& Reference() {
  static const chaos::StepLog log = [] {
    TrainRun run({.dir = FreshFolder("reference")});
    EXPECT_EQ(run.Wait(), 0) << run.Output();
    const auto steps = chaos::ReadSteps(run.dir());
    EXPECT_TRUE(steps.ok()) << steps.status();
    EXPECT_TRUE(!steps.ok() || steps->last_step() == kSteps);
    return steps.ok() ? *steps : chaos::StepLog();
  }();
  return log;
}

void ExpectSameBits(const std::string& dir, const Expect& expect) {
  const auto steps = chaos::ReadSteps(dir);
  ASSERT_TRUE(steps.ok()) << steps.status();
  Report(dir, chaos::JudgeSteps(Reference(), *steps, {.first_step = expect.first_step}));
  const auto events = chaos::ReadEvents(dir);
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_FALSE(events->empty());
  Report(dir, chaos::JudgeEvents(*events));
  if (!expect.summary) return;
  const auto summary = chaos::ReadSummary(dir);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->final_step, Reference().last_step());
  Report(dir, chaos::JudgeSummary(Reference(), *summary));
}

int64_t CountEvents(const std::string& dir, const std::string& kind) {
  const auto events = chaos::ReadEvents(dir);
  int64_t count = 0;
  if (!events.ok()) return 0;
  for (const chaos::EventLine& event : *events) count += event.kind == kind;
  return count;
}

int64_t CountEventLines(const std::string& dir, const std::string& text) {
  const auto events = chaos::ReadEvents(dir);
  int64_t count = 0;
  if (!events.ok()) return 0;
  for (const chaos::EventLine& event : *events) count += event.line.find(text) != std::string::npos;
  return count;
}

TestRedis::TestRedis()
    : port_(FreePort()), password_(Hex64(RandomNonce())), dir_(FreshFolder("redis")) {
  fs::create_directories(dir_);
  StartAgain();
}

std::string TestRedis::url() const { return Cat("redis://127.0.0.1:", port_); }

void TestRedis::StartAgain() {
  // The configuration comes on standard input, so that the password is in no file and in no process
  // list.
  auto started = chaos::ChildProcess::Start(
      {.args = {FindInPath("redis-server"), "-"},
       .output_path = dir_ + "/output",
       .input = Cat("port ", port_, "\nbind 127.0.0.1\nsave \"\"\nappendonly no\nrequirepass ",
                    password_, "\ndir ", dir_, "\n")});
  ASSERT_TRUE(started.ok()) << started.status();
  process_ = std::move(*started);
  ASSERT_TRUE(chaos::WaitUntil(
      Deadline::After(20'000), [&] { return Cli({"ping"}) == "PONG\n"; }, 20))
      << process_->Output();
}

void TestRedis::Freeze() { EXPECT_EQ(kill(process_->pid(), SIGSTOP), 0); }
void TestRedis::Thaw() { EXPECT_EQ(kill(process_->pid(), SIGCONT), 0); }

void TestRedis::KillHard() {
  ASSERT_TRUE(process_->Signal(SIGKILL).ok());
  ASSERT_TRUE(process_->Wait(Deadline::After(10'000)).ok());
}

std::string TestRedis::Cli(const std::vector<std::string>& args) const {
  std::vector<std::string> all = {FindInPath("redis-cli"), "-h", "127.0.0.1", "-p", Cat(port_)};
  all.insert(all.end(), args.begin(), args.end());
  const std::string output = FreshFolder("cli");
  auto started = chaos::ChildProcess::Start(
      {.args = all, .env = {{"REDISCLI_AUTH", password_}}, .output_path = output});
  if (!started.ok() || !(*started)->Wait(Deadline::After(10'000)).ok()) return "";
  const std::string text = (*started)->Output();
  fs::remove(output);
  return text;
}

}  // namespace holdfast::testing
