#include "tests/emulation/faults.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "runtime/base/status.h"
#include "tests/emulation/tsan.h"

namespace holdfast::emulation {
namespace {

constexpr std::array<std::string_view, 8> kPoints = {"cuda.alloc", "cuda.launch",     "cuda.copy",
                                                     "nccl.init",  "nccl.collective", "nccl.shrink",
                                                     "nccl.abort", "nccl.finalize"};
constexpr std::array<std::string_view, 6> kActions = {"error", "sticky", "hang",
                                                      "delay", "kill",   "stop"};
constexpr int kDelayMs = 100;

struct Fault {
  std::string point, action, path;
  int64_t at = 1;
  bool every = false;
  int value = 0;
  int rank = -1;

  int64_t reached = 0;
  bool over = false;
};

struct Faults {
  std::mutex mutex;
  bool read = false;  // the environment
  std::vector<Fault> faults;
  std::map<std::string, int64_t> fired;
};
Faults& All() {
  static auto* all = new Faults;
  return *all;
}

// Cuts the first `mark` and what follows off `text`.
bool CutAfter(std::string& text, char mark, std::string& after) {
  const size_t at = text.find(mark);
  if (at == std::string::npos) return false;
  after = text.substr(at + 1);
  text.resize(at);
  return true;
}

template <typename T>
absl::Status Number(const std::string& digits, const std::string& whole, T& to) {
  if (absl::SimpleAtoi(digits, &to)) return absl::OkStatus();
  return absl::InvalidArgumentError(Cat("fault '", whole, "': '", digits, "' is no number"));
}

absl::StatusOr<Fault> Parse(const std::string& whole) {
  Fault fault;
  std::string rest = whole, part;
  CutAfter(rest, '@', fault.path);
  if (CutAfter(rest, '#', part)) HF_RETURN_IF_ERROR(Number(part, whole, fault.rank));
  if (CutAfter(rest, '=', part)) HF_RETURN_IF_ERROR(Number(part, whole, fault.value));
  if (CutAfter(rest, ':', part)) {
    if (!part.empty() && part.back() == '+') {
      fault.every = true;
      part.pop_back();
    }
    HF_RETURN_IF_ERROR(Number(part, whole, fault.at));
  }
  const size_t dot = rest.rfind('.');
  if (dot != std::string::npos) {
    fault.point = rest.substr(0, dot);
    fault.action = rest.substr(dot + 1);
  }
  const bool known = std::count(kPoints.begin(), kPoints.end(), fault.point) > 0 &&
                     std::count(kActions.begin(), kActions.end(), fault.action) > 0;
  const bool nccl = fault.point.starts_with("nccl.");
  if (!known || (fault.rank >= 0 && !nccl) ||
      (fault.action == "sticky" && nccl && fault.point != "nccl.collective")) {
    return absl::InvalidArgumentError(
        Cat("fault '", whole, "': not one of tests/emulation/faults.h"));
  }
  return fault;
}

absl::StatusOr<std::vector<Fault>> ParseAll(std::string_view text) {
  std::vector<Fault> faults;
  for (const auto& part : absl::StrSplit(View(text), ';', absl::SkipWhitespace())) {
    std::string trimmed(part);
    trimmed.erase(0, trimmed.find_first_not_of(' '));
    trimmed.erase(trimmed.find_last_not_of(' ') + 1);
    HF_ASSIGN_OR_RETURN(Fault fault, Parse(trimmed));
    faults.push_back(std::move(fault));
  }
  return faults;
}

void ReadEnvironment(Faults& all) {
  if (all.read) return;
  all.read = true;
  const char* text = std::getenv("HOLDFAST_EMU_FAULT");
  if (text == nullptr) return;
  auto faults = ParseAll(text);
  if (!faults.ok()) {
    // A fault that is not understood would let its test pass.
    std::fprintf(stderr, "HOLDFAST_EMU_FAULT: %s\n",
                 std::string(StdView(faults.status().message())).c_str());
    std::abort();
  }
  all.faults = *std::move(faults);
}

bool Fires(Fault& fault, int rank) {
  if (fault.over || (fault.rank >= 0 && fault.rank != rank)) return false;
  if (++fault.reached < fault.at) return false;
  if (!fault.path.empty() && unlink(fault.path.c_str()) != 0) return false;
  fault.over = !fault.every || !fault.path.empty();
  return true;
}

}  // namespace

absl::Status SetFaults(std::string_view text) {
  HF_ASSIGN_OR_RETURN(std::vector<Fault> faults, ParseAll(text));
  Faults& all = All();
  std::lock_guard lock(all.mutex);
  all.read = true;
  all.faults = std::move(faults);
  return absl::OkStatus();
}

int64_t FaultsFired(std::string_view name) {
  Faults& all = All();
  std::lock_guard lock(all.mutex);
  int64_t sum = 0;
  for (const auto& [fired, times] : all.fired) sum += name.empty() || fired == name ? times : 0;
  return sum;
}

FaultAction ReachFaultPoint(std::string_view point, int rank) {
  std::string action;
  int value = 0;
  {
    const Unseen unseen;  // streams' threads come here
    Faults& all = All();
    std::lock_guard lock(all.mutex);
    ReadEnvironment(all);
    for (Fault& fault : all.faults) {
      if (fault.point != point || !Fires(fault, rank) || !action.empty()) continue;
      action = fault.action;
      value = fault.value;
      const std::string name = Cat(fault.point, ".", action);
      ++all.fired[name];
      std::fprintf(stderr, "emulated fault: %s fired (process %d, rank %d, the %lldth time here)\n",
                   name.c_str(), static_cast<int>(getpid()), rank,
                   static_cast<long long>(fault.reached));
    }
  }
  if (action == "kill") (void)raise(SIGKILL);
  if (action == "stop") (void)raise(SIGSTOP);
  if (action == "delay")
    std::this_thread::sleep_for(std::chrono::milliseconds(value > 0 ? value : kDelayMs));
  if (action == "error") return {FaultAction::kError, value};
  if (action == "sticky") return {FaultAction::kSticky, value};
  if (action == "hang") return {FaultAction::kHang, 0};
  return {};
}

void HangForEver() {
  for (;;) pause();
}

}  // namespace holdfast::emulation
