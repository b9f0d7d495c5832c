// One member: obeys the lines of its parent.
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>
#include <utility>

#include "kernels/cuda_backend.h"
#include "runtime/base/clock.h"
#include "runtime/base/failpoint.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/collectives/nccl/nccl.h"
#include "tests/collectives/nccl_members.h"
#include "tests/collectives/nccl_operations.h"
#include "tests/emulation/faults.h"

namespace holdfast {
namespace {

void SayToParent(const std::string& line) { std::cout << line << std::endl; }

std::string UsageText() {
  std::string threads, kib;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("Threads:", 0) == 0) threads = line.substr(8);
    if (line.rfind("VmRSS:", 0) == 0) kib = std::to_string(std::stoll(line.substr(6)));
  }
  const auto fds = std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                 std::filesystem::directory_iterator());
  return std::to_string(fds) + " " + std::to_string(std::stoll(threads)) + " " + kib;
}

class Member {
 public:
  absl::Status Start(int index, int64_t detect_ms, const std::string& mode) {
    detect_ms_ = detect_ms;
    index_ = index;
    std::istringstream words(mode);
    std::string name;
    words >> name >> options_.build_ms >> options_.abort_ms;
    HF_ASSIGN_OR_RETURN(endpoint_, TcpEndpoint::Listen({}));
    HF_RETURN_IF_ERROR(Open(index));
    SayToParent(std::to_string(endpoint_->port()));
    return absl::OkStatus();
  }

  void Obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "quiet") return;
    const absl::StatusOr<std::string> answer = Do(verb, words);
    if (answer.ok()) {
      SayToParent("ok " + *answer);
    } else {
      SayToParent("error " + std::to_string(static_cast<int>(answer.status().code())) + " " +
                  std::to_string(BootUs()) + " " + std::string(answer.status().message()));
    }
  }

 private:
  absl::Status Open(int gpu) {
    factory_.reset();
    HF_ASSIGN_OR_RETURN(options_.device, kernels::FindCudaBackend().Open({}, gpu));
    options_.loopback = true;
    HF_ASSIGN_OR_RETURN(factory_, NcclFactory::Create(options_));
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Do(const std::string& verb, std::istringstream& words) {
    if (verb == "gpu") {  // another than the member's own
      int gpu = 0;
      words >> gpu;
      HF_RETURN_IF_ERROR(Open(gpu));
      return "";
    }
    if (verb == "failpoints" || verb == "fault") {
      std::string settings;
      std::getline(words >> std::ws, settings);
      HF_RETURN_IF_ERROR(verb == "fault" ? emulation::SetFaults(settings)
                                         : SetFailpoints(settings));
      return "";
    }
    if (verb == "cancel") {  // the next build, after so many milliseconds
      words >> cancel_after_ms_;
      return "";
    }
    if (verb == "version") return factory_->Version();
    if (verb == "usage") return UsageText();
    if (verb == "build") return Build(words);
    if (verb == "forget") {
      factory_->Forget();
      return "";
    }
    if (verb == "drop") {
      members_.reset();
      return "";
    }
    if (members_ == nullptr) return absl::FailedPreconditionError("no communicator");
    if (verb == "carrier") return members_->Carrier();
    if (verb == "close") {
      int64_t ms = kReplyMs;
      words >> ms;
      HF_RETURN_IF_ERROR(members_->Close(Deadline::After(ms > 0 ? ms : kReplyMs)));
      return "";
    }
    if (verb == "check") {
      uint64_t seed = 0;
      words >> seed;
      HF_RETURN_IF_ERROR(CheckOperations(*members_, *options_.device, seed));
      return "";
    }
    if (verb == "reduce") return Reduce(words);
    if (verb == "idle") {
      while (members_->Health().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return members_->Health();
    }
    return absl::InvalidArgumentError("no such command: " + verb);
  }

  // "build GENERATION RANK PORT..."
  absl::StatusOr<std::string> Build(std::istringstream& words) {
    members_.reset();
    TcpEndpoint::GroupOptions group;
    group.run = "run-1";
    group.secret = "a secret of the test";
    words >> group.generation >> group.rank;
    group.nonce = group.generation * 1000 + 7;
    group.connect_ms = kReplyMs;
    group.detect_ms = detect_ms_;
    for (int port = 0; words >> port;) group.peers.push_back({"127.0.0.1", port});
    HF_ASSIGN_OR_RETURN(auto links, endpoint_->Build(group, nullptr));
    std::atomic<bool> cancel = false;
    std::thread timer;
    if (const int64_t ms = std::exchange(cancel_after_ms_, 0); ms > 0) {
      timer = std::thread([&cancel, ms] {
        std::this_thread::sleep_for(std::chrono::milliseconds(ms));
        cancel = true;
      });
    }
    auto joined = factory_->Join(std::move(links), group.generation, &cancel);
    if (timer.joinable()) timer.join();
    HF_ASSIGN_OR_RETURN(members_, std::move(joined));
    return factory_->LastJoin();
  }

  // "reduce ELEMENTS [MILLISECONDS]": all-reduces for ever; says "round K" before each.
  absl::StatusOr<std::string> Reduce(std::istringstream& words) {
    int64_t elements = 0, wait_ms = 0;
    words >> elements >> wait_ms;
    HF_ASSIGN_OR_RETURN(kernels::Buffer data,
                        options_.device->Allocate(elements * int64_t{sizeof(int64_t)}));
    Communicator& lane = members_->OnDevice();
    const std::span<int64_t> all(data.as<int64_t>(), static_cast<size_t>(elements));
    lane.Keep(std::move(data));
    for (int64_t round = 0;; ++round) {
      SayToParent("round " + std::to_string(round));
      HF_RETURN_IF_ERROR(lane.Wait(lane.AllReduce(all, {.step = round}),
                                   Deadline::After(wait_ms > 0 ? wait_ms : 2 * kReplyMs)));
    }
  }

  NcclOptions options_;
  int index_ = 0;
  int64_t detect_ms_ = 0, cancel_after_ms_ = 0;
  std::unique_ptr<TcpEndpoint> endpoint_;
  std::unique_ptr<NcclFactory> factory_;
  std::unique_ptr<Communicator> members_;
};

}  // namespace

int RunNcclMember(int argc, char** argv) {
  if (argc != 6) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing stays behind when the test itself is killed
  SetLogName(Cat("member ", argv[2]));
  Member member;
  const absl::Status started = member.Start(std::stoi(argv[2]), std::stoll(argv[4]), argv[5]);
  if (!started.ok()) {
    LogError(StdView(started.message()));
    return 3;
  }
  for (std::string line; std::getline(std::cin, line) && line != "end";) member.Obey(line);
  return 0;
}

}  // namespace holdfast
