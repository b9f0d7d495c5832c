#include "runtime/session/session.h"
#include "runtime/session/shares.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "runtime/base/digest.h"
#include "runtime/base/failpoint.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {

constexpr int kMaxFailuresOfAStep = 6;
constexpr int64_t kMaxSkipsInARow = 10;

bool MeansRegroup(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsUnavailable(status) || absl::IsDataLoss(status) || absl::IsCancelled(status);
}

}  // namespace

Session::Ending Session::Failed(const absl::Status& status) {
  Ending ending;
  ending.reason = std::string(status.message());
  if (generation_.comm != nullptr) generation_.comm->Abort(status);
  DropSave();
  time_.Switch(TimeKind::kLost);
  if (DeviceLost()) {
    ending.kind = Ending::Kind::kError;
    ending.status = status;
    return ending;
  }
  if (!MeansRegroup(status)) {
    ending.kind = Ending::Kind::kError;
    ending.status = status;
    return ending;
  }
  lost_at_ms_ = BootMs();
  reporter_.Lost(generation_.roster.generation, state_->scalars.step, ending.reason);
  return ending;
}

// Nothing can be done with a device that is lost but to end: a new process may find it well.
bool Session::DeviceLost() {
  if (device_ == nullptr || device_->Health().ok()) return false;
  exit_ = ExitCode::kDeviceLost;
  return true;
}

// The wait for a save under way ends; the wish for one stays.
void Session::DropSave() {
  want_save_ |= saver_->in_flight();
  saver_->Abandon();
}

FinalReport Session::Run() {
  std::string reason = "start";
  Ending ending;
  while (true) {
    auto entered = EnterGeneration(reason);
    if (!entered.ok()) {
      (void)DeviceLost();
      ending.kind = Ending::Kind::kError;
      ending.status = entered.status();
      break;
    }
    ending = *std::move(entered);
    if (ending.kind != Ending::Kind::kRegroup) break;
    ending = Train();
    if (ending.kind != Ending::Kind::kRegroup) break;
    reason = ending.reason;
    generation_.comm.reset();
  }
  FinalReport report;
  report.step = state_->scalars.step;
  report.digest = state_->valid ? state_->Digest() : 0;
  report.generation = generation_.roster.generation;
  report.train_loss = train_loss_;
  report.eval_loss = eval_known_ ? eval_loss_ : std::nan("");
  report.text = ending.reason;
  if (ending.kind == Ending::Kind::kFinished) {
    // Who comes after the end never had that state, but can say where the run has ended.
    const rendezvous::Notices notices = membership_->notices();
    if (report.step < notices.finished_step) {
      report.step = notices.finished_step;
      report.digest = notices.finished_digest;
    }
  }
  switch (ending.kind) {
    case Ending::Kind::kFinished:
      report.exit = ExitCode::kOk;
      report.finished = true;
      break;
    case Ending::Kind::kLeft:
      report.exit = ending.cause == EndReason::kStop        ? ExitCode::kStopped
                    : ending.cause == EndReason::kStoreLost ? ExitCode::kStoreLost
                    : ending.others_remain                  ? ExitCode::kLeft
                                                            : ExitCode::kInterrupted;
      break;
    default:
      report.exit = exit_;
      report.text = std::string(ending.status.message());
  }
  generation_.comm.reset();
  saver_.reset();
  membership_.reset();
  return report;
}

Session::Ending Session::Train() {
  while (true) {
    const int64_t step = state_->scalars.step;
    Failpoint("step.begin", step + 1);
    if (const absl::Status status = Evaluate(); !status.ok()) return Failed(status);
    if (const absl::Status status = SaveCandidate(); !status.ok()) return Failed(status);
    if (step >= config_.steps) return FinishRun();
    step_started_us_ = BootUs();
    std::vector<ControlRow> rows;
    StepFacts facts;
    const auto verdict = OneAttempt(&rows, &facts);
    if (!verdict.ok()) return Failed(verdict.status());
    if (const absl::Status status = ActOnStep(*verdict, facts); !status.ok()) return Failed(status);
    if (const absl::Status status = ActOnSave(*verdict, rows); !status.ok()) return Failed(status);
    Ending ending;
    const auto over = Boundary(*verdict, &ending);
    if (!over.ok()) return Failed(over.status());
    if (*over) return ending;
  }
}

