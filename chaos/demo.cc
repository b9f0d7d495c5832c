// The demonstration of `./dev demo`: trains a small GPT on real text with four workers, kills one,
// freezes one, kills everything, resumes with another number of workers, and compares every step
// with an undisturbed run of one worker. Prints what happens as it happens. Exit code 0 only if
// every bit is the same and nothing is left behind.
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "chaos/demo_view.h"
#include "chaos/injector.h"
#include "chaos/oracle.h"
#include "chaos/process.h"
#include "chaos/residue.h"
#include "chaos/sgemm_rate.h"
#include "runtime/base/exit_code.h"
#include "runtime/base/status.h"
#include "runtime/base/text.h"

namespace holdfast::chaos {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 400, kKillStep = 80, kFreezeStep = 170, kKillAllStep = 275;
constexpr int64_t kPhaseMs = 180'000;  // longest wait without any news
constexpr int64_t kTokens =
    4 * 3 * 64;  // micro-batches x sequences x context: the program's defaults
// Products only, forward and backward: 6 x (4 layers x 12 width^2 + vocabulary x width) x tokens.
constexpr double kFlopAStep = 6.0 * (4 * 12 * 128 * 128 + 256 * 128) * kTokens;

struct Timings {
  double kill_ms = 0, freeze_ms = 0, step_ms = 0;
};

class Demo {
 public:
  Demo(std::string program, std::string data, std::string folder)
      : program_(std::move(program)),
        data_(std::move(data)),
        folder_(std::move(folder)),
        dir_(folder_ + "/run") {}

  absl::Status Run() {
    HF_RETURN_IF_ERROR(TrainKillAndFreeze());
    HF_RETURN_IF_ERROR(KillEverything());
    HF_RETURN_IF_ERROR(Resume());
    HF_RETURN_IF_ERROR(Undisturbed());
    HF_RETURN_IF_ERROR(Compare());
    PrintTimings();
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::string& dir, int workers) {
    const std::vector<std::string> args = {program_,
                                           "run",
                                           "--dir",
                                           dir,
                                           "--data",
                                           data_,
                                           "--workers",
                                           Cat(workers),
                                           "--steps",
                                           Cat(kSteps),
                                           "--checkpoint-every",
                                           "50",
                                           "--eval-every",
                                           "200",
                                           "--eval-batches",
                                           "8"};
    std::string shown = "$ holdfast";
    for (size_t i = 1; i < args.size(); ++i) shown += " " + args[i];
    Say("%s", shown.c_str());
    return ChildProcess::Start({.args = args, .output_path = folder_ + "/output.txt"});
  }

  // Shows events until `done`; fails when the run ends before, or there is no news for too long.
  template <typename Predicate>
  absl::Status Follow(ChildProcess& run, EventView& view, std::string_view what, Predicate done) {
    Deadline deadline = Deadline::After(kPhaseMs);
    while (!done()) {
      if (view.Show()) deadline = Deadline::After(kPhaseMs);
      if (run.Poll() && !done()) {
        return absl::InternalError(
            Cat("the run ended (", run.Poll()->Text(), ") before ", what, "\n", run.Output(3000)));
      }
      if (deadline.passed())
        return absl::DeadlineExceededError(
            Cat("waited in vain for ", what, "\n", run.Output(3000)));
      usleep(2000);
    }
    view.Show();
    return absl::OkStatus();
  }

  // One fault and its recovery: from the signal to the first step of the next generation.
  absl::Status Harm(ChildProcess& run, EventView& view, const Fault& fault, double* took_ms) {
    StepWatch watch(dir_);
    HF_RETURN_IF_ERROR(Follow(run, view, Cat("step ", fault.at_step),
                              [&] { return watch.Newest() >= fault.at_step; }));
    const std::vector<WorkerInfo> before = WorkersOf(run.pid());
    const int64_t recoveries = view.Count("recovered");
    HF_ASSIGN_OR_RETURN(const Proof proof, Inject(run, dir_, fault, Deadline::After(kPhaseMs)));
    Say("%s", proof.text.c_str());
    HF_RETURN_IF_ERROR(
        Follow(run, view, "the recovery", [&] { return view.Count("recovered") > recoveries; }));
    *took_ms = view.LastMs("recovered") - static_cast<double>(proof.done_ms);
    Say("=> %.0f ms from the signal to the next step", *took_ms);
    // The replacement joins at a step boundary, when it is ready.
    HF_RETURN_IF_ERROR(Follow(run, view, "the replacement", [&] {
      return view.world_size() == 4 && static_cast<int64_t>(WorkersOf(run.pid()).size()) == 4;
    }));
    return ShowSurvivors(before, WorkersOf(run.pid()), proof.pids.at(0));
  }

