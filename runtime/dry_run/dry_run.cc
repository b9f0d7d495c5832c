#include "runtime/dry_run/dry_run.h"

#include <algorithm>
#include <cstdio>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/dry_run/checks.h"
#include "runtime/dry_run/machine.h"
#include "runtime/dry_run/measure.h"
#include "runtime/dry_run/print.h"
#include "runtime/supervisor/exit_status.h"

namespace holdfast {
namespace {

constexpr int64_t kMomentMs = 1500;
constexpr int64_t kLogsBytes = 64 << 20;

// Data, model and memory: what the rehearsal found out.
void AddModelChecks(const absl::StatusOr<Measured>& measured, DryRunReport* r) {
  if (!measured.ok()) {
    const absl::Status& status = measured.status();
    const ExitCode exit = ExitCodeOf(status, ExitCode::kUsage);
    const char* name = absl::IsResourceExhausted(status) ? "memory"
                       : exit == ExitCode::kData         ? "data"
                                                         : "model";
    r->checks.push_back({name, Check::Outcome::kFailed, std::string(status.message()), exit});
    return;
  }
  r->measured_known = true;
  r->measured = *measured;
  r->estimate = EstimateRun(r->config, r->measured, r->machine, r->options);
  const Estimate& e = r->estimate;
  r->checks.push_back({"data", Check::Outcome::kOk, measured->model.data});
  if (measured->nonfinite) {
    r->checks.push_back({"first steps", Check::Outcome::kWarning,
                         "a gradient is not finite: is the learning rate too high?"});
  }
  const bool fits = r->machine.memory_free < 0 || e.memory_all <= r->machine.memory_free;
  r->checks.push_back(
      {"memory", fits ? Check::Outcome::kOk : Check::Outcome::kFailed,
       fits ? Cat(BytesText(e.memory_all), " for ", e.here.workers,
                  e.here.workers == 1 ? " worker" : " workers")
            : Cat("--workers ", e.here.workers, " need ", BytesText(e.memory_all), ", ",
                  BytesText(r->machine.memory_free), " are free: take --workers ",
                  std::max<int64_t>(1, e.fitting_workers),
                  ", fewer --threads, a smaller --micro-batch-size or a smaller model")});
  const int64_t disk = e.disk_needed + kLogsBytes;
  const bool room = r->machine.disk_free < 0 || disk <= r->machine.disk_free;
  r->checks.push_back(
      {"disk", room ? Check::Outcome::kOk : Check::Outcome::kFailed,
       Cat(BytesText(e.disk_needed), " for checkpoints, ", BytesText(r->machine.disk_free), " free",
           room ? "" : ": lower --keep, or choose a --dir with more room")});
}

}  // namespace

ExitCode DryRun(const Config& wanted, const DryRunOptions& options, const Trainer& trainer) {
  const int64_t start_ms = BootMs();
  DryRunReport r;
  r.options = options.estimate;
  r.checks = CheckSurroundings(wanted, &r.config);
  r.machine = LookAtMachine(r.config.dir);
  MeasureOptions measure;
  measure.memory_free = r.machine.memory_free;
  measure.progress = [start_ms](std::string_view phase) {
    const int64_t ms = BootMs() - start_ms;
    if (ms < kMomentMs) return;
    std::fprintf(stderr, "holdfast: dry run: %.*s ... (%.0f s)\n", static_cast<int>(phase.size()),
                 phase.data(), static_cast<double>(ms) / 1000);
  };
  AddModelChecks(MeasureInChild(r.config, trainer, measure), &r);
  std::fputs((options.json ? DryRunJson(r) : DryRunText(r)).c_str(), stdout);
  std::fflush(stdout);
  const auto failed = std::find_if(r.checks.begin(), r.checks.end(), [](const Check& c) {
    return c.outcome == Check::Outcome::kFailed;
  });
  if (failed == r.checks.end()) return ExitCode::kOk;
  std::fprintf(stderr, "holdfast run --dry-run: %s: %s\n", failed->name.c_str(),
               failed->text.c_str());
  return failed->exit;
}

}  // namespace holdfast