ControlRow Session::MakeRow() {
  ControlRow row;
  row.generation = generation_.roster.generation;
  row.step = state_->scalars.step;
  row.attempt = generation_.attempt;
  row.intents = Intents();
  row.state_digest = state_->Digest();
  row.machine = Hash64(start_.machine);
  const rendezvous::Notices notices = membership_->notices();
  row.store_id = notices.store_id;
  row.contact_age_ms =
      static_cast<uint32_t>(std::clamp<int64_t>(notices.contact_age_ms, 0, UINT32_MAX));
  saver_->FillRow(&row);
  return row;
}

TableExpectation Session::Expect(bool is_step) const {
  TableExpectation e;
  e.generation = generation_.roster.generation;
  e.step = state_->scalars.step;
  e.attempt = generation_.attempt;
  e.is_step = is_step;
  e.micro_batches = static_cast<int32_t>(config_.micro_batches);
  e.work_hash = ExpectedWorkHash(config_.seed, e.step, config_.micro_batches);
  e.recheck_count = generation_.recheck_count;
  e.recheck_hash = generation_.recheck_hash;
  e.min_workers = config_.min_workers;
  if (saver_->in_flight()) {
    e.save_step = saver_->id().step;
    e.save_digest = saver_->digest();
  }
  return e;
}

// A table has shown equal digests of the held state: it is vouched for, and the step that made it
// may be told.
void Session::Agreed() {
  vouched_ = true;
  agreed_step_ = state_->scalars.step;
  agreed_digest_ = state_->Digest();
  if (!unagreed_.present) return;
  unagreed_.present = false;
  reporter_.Step(unagreed_.report, time_);
}

absl::StatusOr<Verdict> Session::OneAttempt(std::vector<ControlRow>* rows, StepFacts* facts) {
  progress_.store(BootMs(), std::memory_order_relaxed);
  stall_ms_.store(engine_->stall_ms(), std::memory_order_relaxed);
  const TableExpectation expected = Expect(true);
  attempt_mark_ = time_;
  const absl::Status status = engine_->Attempt(*generation_.comm, generation_.mine, expected.step,
                                               expected.attempt, MakeRow(), rows, facts);
  if (!status.ok()) {
    time_.Switch(TimeKind::kLost);
    time_.Rebook(attempt_mark_, TimeKind::kReduce, TimeKind::kLost);
    return status;
  }
  std::string why;
  if (!SameRound(*rows, expected, &why)) return absl::AbortedError(why);
  Verdict verdict = Judge(*rows, expected);
  adopted_intents_ |= verdict.intents & (kIntentStop | kIntentStoreLost);
  if (verdict.decision != Decision::kHeal) Agreed();
  return verdict;
}

absl::StatusOr<Verdict> Session::OneRound(std::vector<ControlRow>* rows) {
  progress_.store(BootMs(), std::memory_order_relaxed);
  const TableExpectation expected = Expect(false);
  HF_RETURN_IF_ERROR(engine_->Round(*generation_.comm, MakeRow(), rows));
  std::string why;
  if (!SameRound(*rows, expected, &why)) return absl::AbortedError(why);
  Verdict verdict = Judge(*rows, expected);
  adopted_intents_ |= verdict.intents & (kIntentStop | kIntentStoreLost);
  ++generation_.attempt;  // rounds are told apart by it
  if (verdict.decision == Decision::kHeal) {
    HF_RETURN_IF_ERROR(ActOnStep(verdict, StepFacts()));
  }
  Agreed();
  return verdict;
}

// The first rotation of the deal that gives `micro_batch` to another rank than `rank` (itself when
// alone).
int Session::RotationAwayFrom(int rank, int32_t micro_batch) const {
  const int world = generation_.comm->world_size();
  const std::vector<std::vector<bool>> none(world, std::vector<bool>(config_.micro_batches, false));
  for (int rotate = 0; rotate < world; ++rotate) {
    const auto& share = DealMicroBatches(config_.micro_batches, none, rotate).compute[rank];
    if (!std::binary_search(share.begin(), share.end(), micro_batch)) return rotate;
  }
  return 0;
}