  static absl::Status ShowSurvivors(const std::vector<WorkerInfo>& before,
                                    const std::vector<WorkerInfo>& after, pid_t victim) {
    std::string same, fresh;
    std::set<pid_t> old;
    for (const WorkerInfo& worker : before) old.insert(worker.process.pid);
    int64_t survivors = 0;
    for (const WorkerInfo& worker : after) {
      const bool survived = old.count(worker.process.pid) > 0;
      survivors += survived;
      (survived ? same : fresh) += Cat(" ", worker.process.pid);
    }
    Say("survivors, in the same processes:%s; replaced: %d by%s", same.c_str(),
        static_cast<int>(victim), fresh.c_str());
    if (survivors != static_cast<int64_t>(before.size()) - 1)
      return absl::InternalError("a survivor was restarted");
    return absl::OkStatus();
  }

  absl::Status TrainKillAndFreeze() {
    Heading("Four workers train a GPT (4 layers, 4 heads, 128 wide, context 64) on %s",
            data_.c_str());
    HF_ASSIGN_OR_RETURN(run_, Start(dir_, 4));
    view_ = std::make_unique<EventView>(dir_);
    StepWatch watch(dir_);
    HF_RETURN_IF_ERROR(
        Follow(*run_, *view_, "the first step", [&] { return watch.Newest() >= 1; }));
    std::string pids;
    for (const WorkerInfo& worker : WorkersOf(run_->pid())) pids += Cat(" ", worker.process.pid);
    Say("supervisor %d, workers%s", static_cast<int>(run_->pid()), pids.c_str());

    Heading("kill -9 one worker at step %lld", static_cast<long long>(kKillStep));
    HF_RETURN_IF_ERROR(Harm(*run_, *view_,
                            {.kind = FaultKind::kKillWorker, .slot = 2, .at_step = kKillStep},
                            &timings_.kill_ms));
    Heading("freeze one worker (SIGSTOP) at step %lld", static_cast<long long>(kFreezeStep));
    return Harm(*run_, *view_, {.kind = FaultKind::kStopWorker, .slot = 1, .at_step = kFreezeStep},
                &timings_.freeze_ms);
  }

  absl::Status KillEverything() {
    Heading("kill -9 everything at step %lld: supervisor, workers, Redis",
            static_cast<long long>(kKillAllStep));
    StepWatch watch(dir_);
    HF_RETURN_IF_ERROR(
        Follow(*run_, *view_, "the step", [&] { return watch.Newest() >= kKillAllStep; }));
    HF_ASSIGN_OR_RETURN(const Proof proof, Inject(*run_, dir_, {.kind = FaultKind::kKillAll},
                                                  Deadline::After(kPhaseMs)));
    HF_RETURN_IF_ERROR(run_->Wait(Deadline::After(kPhaseMs)).status());
    Say("%zu processes killed at step %lld", proof.pids.size(), static_cast<long long>(proof.step));
    return ExpectClean("");
  }

  absl::Status Resume() {
    Heading("resume from RocksDB, now with two workers");
    HF_ASSIGN_OR_RETURN(run_, Start(dir_, 2));
    HF_RETURN_IF_ERROR(Follow(*run_, *view_, "the end", [&] { return run_->Poll().has_value(); }));
    Say("ended: %s", run_->Poll()->Text().c_str());
    if (!run_->Poll()->exited || run_->Poll()->code != static_cast<int>(ExitCode::kOk)) {
      return absl::InternalError(Cat("the resumed run did not finish\n", run_->Output(3000)));
    }
    return ExpectClean(dir_);
  }

  absl::Status Undisturbed() {
    Heading("the same training undisturbed, with one worker");
    const std::string dir = folder_ + "/undisturbed";
    HF_ASSIGN_OR_RETURN(run_, Start(dir, 1));
    EventView view(dir);
    StepWatch watch(dir);
    int64_t from_ms = 0, from_step = 0;
    HF_RETURN_IF_ERROR(Follow(*run_, view, "the end", [&] {
      if (from_ms == 0 && watch.Newest() >= 20) {
        from_ms = BootMs();
        from_step = watch.Newest();
      }
      if (watch.Newest() == kSteps && timings_.step_ms == 0) {
        timings_.step_ms =
            static_cast<double>(BootMs() - from_ms) / static_cast<double>(kSteps - from_step);
      }
      return run_->Poll().has_value();
    }));
    if (run_->Poll()->code != 0)
      return absl::InternalError(Cat("the undisturbed run did not finish\n", run_->Output(3000)));
    return ExpectClean(dir);
  }

