#include "runtime/dry_run/measure.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/dry_run/determinism.h"
#include "runtime/dry_run/machine.h"
#include "runtime/dry_run/print.h"
#include "runtime/models/data/overfit_source.h"
#include "runtime/models/model_spec.h"
#include "runtime/session/compute_pool.h"
#include "runtime/session/init_from.h"
#include "runtime/session/plan.h"
#include "runtime/session/step_engine.h"
#include "runtime/supervisor/exit_status.h"
#include "runtime/supervisor/settle_device.h"

namespace holdfast {
namespace {

constexpr int kMostSteps = 12, kMostRetries = 16;
constexpr int64_t kChildMs = 3'600'000;

double Ms(int64_t us) { return static_cast<double>(us) * 1e-3; }

// One worker, as Session::Prepare builds it, less everything that others see.
class Rehearsal {
 public:
  Rehearsal(const Config& config, const Trainer& trainer, const MeasureOptions& options)
      : config_(config), trainer_(trainer), options_(options) {}

  absl::StatusOr<Measured> Run();

 private:
  struct StepTime {
    double compute_ms = 0, rest_ms = 0;
  };
  absl::Status Open();
  absl::Status CheckFit() const;
  absl::Status Build();
  absl::StatusOr<StepTime> Step(StepEngine& engine, int64_t units);
  absl::Status Warm();
  absl::Status TimeSteps();
  absl::Status TimeEval();
  void Book(const StepTime& best, double* round_ms, double* apply_ms) const;
  int64_t Left() const {
    return options_.memory_free < 0 ? INT64_MAX : options_.memory_free - AnonymousBytes();
  }