// All ranks have dropped their sums: everything is dealt anew.
void Session::DealAgain(int rotate) {
  const int world = generation_.comm->world_size();
  const std::vector<std::vector<bool>> none(world, std::vector<bool>(config_.micro_batches, false));
  generation_.mine =
      DealMicroBatches(config_.micro_batches, none, rotate).compute[generation_.comm->rank()];
}

absl::Status Session::ActOnStep(const Verdict& verdict, const StepFacts& facts) {
  const int64_t step = state_->scalars.step + 1;
  // Everything is computed again: when a sum went wrong, the words kept here may be the wrong ones.
  auto again = [&](std::string_view kind, int rotate) -> absl::Status {
    reporter_.Event(kind, step, verdict.text);
    time_.Switch(TimeKind::kLost);
    time_.Rebook(attempt_mark_, TimeKind::kCompute, TimeKind::kLost);
    time_.Rebook(attempt_mark_, TimeKind::kReduce, TimeKind::kLost);
    ++generation_.attempt;
    if (++generation_.failures > kMaxFailuresOfAStep) {
      exit_ = ExitCode::kCorrupt;
      return absl::InternalError(
          Cat("step ", step, " failed ", generation_.failures, " times in a row: ", verdict.text));
    }
    engine_->ResetSums();
    DealAgain(rotate);
    return absl::OkStatus();
  };
  switch (verdict.decision) {
    case Decision::kNone:
      return absl::OkStatus();
    case Decision::kApply:
      return Applied(engine_->Apply(facts), verdict, facts);
    case Decision::kRetryRange:  // ends by itself: floats are bounded
      engine_->LowerExponents(facts);
      reporter_.Event("range", step, verdict.text);
      ++generation_.attempt;
      DealAgain(0);
      return absl::OkStatus();
    case Decision::kSkip:
      return Applied(engine_->Skip(facts), verdict, facts);
    case Decision::kRecheck:
      generation_.recheck_count = verdict.nonfinite_count;
      generation_.recheck_hash = verdict.nonfinite_hash;
      return again("recheck", RotationAwayFrom(verdict.nonfinite_rank, verdict.nonfinite_first));
    case Decision::kRetrySums:
    case Decision::kRetryWork:
      return again("corrupt", 0);
    case Decision::kHeal: {
      reporter_.Event("corrupt", state_->scalars.step, verdict.text);
      const int me = generation_.comm->rank();
      if (std::count(verdict.bad_ranks.begin(), verdict.bad_ranks.end(), me) > 0) {
        state_->valid = false;
        vouched_ = false;
        unagreed_.present = false;
        agreed_step_ = -1;
      } else {
        Agreed();  // by the majority
      }
      // What this state was evaluated to came from the bad ones too.
      if (evaluated_step_ == state_->scalars.step) evaluated_step_ = -1;
      return absl::AbortedError(verdict.text);
    }
  }
  return absl::InternalError("unknown decision");
}

absl::Status Session::Applied(const absl::StatusOr<StepResult>& result, const Verdict& verdict,
                              const StepFacts& facts) {
  if (!result.ok()) {
    exit_ = ExitCode::kFailed;
    return absl::InternalError(std::string(result.status().message()));
  }
  vouched_ = generation_.comm->world_size() == 1;  // alone there is nobody to vouch
  StepReport& report = unagreed_.report;
  report = StepReport();
  report.result = *result;
  report.digest = state_->Digest();
  report.samples = verdict.samples_hash;
  report.generation = generation_.roster.generation;
  report.world_size = generation_.comm->world_size();
  const int64_t us = BootUs() - step_started_us_;
  report.step_ms = static_cast<double>(us) * 1e-3;
  report.tokens = result->weight;
  report.branch = branch_;
  report.flops =
      state_->plan().spec.flops_per_micro_batch * static_cast<double>(config_.micro_batches);
  report.first_bucket_queued_us = facts.first_bucket_queued_us;
  report.first_bucket_reduced_us = facts.first_bucket_reduced_us;
  report.last_backward_us = facts.last_backward_us;
  unagreed_.present = true;
  train_loss_ = result->loss;
  membership_->SetStatus("training", result->step, report.world_size, result->loss);
  engine_->NoteStepTime(us / 1000);
  if (generation_.steps++ == 0) reporter_.FirstStep(generation_.roster.generation, result->step);
  generation_.attempt = 0;
  generation_.failures = 0;
  generation_.recheck_count = 0;
  generation_.recheck_hash = 0;
  DealAgain(0);
  if (SaveDue(result->step)) want_save_ = true;
  if (!result->skipped) return absl::OkStatus();
  reporter_.Event("skip", result->step, verdict.text);
  // While a loss scale can be lowered, steps that are not finite are what lowers it.
  if (state_->scalars.skipped_in_a_row < kMaxSkipsInARow || !state_->scalars.AtLowestScale())
    return absl::OkStatus();
  exit_ = ExitCode::kNonFinite;
  return absl::InternalError(
      Cat(kMaxSkipsInARow,
          " steps in a row were not finite, each twice with the same bits; last: step ",
          result->step, ", micro-batch ", verdict.nonfinite_first,
          ". The cause is in the data or the settings (learning rate?), not in a machine"));
}

