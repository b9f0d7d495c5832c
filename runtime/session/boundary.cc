// What happens between two steps: saves, and the planned ends of a generation.
#include <unistd.h>

#include <algorithm>

#include "runtime/base/failpoint.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/session/session.h"

namespace holdfast {
namespace {

constexpr int64_t kAdmitAfterSteps = 10;
constexpr int64_t kSettleMs = 1'800'000;     // a bound for a disk that hangs
constexpr int64_t kAdmitAfterRegroups = 10;  // times the duration of the last regroup

}  // namespace

bool Session::SaveDue(int64_t step) const {
  return config_.checkpoint_every_steps > 0 && step % config_.checkpoint_every_steps == 0 &&
         step != saved_step_;
}

uint32_t Session::Intents() {
  uint32_t intents = adopted_intents_;
  const rendezvous::Notices notices = membership_->notices();
  if (notices.stop) intents |= kIntentStop;
  if (notices.store_replaced) intents |= kIntentStoreLost;
  const auto scope = static_cast<DrainScope>(drain_.load());
  if (scope == DrainScope::kWorker) intents |= kIntentDrain;
  if (scope == DrainScope::kMachine) intents |= kIntentDrainMachine;
  // When to save or to admit may depend on the clock: it moves storage and membership, never the
  // state.
  const int64_t now = BootMs();
  const bool by_time = config_.checkpoint_every_ms > 0 && generation_.comm->rank() == 0 &&
                       now - last_save_ms_ >= config_.checkpoint_every_ms;
  if (want_save_ || by_time || SaveDue(state_->scalars.step + 1)) intents |= kIntentSave;
  if (notices.joiners > 0 && generation_.steps >= kAdmitAfterSteps &&
      now - entered_ms_ >= kAdmitAfterRegroups * last_regroup_ms_) {
    intents |= kIntentAdmit;
  }
  return intents;
}

absl::Status Session::BeginSave() {
  TimeScope scope(time_, TimeKind::kCheckpoint);
  Saver::Target target;
  storage::Manifest& m = target.manifest;
  m.run = start_.run;
  m.run_uuid = generation_.roster.run;
  m.fingerprint = fingerprint_text_;
  m.id = {branch_, state_->scalars.step, generation_.roster.generation};
  if (lineage_.size() > 1) {
    m.parent_branch = lineage_[lineage_.size() - 2].branch;
    m.branch_step = lineage_.back().step;
  }
  m.world_size = generation_.comm->world_size();
  m.regions = state_->grid().regions();
  m.scalars = state_->scalars.Encode();
  m.state_digest = state_->RegionsDigest();
  target.rank = generation_.comm->rank();
  target.world_size = m.world_size;
  save_stall_ms_ = saver_->Begin(*state_, std::move(target));
  want_save_ = false;
  last_save_ms_ = BootMs();
  SaveReport report;
  report.phase = "begun";
  report.id = {branch_, state_->scalars.step, generation_.roster.generation};
  report.stall_ms = save_stall_ms_;
  reporter_.Save(report);
  Failpoint("ckpt.begun", state_->scalars.step);
  return absl::OkStatus();
}

absl::Status Session::ActOnSave(const Verdict& verdict, const std::vector<ControlRow>& rows) {
  if (verdict.save == SaveDecision::kNone) return absl::OkStatus();
  if (verdict.save == SaveDecision::kBegin) return BeginSave();
  if (verdict.save == SaveDecision::kWriteManifest) {
    std::vector<storage::ShardInfo> shards;
    for (size_t r = 0; r < rows.size(); ++r) {
      const rendezvous::Member& member = generation_.roster.members[r];
      storage::ShardInfo s;
      s.owner = static_cast<int32_t>(r);
      s.machine = member.machine;
      s.slot = member.slot;
      std::tie(s.first, s.last) =
          state_->grid().Owned(static_cast<int>(r), static_cast<int>(rows.size()));
      s.state_digest = rows[r].shard_digest;
      s.bytes = rows[r].shard_bytes;
      shards.push_back(std::move(s));
    }
    saver_->WriteManifest(std::move(shards));
    return absl::OkStatus();
  }
  SaveReport report;
  report.id = saver_->id();
  report.stall_ms = save_stall_ms_;
  report.write_ms = saver_->write_ms();
  for (const ControlRow& row : rows) report.bytes += row.shard_bytes;
  if (verdict.save == SaveDecision::kSaved) {
    report.phase = "saved";
    saved_step_ = report.id.step;
    saved_id_ = report.id;
    save_failures_ = 0;
    const bool best = best_.Saved(report.id);
    if (best) TellBest();  // before the prune that Saved() begins
    saver_->Saved();
    reporter_.Save(report);
    return absl::OkStatus();
  }
  report.phase = "failed";
  const absl::Status mine = saver_->status();
  report.text = mine.ok()
                    ? "another worker could not save, or the shards do not make up the agreed state"
                    : std::string(mine.message());
  best_.Failed(report.id.step);
  saver_->Abandon();
  reporter_.Save(report);
  LogWarning("checkpoint of step ", report.id.step,
             " failed (training goes on, the last good one stays): ", report.text);
  if (++save_failures_ < config_.checkpoint_max_failures) return absl::OkStatus();
  exit_ = ExitCode::kCheckpoint;
  return absl::InternalError(
      Cat("saving failed ", save_failures_, " times in a row, last: ", report.text));
}

absl::Status Session::EndOrderly() {
  TimeScope scope(time_, TimeKind::kWait);
  std::vector<ControlRow> rows;
  HF_RETURN_IF_ERROR(
      OneRound(&rows).status());  // agrees on the last step; its completion lets everybody go
  return generation_.comm->Close(Deadline::After(engine_->stall_ms()));
}

// Rounds without a step until the state of `step` is saved.
absl::Status Session::SettleSaves(int64_t step) {
  TimeScope scope(time_, TimeKind::kCheckpoint);
  const Deadline deadline = Deadline::After(kSettleMs);
  while (saved_step_ != step) {
    if (deadline.passed()) {
      exit_ = ExitCode::kCheckpoint;
      return absl::InternalError(
          Cat("the state of step ", step, " could not be saved within ", kSettleMs / 1000, " s"));
    }
    if (!saver_->in_flight()) want_save_ = true;
    std::vector<ControlRow> rows;
    HF_ASSIGN_OR_RETURN(const Verdict verdict, OneRound(&rows));
    HF_RETURN_IF_ERROR(ActOnSave(verdict, rows));
    // While this worker's part is done and another's is not, rounds need not follow at full speed.
    if (saver_->WaitWriter(20) && verdict.save == SaveDecision::kNone) usleep(2000);
  }
  want_save_ = false;
  return absl::OkStatus();
}

// When the held state is the best so far there must be a checkpoint of this very step: rounds
// without a step until a save of it has begun. One of a former step must come to its end first. A
// save that fails leaves training as it is, without a new best checkpoint. All ranks hold the same
// candidate here.
absl::Status Session::SaveCandidate() {
  const int64_t step = state_->scalars.step;
  if (best_.candidate().step != step) return absl::OkStatus();
  if (saved_step_ == step) {
    // Saved before it was evaluated: by a stop, or in a generation that broke off here.
    if (best_.Saved(saved_id_)) TellBest();
    return absl::OkStatus();
  }
  TimeScope scope(time_, TimeKind::kCheckpoint);
  const int failures = save_failures_;
  const Deadline deadline = Deadline::After(kSettleMs);
  while (saved_step_ != step && !(saver_->in_flight() && saver_->id().step == step)) {
    if (save_failures_ > failures || deadline.passed()) {
      best_.Failed(step);
      return absl::OkStatus();
    }
    if (!saver_->in_flight()) want_save_ = true;
    std::vector<ControlRow> rows;
    HF_ASSIGN_OR_RETURN(const Verdict verdict, OneRound(&rows));
    HF_RETURN_IF_ERROR(ActOnSave(verdict, rows));
    if (saver_->WaitWriter(20) && verdict.save == SaveDecision::kNone) usleep(2000);
  }
  return absl::OkStatus();
}

void Session::TellBest() {
  saver_->KeepBest(best_.best());
  if (generation_.comm->rank() != 0) return;
  reporter_.Event(
      "best", best_.best().id.step,
      Cat("held-out loss ", best_.best().loss, " is the smallest so far: the checkpoint of step ",
          best_.best().id.step, " is kept"));
}

absl::StatusOr<bool> Session::Boundary(const Verdict& verdict, Ending* ending) {
  if (verdict.end == EndReason::kNone) return false;
  const int me = generation_.comm->rank();
  const bool leave = std::count(verdict.leavers.begin(), verdict.leavers.end(), me) > 0;
  const bool others_remain = verdict.leavers.size() < generation_.roster.members.size();
  if (verdict.farewell) HF_RETURN_IF_ERROR(SettleSaves(state_->scalars.step));
  const absl::Status closed = EndOrderly();
  DropSave();
  if (!closed.ok() && !leave) return closed;
  if (leave) {
    *ending = Farewell(verdict.end, others_remain);
    return true;
  }
  ending->kind = Ending::Kind::kRegroup;
  ending->reason = verdict.end == EndReason::kAdmit ? "workers join" : "workers leave on request";
  lost_at_ms_ = 0;
  return true;
}

Session::Ending Session::Farewell(EndReason cause, bool others_remain) {
  time_.Switch(TimeKind::kWait);
  progress_.store(0);
  Ending ending;
  ending.kind = Ending::Kind::kLeft;
  ending.cause = cause;
  ending.others_remain = others_remain;
  const int64_t step = state_->scalars.step;
  switch (cause) {
    case EndReason::kStop:
      ending.reason = Cat("stopped on request at step ", step, "; saved");
      break;
    case EndReason::kStoreLost:
      ending.reason =
          Cat("saved at step ", step, " and stopped: ", membership_->notices().store_text);
      break;
    default:
      ending.reason = Cat("left on request at step ", step, others_remain ? "" : "; saved");
  }
  if (cause != EndReason::kStoreLost) {
    const absl::Status left =
        membership_->Leave(Deadline::After(std::min<int64_t>(config_.grace_ms, 10'000)));
    if (!left.ok()) LogWarning("leaving was not recorded: ", std::string(left.message()));
  }
  return ending;
}

Session::Ending Session::FinishRun() {
  const int64_t step = state_->scalars.step;
  if (const absl::Status saved = SettleSaves(step); !saved.ok()) return Failed(saved);
  const absl::Status told = membership_->Finish(step, state_->Digest());
  if (!told.ok())
    LogWarning("the end of the run was not recorded in the store: ", std::string(told.message()));
  // From here on this worker is finished, whatever happens to the others.
  const absl::Status closed = EndOrderly();
  if (!closed.ok())
    LogInfo("the last round did not complete everywhere: ", std::string(closed.message()));
  if (unagreed_.present) Agreed();
  Ending ending;
  ending.kind = Ending::Kind::kFinished;
  ending.reason = Cat("finished at step ", step);
  time_.Switch(TimeKind::kWait);
  progress_.store(0);
  return ending;
}

}  // namespace holdfast
