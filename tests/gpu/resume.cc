// The program itself: killed as a worker and as a whole, resumed from RocksDB, against an
// undisturbed run.
#include <filesystem>
#include <map>

#include "chaos/injector.h"
#include "chaos/oracle.h"
#include "chaos/residue.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/text.h"
#include "tests/gpu/training.h"

namespace holdfast {
namespace {

using chaos::ChildProcess;
using chaos::FaultKind;

constexpr int64_t kRunMs = 60'000;
constexpr int64_t kSteps = 30, kEvery = 10;

class Runs {
 public:
  Runs(const GpuCheck& check, std::string data) : check_(check), data_(std::move(data)) {}

  std::string Dir(const std::string& name) const { return check_.scratch + "/" + name; }

  absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::string& name) const {
    const GpuShapes& s = check_.shapes;
    chaos::SpawnOptions options;
    options.args = {check_.program, "run", "--dir", Dir(name), "--data", data_};
    // Smaller than GPT-2, for the sake of the checkpoints: the promise does not depend on it.
    const std::map<std::string, std::string> flags = {
        {"device", "cuda"},
        {"workers", "1"},
        {"layers", "2"},
        {"heads", Cat(std::min<int64_t>(4, s.heads))},
        {"embed", Cat(std::min<int64_t>(256, s.width))},
        {"context", Cat(s.context)},
        {"vocab-size", Cat(s.vocab)},
        {"micro-batches", "2"},
        {"micro-batch-size", Cat(s.batch)},
        {"steps", Cat(kSteps)},
        {"checkpoint-every", Cat(kEvery)},
        {"eval-every", "0"},
        {"eval-batches", "1"},
        {"tensorboard", "off"},
    };
    for (const auto& [name_of_flag, value] : flags) {
      options.args.push_back("--" + name_of_flag);
      options.args.push_back(value);
    }
    if (!check_.cuda_libs.empty()) {
      options.args.push_back("--cuda-libs");
      options.args.push_back(check_.cuda_libs);
    }
    options.output_path = Dir(name) + ".log";
    return ChildProcess::Start(options);
  }

  absl::Status End(ChildProcess& run) const {
    HF_ASSIGN_OR_RETURN(const chaos::EndState end, run.Wait(Deadline::After(kRunMs)));
    if (end.exited && end.code == 0) return absl::OkStatus();
    return absl::InternalError(Cat("holdfast run: ", end.Text(), ": ", run.Output(600)));
  }

  absl::Status Whole(const std::string& name) const {
    HF_ASSIGN_OR_RETURN(const auto run, Start(name));
    return End(*run);
  }

 private:
  const GpuCheck& check_;
  const std::string data_;
};

// The row: are all steps of `name` those of the reference?
void Compare(GpuCheck& check, const Runs& runs, const std::string& what, const std::string& name) {
  const auto reference = chaos::ReadSteps(runs.Dir("undisturbed"));
  const auto log = chaos::ReadSteps(runs.Dir(name));
  if (!reference.ok() || !log.ok()) {
    check.rows->Judge(what, reference.ok() ? log.status() : reference.status(), "");
    return;
  }
  const auto complaints = chaos::JudgeSteps(*reference, *log, {.last_step = kSteps});
  if (complaints.empty()) {
    check.rows->Ok(what,
                   Cat("all ", kSteps, " steps have the undisturbed run's digests, the last is ",
                       log->lines.back().digest));
  } else {
    check.rows->Fail(what, complaints.front());
  }
}

absl::Status KillWorker(GpuCheck& check, const Runs& runs) {
  const std::string what = "kill -9 of the worker";
  check.rows->Begin(what);
  HF_ASSIGN_OR_RETURN(const auto run, runs.Start("worker"));
  HF_RETURN_IF_ERROR(chaos::Inject(*run, runs.Dir("worker"),
                                   {.kind = FaultKind::kKillWorker, .at_step = kEvery + 3},
                                   Deadline::After(kRunMs))
                         .status());
  HF_RETURN_IF_ERROR(runs.End(*run));
  Compare(check, runs, what, "worker");
  return absl::OkStatus();
}

absl::Status KillAll(GpuCheck& check, const Runs& runs) {
  const std::string what = "kill -9 of everything, and resume from RocksDB";
  check.rows->Begin(what);
  {
    const chaos::Residue residue;
    HF_ASSIGN_OR_RETURN(const auto run, runs.Start("all"));
    HF_RETURN_IF_ERROR(chaos::Inject(*run, runs.Dir("all"),
                                     {.kind = FaultKind::kKillAll, .at_step = kEvery + 5},
                                     Deadline::After(kRunMs))
                           .status());
    HF_RETURN_IF_ERROR(run->Wait(Deadline::After(kRunMs)).status());
    const auto left = residue.Check(run->mark(), "", Deadline::After(5'000));
    if (!left.empty()) check.rows->Fail("what the killed run left", left.front());
  }
  HF_RETURN_IF_ERROR(runs.Whole("all"));
  HF_ASSIGN_OR_RETURN(const auto events, chaos::ReadEvents(runs.Dir("all")));
  const bool resumed = std::any_of(events.begin(), events.end(), [](const chaos::EventLine& e) {
    return e.text.find("resumed from the checkpoint") != std::string::npos ||
           e.line.find("state from checkpoint") != std::string::npos;
  });
  if (!resumed) {
    check.rows->Fail(what, "the second start did not resume from a checkpoint");
    return absl::OkStatus();
  }
  Compare(check, runs, what, "all");
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckResume(GpuCheck& check) {
  chaos::AdoptOrphans();
  const Runs runs(check, RandomTokens(check, 8 * check.shapes.rows() + 100'000));
  check.rows->Begin("the undisturbed run of the program");
  HF_RETURN_IF_ERROR(runs.Whole("undisturbed"));
  HF_RETURN_IF_ERROR(KillWorker(check, runs));
  return KillAll(check, runs);
}

}  // namespace holdfast
