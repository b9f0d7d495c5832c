// What a save costs the training: the run stands still for the copy of its slice of the state,
// nothing else. The 834 k GPT with 1 and 4 workers, a save each 10 steps; the same number of bytes
// copied by memcpy in this process.
//   save_bench [--json] [--steps N]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "nlohmann/json.hpp"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/text.h"
#include "tests/bench/live_run.h"
#include "tests/bench/report.h"

namespace holdfast {
namespace {

constexpr double kStateBytes = 834'304 * 12.0;  // values and two moments
constexpr double kDefaultIntervalS = 600;       // --checkpoint-every 10m

// Median of copies into memory that was touched before, as the saver's is.
double MemcpyMs(double bytes) {
  const auto size = static_cast<size_t>(bytes);
  std::vector<char> from(size, 1), to(size, 2);
  std::vector<char> flush(64 << 20, 3);
  std::vector<double> ms;
  for (int i = 0; i < 15; ++i) {
    std::memset(flush.data(), i, flush.size());  // the state is not in the cache when a save begins
    const int64_t start = BootUs();
    std::memcpy(to.data(), from.data(), size);
    ms.push_back(static_cast<double>(BootUs() - start) * 1e-3);
    from[static_cast<size_t>(i)] = to[size / 2];
  }
  return Median(ms);
}

absl::Status Measure(const BenchFolder& folder, int workers, int64_t steps, BenchReport& report) {
  HF_ASSIGN_OR_RETURN(const auto run, LiveRun::Start(folder, Cat("save-", workers),
                                                     {"--workers", Cat(workers), "--steps",
                                                      Cat(steps), "--checkpoint-every", "10"}));
  HF_RETURN_IF_ERROR(run->Finish().status());
  HF_ASSIGN_OR_RETURN(const auto events, chaos::ReadEvents(run->dir()));
  std::set<std::string> saved;  // every worker says it: once a step
  std::vector<double> stall;
  for (const chaos::EventLine& e : events) {
    if (e.kind != "save" || !e.text.starts_with("saved step")) continue;
    saved.insert(e.text);
    stall.push_back(nlohmann::json::parse(e.line).value("stall_ms", 0.0));
  }
  if (saved.empty()) return absl::InternalError("nothing was saved");
  const double stall_ms = Median(stall);
  const double copy_ms = MemcpyMs(kStateBytes / workers);
  report.Add(Cat("saves, ", workers, workers == 1 ? " worker" : " workers"),
             static_cast<double>(saved.size()), "");
  report.Add("  stall of a save, median over workers", stall_ms, "ms");
  report.Add("  memcpy of the slice", copy_ms, "ms");
  report.Add("  stall / memcpy", stall_ms / copy_ms, "x", "<= 1.2");
  report.Add("  at the default interval of 10 minutes", stall_ms / (kDefaultIntervalS * 1e3) * 100,
             "%", "<= 1");
  return absl::OkStatus();
}

// Processor time of a worker's threads, largest first: computing, the main thread, and all that
// keeps watch (leases, watchdog, reports).
std::vector<double> ThreadSeconds(pid_t pid) {
  std::vector<double> seconds;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(Cat("/proc/", pid, "/task"), error)) {
    double nanoseconds = 0;
    std::ifstream(task.path() / "schedstat") >> nanoseconds;
    seconds.push_back(nanoseconds * 1e-9);
  }
  std::sort(seconds.rbegin(), seconds.rend());
  return seconds;
}

absl::Status MeasureThreads(const BenchFolder& folder, int64_t steps, BenchReport& report) {
  HF_ASSIGN_OR_RETURN(const auto run, LiveRun::Start(folder, "threads",
                                                     {"--workers", "1", "--steps", "1000000",
                                                      "--checkpoint-every", "1000000"}));
  HF_RETURN_IF_ERROR(run->WaitForStep(20));
  const auto workers = chaos::WorkersOf(run->process().pid());
  if (workers.size() != 1) return absl::InternalError("the worker was not found");
  const std::vector<double> before = ThreadSeconds(workers[0].process.pid);
  HF_RETURN_IF_ERROR(run->WaitForStep(20 + steps));
  const std::vector<double> after = ThreadSeconds(workers[0].process.pid);
  double compute = 0, rest = 0;
  for (size_t i = 0; i < std::min(before.size(), after.size()); ++i)
    (i < 2 ? compute : rest) += after[i] - before[i];
  report.Add("leases, watchdog, reports: processor time, of computing", 100 * rest / compute, "%");
  return run->Stop().status();
}

int Main(int argc, char** argv) {
  BenchReport report("save", argc, argv);
  const BenchFolder folder;
  const auto steps = static_cast<int64_t>(report.Number("--steps", 200));
  absl::Status status = Measure(folder, 1, steps, report);
  if (status.ok()) status = Measure(folder, 4, steps, report);
  if (status.ok()) status = MeasureThreads(folder, steps, report);
  if (!status.ok()) std::fprintf(stderr, "save_bench: %s\n", std::string(status.message()).c_str());
  return status.ok() ? report.Print() : 1;
}

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) { return holdfast::Main(argc, argv); }