  absl::Status Compare() {
    Heading("compare");
    HF_ASSIGN_OR_RETURN(const StepLog reference, ReadSteps(folder_ + "/undisturbed"));
    HF_ASSIGN_OR_RETURN(const StepLog log, ReadSteps(dir_));
    HF_ASSIGN_OR_RETURN(const Summary summary, ReadSummary(dir_));
    HF_ASSIGN_OR_RETURN(const auto events, ReadEvents(dir_));
    std::vector<std::string> wrong = JudgeSteps(reference, log, {.last_step = kSteps});
    for (const auto& more : {JudgeSummary(reference, summary), JudgeEvents(events)})
      wrong.insert(wrong.end(), more.begin(), more.end());
    for (const std::string& text : wrong) Say("WRONG: %s", text.c_str());
    if (reference.lines.empty() || log.lines.empty())
      return absl::InternalError("no steps on record");
    Say("state digest after step %lld, disturbed:    %s", static_cast<long long>(log.last_step()),
        summary.digest.c_str());
    Say("state digest after step %lld, undisturbed:  %s",
        static_cast<long long>(reference.last_step()), reference.lines.back().digest.c_str());
    if (!wrong.empty())
      return absl::InternalError("the disturbed run differs from the undisturbed one");
    Say("%zu of %zu steps have the same state digest, loss and samples; loss %.4f -> %.4f",
        log.lines.size(), reference.lines.size(), log.lines.front().loss, log.lines.back().loss);
    Say("EQUAL: the run that lost workers %lld times and was killed whole ends in the same bits",
        2LL);
    return absl::OkStatus();
  }

  void PrintTimings() const {
    const double sgemm = SgemmFlopsPerSecond(), step = kFlopAStep / (timings_.step_ms / 1000);
    Heading("timings on this machine (%ld cores)", sysconf(_SC_NPROCESSORS_ONLN));
    Say("SIGKILL of a worker to the next step    %7.0f ms", timings_.kill_ms);
    Say("SIGSTOP of a worker to the next step    %7.0f ms", timings_.freeze_ms);
    Say("one step, one worker, one thread        %7.1f ms  (%.1f GFLOP/s in products)",
        timings_.step_ms, step * 1e-9);
    Say("sgemm, one thread                       %7.1f GFLOP/s; a step runs at %.0f%% of it",
        sgemm * 1e-9, 100 * step / sgemm);
  }

  absl::Status ExpectClean(const std::string& dir) {
    const auto left = residue_.Check(run_->mark(), dir, Deadline::After(10'000));
    for (const std::string& text : left) Say("LEFT BEHIND: %s", text.c_str());
    if (!left.empty()) return absl::InternalError("something was left behind");
    Say("nothing is left behind: no process, port, shared memory or scratch file");
    return absl::OkStatus();
  }

  const std::string program_, data_, folder_, dir_;
  const Residue residue_;
  std::unique_ptr<ChildProcess> run_;
  std::unique_ptr<EventView> view_;
  Timings timings_;
};

// Real English text that every Debian has: the licence texts, one after the other.
absl::StatusOr<std::string> CollectText(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/usr/share/common-licenses", error)) {
    if (entry.is_regular_file() && !entry.is_symlink()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  const std::string path = folder + "/licences.txt";
  std::ofstream out(path, std::ios::binary);
  for (const fs::path& file : files) out << std::ifstream(file, std::ios::binary).rdbuf();
  out.flush();
  if (!out.good() || fs::file_size(path, error) < 100'000) {
    return absl::NotFoundError(
        "/usr/share/common-licenses holds too little text here; give a text file with --data FILE");
  }
  return path;
}

int Main(int argc, char** argv) {
  std::string program = "build/holdfast", data;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--program") program = argv[i + 1];
    if (std::string(argv[i]) == "--data") data = argv[i + 1];
  }
  AdoptOrphans();
  const std::string pattern = (fs::temp_directory_path() / "holdfast-demo-XXXXXX").string();
  std::vector<char> name(pattern.begin(), pattern.end());
  name.push_back('\0');
  if (mkdtemp(name.data()) == nullptr) {
    std::fprintf(stderr, "no temporary folder can be made at %s\n", pattern.c_str());
    return 1;
  }
  const std::string folder = name.data();
  absl::Status status;
  if (data.empty()) {
    auto text = CollectText(folder);
    status = text.status();
    if (text.ok()) data = *text;
  }
  if (status.ok()) status = Demo(fs::absolute(program).string(), data, folder).Run();
  if (!status.ok()) {
    std::fprintf(stderr, "\nDEMO FAILED: %s\nfiles: %s\n", std::string(status.message()).c_str(),
                 folder.c_str());
    return 1;
  }
  fs::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace holdfast::chaos

int main(int argc, char** argv) { return holdfast::chaos::Main(argc, argv); }