absl::Status Session::Evaluate() {
  const int64_t step = state_->scalars.step;
  int64_t batches = data_->eval_batches();
  if (config_.eval_batches > 0) batches = std::min(batches, config_.eval_batches);
  const bool due = step > 0 && ((config_.eval_every > 0 && step % config_.eval_every == 0) ||
                                step == config_.steps);
  if (!due || batches == 0 || evaluated_step_ == step) return absl::OkStatus();
  TimeScope scope(time_, TimeKind::kCompute);
  Communicator& comm = *generation_.comm;
  pool_->StartEval(comm.rank(), comm.world_size(), batches);
  const int64_t began_ms = BootMs();
  while (!pool_->Finished(20)) {
    progress_.store(BootMs(), std::memory_order_relaxed);
    if (comm.Health().ok()) continue;
    pool_->Cancel();
    while (!pool_->Finished(1000)) {
    }
    return comm.Health();
  }
  if (const absl::Status status = pool_->status(); !status.ok()) {
    comm.Abort(EndsRun(status));
    return EndsRun(status);
  }
  const EvalSums sums = pool_->eval_sums();
  std::vector<int64_t> words = {sums.loss, sums.weight, sums.nonfinite};
  words.insert(words.end(), sums.metrics.begin(), sums.metrics.end());
  // Others may have fewer threads: what took this rank a second may take them ten.
  const int64_t wait_ms = std::max(engine_->stall_ms(), 60'000 + 20 * (BootMs() - began_ms));
  progress_.store(BootMs() + wait_ms, std::memory_order_relaxed);
  HF_RETURN_IF_ERROR(comm.Wait(comm.AllReduce(words, {step, generation_.attempt, 1 << 23}),
                               Deadline::After(wait_ms)));
  evaluated_step_ = step;
  eval_loss_ =
      std::ldexp(static_cast<double>(words[0]), state_->plan().loss_shift - kLossExponent) /
      static_cast<double>(std::max<int64_t>(1, words[1]));
  if (words[2] != 0) eval_loss_ = std::nan("");
  eval_known_ = true;
  reporter_.Eval(step, eval_loss_, words[1]);
  if (config_.keep_best > 0 && best_.Better(eval_loss_, words[1]))
    best_.Propose(step, eval_loss_, words[1]);
  return absl::OkStatus();
}

void Session::RequestDrain(DrainScope scope) {
  int now = drain_.load();
  while (now < static_cast<int>(scope) &&
         !drain_.compare_exchange_weak(now, static_cast<int>(scope))) {
  }
  if (drain_since_ms_.load() == 0) drain_since_ms_.store(BootMs());
}

void Session::Tick() {
  // A drain is taken at a step boundary. Whoever waits in a round for longer than a moment (a
  // spare, a world below min_workers) has no boundary ahead and leaves from where it is.
  if (drain_.load() == 0 || joining_since_ms_.load() == 0) return;
  const int64_t since = std::max(drain_since_ms_.load(), joining_since_ms_.load());
  if (BootMs() - since > 3000) cancel_.store(true);
}

}  // namespace holdfast