  const Config config_;
  const Trainer& trainer_;
  const MeasureOptions& options_;
  Measured m_;
  TimeLedger time_;
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<DataSource> data_;
  StatePlan plan_;
  std::unique_ptr<State> state_;
  std::unique_ptr<ComputePool> pool_;
  std::unique_ptr<StepEngine> engine_;
};

absl::Status Rehearsal::Open() {
  const std::string toml = config_.ToToml();
  auto data = trainer_.data(toml);
  if (!data.ok()) return WithExit(data.status(), ExitCode::kData);
  HF_ASSIGN_OR_RETURN(data_, Overfit(*std::move(data), config_.micro_batches, config_.overfit));
  HF_ASSIGN_OR_RETURN(const auto model, trainer_.model(toml));
  HF_ASSIGN_OR_RETURN(const ModelSpec spec, model->Describe());
  HF_RETURN_IF_ERROR(ValidateModelSpec(spec));
  if (!config_.init_from.empty()) {
    const absl::Status fits = CheckInitFile(config_.init_from, spec);
    if (!fits.ok()) return WithExit(Annotate(fits, "--init-from"), ExitCode::kData);
  }
  HF_ASSIGN_OR_RETURN(
      plan_, MakePlan(spec, [&](const std::string& rule) { return SlotsOfRule(trainer_, rule); }));
  ModelFacts& f = m_.model;
  for (const TrainedTensor& t : plan_.trained) f.parameters += t.elements;
  f.tensors = static_cast<int64_t>(spec.tensors.size());
  for (const storage::Region& r : plan_.Regions()) f.state_bytes += 4 * r.words;
  f.resident_bytes = ResidentBytes(f.parameters, f.state_bytes, config_.threads, 1, false);
  f.tokens_per_step = data_->tokens_per_micro_batch() * config_.micro_batches;
  f.eval_batches = data_->eval_batches();
  if (config_.eval_batches > 0) f.eval_batches = std::min(f.eval_batches, config_.eval_batches);
  f.data = data_->Summary();
  return absl::OkStatus();
}

absl::Status Rehearsal::CheckFit() const {
  if (m_.model.resident_bytes <= Left()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      Cat("the model does not fit: one worker needs ", BytesText(m_.model.resident_bytes), " for ",
          Grouped(m_.model.parameters), " parameters, activations not counted; ",
          BytesText(std::max<int64_t>(0, Left())),
          " are free here. Make the model smaller (--layers, --embed, --vocab-size)",
          config_.threads > 1
              ? Cat(", take fewer --threads (each needs ", BytesText(4 * m_.model.parameters), ")")
              : std::string(),
          ", or use a machine with more memory: every worker holds the whole state"));
}

absl::Status Rehearsal::Build() {
  kernels::Device* device = &kernels::CpuDevice();
  if (config_.device == "cuda") {
    HF_ASSIGN_OR_RETURN(device, kernels::FindCudaBackend().Open(CudaOptionsOf(config_), 0));
  }
  comm_ = MakeLocalCommunicator(device);
  HF_ASSIGN_OR_RETURN(state_, State::Allocate(plan_, *device));
  HF_RETURN_IF_ERROR(state_->Initialise(
      config_.seed, data_->streaming() ? config_.micro_batches : 0, config_.precision == "fp16"));
  ComputePool::Options pool;
  pool.threads = config_.threads;
  pool.seed = config_.seed;
  pool.toml = config_.ToToml();
  HF_ASSIGN_OR_RETURN(pool_, ComputePool::Create(pool, trainer_, data_.get(), state_.get()));
  HF_ASSIGN_OR_RETURN(engine_, StepEngine::Create(config_, trainer_, data_.get(), state_.get(),
                                                  pool_.get(), &time_));
  engine_->SetWorld(1, 0);
  engine_->ResetSums();
  return absl::OkStatus();
}

// One step of the first `units` micro-batches, applied.
absl::StatusOr<Rehearsal::StepTime> Rehearsal::Step(StepEngine& engine, int64_t units) {
  std::vector<int32_t> mine(static_cast<size_t>(units));
  for (int64_t j = 0; j < units; ++j) mine[static_cast<size_t>(j)] = static_cast<int32_t>(j);
  for (int attempt = 0; attempt < kMostRetries; ++attempt) {
    engine.ResetSums();
    ControlRow row;
    row.step = state_->scalars.step;
    row.attempt = attempt;
    std::vector<ControlRow> rows;
    StepFacts facts;
    const int64_t start_us = BootUs();
    HF_RETURN_IF_ERROR(
        engine.Attempt(*comm_, mine, state_->scalars.step, attempt, row, &rows, &facts));
    if (facts.out_of_range) {
      // A first gradient beyond the fixed-point range: as in a run, again with a smaller scale.
      engine.LowerExponents(facts);
      state_->scalars.exponent = engine.exponents();
      continue;
    }
    m_.nonfinite |= !facts.gathered;
    HF_ASSIGN_OR_RETURN(const StepResult result,
                        facts.gathered ? engine.Apply(facts) : engine.Skip(facts));
    const double total_ms = Ms(BootUs() - start_us);
    if (m_.steps++ == 0) m_.first_loss = result.loss;
    m_.last_loss = result.loss;
    return StepTime{Ms(facts.compute_us), total_ms - Ms(facts.compute_us)};
  }
  return absl::InternalError("the gradient stays out of the fixed-point range at every scale");
}

// The first step pays for memory that later ones have; it also says how many micro-batches fit the
// budget.
absl::Status Rehearsal::Warm() {
  const int64_t one_round = std::min<int64_t>(config_.threads, config_.micro_batches);
  HF_RETURN_IF_ERROR(Step(*engine_, one_round).status());
  HF_ASSIGN_OR_RETURN(const StepTime warm, Step(*engine_, one_round));
  const double fitting =
      static_cast<double>(options_.budget_ms) / 3 / std::max(warm.compute_ms, 1e-3);
  const auto rounds = static_cast<int64_t>(std::clamp(fitting, 1.0, 1e6));
  m_.units = std::min(config_.micro_batches, rounds * one_round);
  return absl::OkStatus();
}

// From the best step: time of a round of --threads micro-batches, and of what comes once a step.
void Rehearsal::Book(const StepTime& best, double* round_ms, double* apply_ms) const {
  const int64_t at_once = std::min<int64_t>(config_.threads, m_.units);
  const int64_t rounds = (m_.units + at_once - 1) / at_once;
  *round_ms = best.compute_ms / static_cast<double>(rounds);
  *apply_ms = best.rest_ms;
}

absl::Status Rehearsal::TimeSteps() {
  // The other kind of sums on the same state and threads, step by step in turn, so that whatever
  // else the machine does meets both.
  Config fast_config = config_;
  fast_config.reduction = "fast";
  TimeLedger ledger;
  std::unique_ptr<StepEngine> fast;
  const bool compare = config_.reduction == "exact" && Left() > 16 * m_.model.parameters;
  if (compare) {
    HF_ASSIGN_OR_RETURN(fast, StepEngine::Create(fast_config, trainer_, data_.get(), state_.get(),
                                                 pool_.get(), &ledger));
    fast->SetWorld(1, 0);
    HF_RETURN_IF_ERROR(Step(*fast, std::min<int64_t>(config_.threads, m_.units)).status());
  }
  StepTime best{INFINITY, INFINITY}, best_fast = best;
  int timed = 0;
  const auto better = [](StepTime* to, const StepTime& t) {
    to->compute_ms = std::min(to->compute_ms, t.compute_ms);
    to->rest_ms = std::min(to->rest_ms, t.rest_ms);
  };
  const Deadline deadline = Deadline::After(2 * options_.budget_ms);
  for (int i = 0; i < kMostSteps && (i < 2 || !deadline.passed()); ++i) {
    HF_ASSIGN_OR_RETURN(const StepTime t, Step(*engine_, m_.units));
    better(&best, t);
    timed = i + 1;
    if (!compare) continue;
    HF_ASSIGN_OR_RETURN(const StepTime f, Step(*fast, m_.units));
    better(&best_fast, f);
  }
  m_.steps = timed;
  Book(best, &m_.round_ms, &m_.apply_ms);
  if (compare) Book(best_fast, &m_.fast_round_ms, &m_.fast_apply_ms);
  return absl::OkStatus();
}

absl::Status Rehearsal::TimeEval() {
  const int64_t batches = std::min<int64_t>(config_.threads, m_.model.eval_batches);
  if (batches == 0) return absl::OkStatus();
  for (int i = 0; i < 2; ++i) {  // the first one warms up
    const int64_t start_us = BootUs();
    pool_->StartEval(0, 1, batches);
    while (!pool_->Finished(1000)) {
    }
    HF_RETURN_IF_ERROR(pool_->status());
    m_.eval_round_ms = Ms(BootUs() - start_us);
  }
  return absl::OkStatus();
}

absl::StatusOr<Measured> Rehearsal::Run() {
  options_.progress("reading the data");
  HF_RETURN_IF_ERROR(Open());
  HF_RETURN_IF_ERROR(CheckFit());
  const int64_t before = AnonymousBytes();
  options_.progress("building the model");
  HF_RETURN_IF_ERROR(Build());
  options_.progress("first steps");
  HF_RETURN_IF_ERROR(Warm());
  HF_RETURN_IF_ERROR(TimeEval());
  // The program's own part (before) is counted with the activations.
  m_.other_bytes = std::max<int64_t>(0, AnonymousBytes() - m_.model.resident_bytes);
  m_.other_bytes = std::max(m_.other_bytes, before);
  options_.progress("timing steps");
  HF_RETURN_IF_ERROR(TimeSteps());
  options_.progress("computing one micro-batch four times");
  if (Left() > 8 * m_.model.parameters) {
    HF_ASSIGN_OR_RETURN(const Repeatability r,
                        CheckRepeatability(config_, trainer_, data_.get(), state_.get()));
    m_.differs_again = r.again;
    m_.differs_threads = r.threads;
    m_.determinism_known = true;
  }
  return m_;
}

using Json = nlohmann::json;

Json Encode(const Measured& m) {
  return {{"parameters", m.model.parameters},
          {"tensors", m.model.tensors},
          {"state_bytes", m.model.state_bytes},
          {"resident_bytes", m.model.resident_bytes},
          {"tokens_per_step", m.model.tokens_per_step},
          {"eval_batches", m.model.eval_batches},
          {"data", m.model.data},
          {"units", m.units},
          {"steps", m.steps},
          {"times", {m.round_ms, m.apply_ms, m.fast_round_ms, m.fast_apply_ms, m.eval_round_ms}},
          {"other_bytes", m.other_bytes},
          // As text: JSON has no NaN.
          {"losses", {Cat(m.first_loss), Cat(m.last_loss)}},
          {"nonfinite", m.nonfinite},
          {"differs", {m.differs_again, m.differs_threads}},
          {"determinism_known", m.determinism_known}};
}

Measured Decode(const Json& j) {
  Measured m;
  m.model.parameters = j.at("parameters");
  m.model.tensors = j.at("tensors");
  m.model.state_bytes = j.at("state_bytes");
  m.model.resident_bytes = j.at("resident_bytes");
  m.model.tokens_per_step = j.at("tokens_per_step");
  m.model.eval_batches = j.at("eval_batches");
  m.model.data = j.at("data");
  m.units = j.at("units");
  m.steps = j.at("steps");
  const Json& times = j.at("times");
  m.round_ms = times.at(0), m.apply_ms = times.at(1), m.fast_round_ms = times.at(2);
  m.fast_apply_ms = times.at(3), m.eval_round_ms = times.at(4);
  m.other_bytes = j.at("other_bytes");
  m.first_loss = std::stod(j.at("losses").at(0).get<std::string>());
  m.last_loss = std::stod(j.at("losses").at(1).get<std::string>());
  m.nonfinite = j.at("nonfinite");
  m.differs_again = j.at("differs").at(0);
  m.differs_threads = j.at("differs").at(1);
  m.determinism_known = j.at("determinism_known");
  return m;
}

// The child: measures, writes one JSON document, ends.
[[noreturn]] void MeasureAndTell(const Config& config, const Trainer& trainer,
                                 const MeasureOptions& options, int fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::ofstream("/proc/self/oom_score_adj") << "1000";  // this one first, nobody else
  Json json;
  try {
    const auto measured = Measure(config, trainer, options);
    if (measured.ok()) {
      json = Encode(*measured);
    } else {
      json = {{"error", std::string(measured.status().message())},
              {"code", static_cast<int>(measured.status().code())},
              {"exit", static_cast<int>(ExitCodeOf(measured.status(), ExitCode::kUsage))}};
    }
  } catch (const std::exception& e) {
    json = {{"error", Cat("the trainer threw an exception: ", e.what())},
            {"code", static_cast<int>(absl::StatusCode::kInternal)},
            {"exit", static_cast<int>(ExitCode::kFailed)}};
  }
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(fd, text.data() + at, text.size() - at);
    if (n <= 0) _exit(1);
    at += static_cast<size_t>(n);
  }
  _exit(0);
}

// All that comes until the other end is closed.
absl::StatusOr<std::string> ReadAll(int fd, Deadline deadline) {
  std::string text;
  char buffer[4096];
  while (true) {
    pollfd p{fd, POLLIN, 0};
    const int ready = poll(&p, 1, static_cast<int>(std::min<int64_t>(deadline.left_ms(), 1000)));
    if (ready == 0 && deadline.passed())
      return absl::DeadlineExceededError("the steps were not over within an hour");
    if (ready <= 0) continue;
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace

int64_t ResidentBytes(int64_t parameters, int64_t state_bytes, int threads, int world_size,
                      bool saving) {
  return state_bytes + parameters * (4 + 8 + 4 * static_cast<int64_t>(threads)) +
         8 * parameters / world_size + (saving ? state_bytes / world_size : 0);
}

absl::StatusOr<Measured> Measure(const Config& config, const Trainer& trainer,
                                 const MeasureOptions& options) {
  return Rehearsal(config, trainer, options).Run();
}

absl::StatusOr<Measured> MeasureInChild(const Config& config, const Trainer& trainer,
                                        const MeasureOptions& options) {
  // The driver knows this process by now and would not know its child: a GPU is measured here. (Its
  // own memory, which is what runs out there, ends no process.)
  if (config.device == "cuda") return Measure(config, trainer, options);
  int ends[2];
  if (pipe(ends) != 0) return absl::InternalError("pipe");
  const pid_t pid = fork();
  if (pid < 0) return absl::InternalError("fork");
  if (pid == 0) {
    close(ends[0]);
    MeasureAndTell(config, trainer, options, ends[1]);
  }
  close(ends[1]);
  const auto text = ReadAll(ends[0], Deadline::After(kChildMs));
  close(ends[0]);
  if (!text.ok()) kill(pid, SIGKILL);
  int how = 0;
  while (waitpid(pid, &how, 0) < 0 && errno == EINTR) {
  }
  if (!text.ok()) return text.status();
  if (WIFSIGNALED(how)) {
    if (WTERMSIG(how) == SIGKILL || WTERMSIG(how) == SIGABRT)
      return absl::ResourceExhaustedError(Cat(
          "the measuring process was ended by ", strsignal(WTERMSIG(how)),
          ": most likely its memory ran out, as activations did not fit beside the state. Take a "
          "smaller --micro-batch-size, --context or --threads"));
    return WithExit(
        absl::InternalError(Cat("the model or data source crashed: ", strsignal(WTERMSIG(how)))),
        ExitCode::kGaveUp);
  }
  const Json json = Json::parse(*text, nullptr, false);
  if (!json.is_object()) return absl::InternalError("the measuring process told nothing");
  if (json.contains("error")) {
    return WithExit(absl::Status(static_cast<absl::StatusCode>(json.value("code", 13)),
                                 json.value("error", "")),
                    static_cast<ExitCode>(json.value("exit", 1)));
  }
  return Decode(json);
}

}  // namespace holdfast
