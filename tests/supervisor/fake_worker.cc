// A program of the tests that speaks the worker's side of the channel and misbehaves on demand. It
// trains nothing: step s has the digest of s. What it does wrong is in HOLDFAST_FAKE_WORKER:
// "SLOT:LIFE:DEED@STEP;..." where SLOT and LIFE (1 = first start of that slot) may be *, and DEED
// is
//   exitN | segv | abort | kill | stop | hang | early (exit 0 too soon) | claim (says finished) |
//   finalN (orderly end with code N) | digest (a wrong one) | lines (25 lines, then exit 7) | deaf
//   (from then on no drain, no SIGTERM is heeded)
// STEP 0 is before it joins.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "runtime/base/clock.h"
#include "runtime/base/digest.h"
#include "runtime/config/config.h"
#include "runtime/supervisor/messages.h"
#include "runtime/supervisor/run_dir.h"

namespace holdfast {
namespace {

using Json = nlohmann::json;
volatile sig_atomic_t terminate_asked = 0;
void OnTerminate(int) { terminate_asked = 1; }

struct Deed {
  std::string what;
  int64_t step;
};

// A deed meant for one life whose step has passed when that life joins (slow to start) is done at
// its first step.
std::vector<Deed> DeedsOf(int slot, int life, int64_t first_step) {
  std::vector<Deed> deeds;
  const char* text = std::getenv("HOLDFAST_FAKE_WORKER");
  const std::string all = text == nullptr ? "" : text;
  for (const auto part : absl::StrSplit(all, ';', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(part, ':');
    const std::vector<std::string> deed = absl::StrSplit(fields.at(2), '@');
    if (fields[0] != "*" && fields[0] != std::to_string(slot)) continue;
    if (fields[1] != "*" && fields[1] != std::to_string(life)) continue;
    int64_t step = std::stoll(deed.at(1));
    if (step > 0) step = std::max(step, first_step);
    deeds.push_back({deed.at(0), step});
  }
  return deeds;
}

// Appends a byte and returns the new length: a counter that outlives processes.
int Count(const std::string& path) {
  std::ofstream(path, std::ios::app) << 'x';
  return static_cast<int>(std::filesystem::file_size(path));
}

class FakeWorker {
 public:
  int Run() {
    const Json start = WaitForStart();
    const auto config = ConfigFromToml(start["config"].get<std::string>(), "start");
    if (!config.ok()) return End(2, std::string(config.status().message()), false);
    config_ = *config;
    slot_ = start["slot"];
    const int life = Count(config_.dir + "/fake-slot-" + std::to_string(slot_));
    generation_ = Count(config_.dir + "/fake-lives");
    step_ = ReadRecord(config_.dir).last_step;
    deeds_ = DeedsOf(slot_, life, step_ + 1);
    Do(0);
    channel_.Send(Json{
        {"type", "joined"},
        {"generation", generation_},
        {"world_size", config_.workers},
        {"rank", slot_},
        {"step", step_},
        {"source", "fresh"},
        {"note", ""},
        {"ms",
         BootMs()}}.dump());
    const int64_t first = step_ + 1;
    while (step_ < config_.steps) {
      if (!deaf_ && LeaveAsked()) return End(left_with_, "left", false);
      ++step_;
      Do(step_);
      Report(step_ == first);
    }
    return End(0, "finished", true);
  }

 private:
  Json WaitForStart() {
    while (true) {
      pollfd ready{kChannelFd, POLLIN, 0};
      (void)poll(&ready, 1, 1000);
      const auto message = channel_.Receive();
      if (message.ok()) return Json::parse(*message);
      if (absl::IsUnavailable(message.status())) _exit(99);
    }
  }

  bool LeaveAsked() {
    pollfd ready{kChannelFd, POLLIN, 0};
    (void)poll(&ready, 1, 5);  // the length of a step
    if (terminate_asked != 0) {
      left_with_ = 12;
      return true;
    }
    const auto message = channel_.Receive();
    left_with_ = 10;
    return message.ok() && Json::parse(*message)["type"] == "drain";
  }

  void Do(int64_t step) {
    for (const Deed& deed : deeds_) {
      if (deed.step != step) continue;
      std::fprintf(stderr, "about to %s at step %lld\n", deed.what.c_str(),
                   static_cast<long long>(step));
      int code = 0;
      if (absl::SimpleAtoi(
              deed.what.substr(deed.what.find_first_of("0123456789") == std::string::npos
                                   ? deed.what.size()
                                   : deed.what.find_first_of("0123456789")),
              &code)) {
        if (deed.what[0] == 'f') End(code, "the reason that it gives", false);
        _exit(code);
      }
      if (deed.what == "segv") raise(SIGSEGV);
      if (deed.what == "abort") abort();
      if (deed.what == "kill") raise(SIGKILL);
      if (deed.what == "stop") raise(SIGSTOP);
      if (deed.what == "early") _exit(0);
      if (deed.what == "claim") _exit(End(0, "heard that the run has ended", true));
      if (deed.what == "digest") wrong_digest_ = true;
      if (deed.what == "deaf") deaf_ = true;
      while (deed.what == "hang") pause();
      if (deed.what == "lines") {
        for (int i = 0; i < 25; ++i) std::fprintf(stderr, "line %d of the end\n", i);
        _exit(7);
      }
    }
    if (deaf_) (void)poll(nullptr, 0, 5);
  }

  void Report(bool first) {
    if (first) {
      channel_.Send(Json{
          {"type", "first_step"}, {"generation", generation_}, {"step", step_}, {"ms", BootMs()}}
                        .dump());
    }
    const uint64_t digest = Hash64(std::to_string(step_)) + (wrong_digest_ ? 1 : 0);
    channel_.Send(Json{
        {"type", "step"},
        {"step", step_},
        {"loss", 5.0 / static_cast<double>(step_)},
        {"digest", Hex64(digest)},
        {"world_size", config_.workers},
        {"generation", generation_},
        {"samples", Hex64(1)},
        {"gradient_norm", 1.0},
        {"learning_rate", 1e-3},
        {"step_ms", 5.0},
        {"tokens", 768},
        {"flops", 1e9},
        {"skipped",
         false}}.dump());
  }

  int End(int code, const std::string& text, bool finished) {
    channel_.Send(Json{
        {"type", "final"},
        {"exit", code},
        {"text", text},
        {"step", step_},
        {"digest", Hex64(Hash64(std::to_string(step_)))},
        {"train_loss", 1.5},
        {"eval_loss", 1.75},
        {"finished", finished},
        {"time",
         {{"compute", 6.0}, {"reduce", 1.0}, {"wait", 1.0}, {"checkpoint", 1.0}, {"lost", 1.0}}},
        {"wall_s", 10.0},
        {"steps_lost", 0},
        {"generation",
         generation_}}.dump());
    return code;
  }

  Channel channel_{kChannelFd};
  Config config_;
  int slot_ = 0, generation_ = 0, left_with_ = 0;
  int64_t step_ = 0;
  bool wrong_digest_ = false, deaf_ = false;
  std::vector<Deed> deeds_;
};

}  // namespace
}  // namespace holdfast

int main() {
  struct sigaction action {};
  action.sa_handler = holdfast::OnTerminate;
  sigaction(SIGTERM, &action, nullptr);
  return holdfast::FakeWorker().Run();
}
