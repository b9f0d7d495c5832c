#include "rendezvous/membership.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "rendezvous/machine.h"
#include "rendezvous/outage.h"
#include "rendezvous/redis_store.h"
#include "runtime/base/digest.h"
#include "runtime/base/failpoint.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace holdfast::rendezvous {
namespace {

// How long Confirm, Finish and the like insist on an answer before they give the error to the
// caller.
constexpr int64_t kInsistMs = 15'000;
constexpr char kGenerationMark[] = "rendezvous.generation", kLeftMark[] = "rendezvous.left";

RedisStoreOptions StoreOptions(const MembershipOptions& o) {
  RedisStoreOptions s;
  s.endpoint = {o.redis_host,     o.redis_port, o.redis_user,
                o.redis_password, o.connect_ms, o.command_ms};
  s.run = o.run;
  s.lease_ms = o.lease_ms;
  s.redis_outage_ms = o.redis_outage_ms;
  s.key_ttl_ms = o.key_ttl_ms;
  return s;
}

// Errors that waiting does not cure at the start: a person must act.
bool Hopeless(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnauthenticated ||
         status.code() == absl::StatusCode::kFailedPrecondition;
}

void SleepMs(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

Fence FenceOf(const Known& known) {
  return {known.uuid, known.store_id, known.generation, known.nonce};
}

// Nobody runs the recorded generation any more: its stop request and its end are those of former
// workers.
bool NobodyLeased(const Record& record) {
  return std::none_of(record.sealed.members.begin(), record.sealed.members.end(),
                      [&record](const Member& m) { return record.Leased(m.id); });
}

Roster RosterOf(const Record& record, std::string_view self) {
  const Sealed& s = record.sealed;
  Roster roster;
  roster.run = record.uuid;
  roster.secret = record.secret;
  roster.generation = record.generation;
  roster.nonce = record.nonce;
  roster.members = s.members;
  for (size_t i = 0; i < s.members.size(); ++i) {
    if (s.members[i].id == self) roster.rank = static_cast<int>(i);
  }
  roster.source = s.source;
  roster.branch = s.branch;
  roster.lineage = s.lineage;
  roster.step = s.step;
  roster.digest = s.digest;
  roster.checkpoint = s.checkpoint;
  roster.note = s.note;
  return roster;
}

class MembershipImpl : public Membership {
 public:
  MembershipImpl(const MembershipOptions& options, SlotMarks* marks)
      : options_(options),
        marks_(marks),
        outage_(options.lease_ms),
        main_store_(MakeRedisStore(StoreOptions(options))),
        control_store_(MakeRedisStore(StoreOptions(options))),
        back_off_(Hash64(options.member_id, 1), 10, 1000) {}

  ~MembershipImpl() override { StopControl(); }

  absl::Status Open(Deadline deadline);
  absl::StatusOr<Roster> Join(const Offer& offer, std::string_view reason,
                              const std::atomic<bool>& cancel, Deadline deadline) override;
  absl::Status Confirm(const Roster& roster) override;
  void ReportFailedBuild(const Roster& roster, const std::vector<int>& unreachable) override;
  absl::Status Leave(Deadline deadline) override;
  absl::Status Finish(int64_t step, uint64_t digest) override;
  Notices notices() const override;
  void SetStatus(std::string_view phase, int64_t step, int world_size, double loss) override;

 private:
  absl::Status ReadMarks();
  JoinMachine MakeMachine(const Offer& offer, std::string_view reason);
  // Carries out one action; what came of it is the next event. `*record` keeps the last record
  // read.
  JoinEvent Execute(const JoinAction& action, Record* record, absl::Status* error);
  JoinEvent ExecuteChange(const JoinAction& action, absl::Status* error);
  absl::StatusOr<Roster> Entered(const JoinMachine& machine, const Record& record);
  // A Join that ends because the run does: notices() tells at once which end it was.
  void NoteEnd(const Record& record, const absl::Status& status);
  void MergeKnown(const Known& known);
  // Repeats a change until it has an outcome, at most until `deadline`.
  template <typename F>
  absl::StatusOr<Outcome> Insist(Deadline deadline, const F& change);
  bool SettledAfterLeaving(const Record& record, uint64_t left_generation) const;

  void ControlLoop();
  void StopControl();
  void OnBeat(const Record& record, Known known);

  const MembershipOptions options_;
  SlotMarks* const marks_;
  Outage outage_;
  std::unique_ptr<Store> main_store_, control_store_;  // one connection each, one thread each
  BackOff back_off_;
  uint64_t failed_generation_ = 0;
  std::vector<std::string> unreachable_;
  bool left_ = false;
  bool ignore_finished_ = false;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  Known known_;                // guarded by mutex_
  Notices notices_;            // guarded by mutex_
  std::string status_ = "{}";  // guarded by mutex_
  bool stop_control_ = false;  // guarded by mutex_
  std::thread control_;
};

absl::Status MembershipImpl::ReadMarks() {
  const absl::StatusOr<std::string> mark = marks_->Get(kGenerationMark);
  if (mark.status().code() == absl::StatusCode::kNotFound) return absl::OkStatus();
  HF_RETURN_IF_ERROR(Annotate(mark.status(), "reading the slot's marks"));
  if (!DecodeMark(*mark, &known_.marked_uuid, &known_.marked_generation,
                  &known_.marked_all_local)) {
    return absl::DataLossError("the slot's mark of its last generation is damaged");
  }
  return absl::OkStatus();
}

absl::Status MembershipImpl::Open(Deadline deadline) {
  HF_RETURN_IF_ERROR(ReadMarks());
  int64_t last_line_ms = BootMs();
  BackOff back_off(Hash64(options_.member_id), 50, 1000);
  absl::StatusOr<Record> record = absl::UnavailableError("");
  while (true) {
    record = control_store_->Beat(Fence(), options_.member_id, "{}");
    if (record.ok()) break;
    if (Hopeless(record.status())) return record.status();
    if (deadline.passed()) {
      return absl::UnavailableError(Cat(record.status().message(), " (gave up waiting for it)"));
    }
    if (BootMs() - last_line_ms >= 1000) {
      last_line_ms = BootMs();
      LogWarning(record.status().message(), "; trying again");
    }
    SleepMs(std::min(back_off.NextMs(), deadline.left_ms() + 1));
  }
  outage_.Answered();
  if (NobodyLeased(*record)) {
    known_.stale_stop_id = record->stop_id;
    ignore_finished_ = options_.fresh;
  }
  notices_.store_id = Hash64(record->store_id);
  control_ = std::thread([this] { ControlLoop(); });
  return absl::OkStatus();
}

JoinMachine MembershipImpl::MakeMachine(const Offer& offer, std::string_view reason) {
  JoinOptions o;
  o.id = options_.member_id;
  o.machine = options_.machine;
  o.slot = options_.slot;
  o.seal = {options_.min_workers, options_.max_workers, options_.restore_wait_ms,
            options_.gather_ms};
  o.may_found = options_.may_found;
  o.fresh = ignore_finished_;
  o.lease_ms = options_.lease_ms;
  o.found_window_ms = options_.found_window_ms;
  o.redis_outage_ms = options_.redis_outage_ms;
  o.target_step = options_.target_step;
  std::lock_guard lock(mutex_);
  return JoinMachine(o, known_, offer, std::string(reason), failed_generation_, unreachable_,
                     outage_.lapses_count_from_ms());
}

absl::StatusOr<Roster> MembershipImpl::Join(const Offer& offer, std::string_view reason,
                                            const std::atomic<bool>& cancel, Deadline deadline) {
  if (left_) return absl::FailedPreconditionError("this process has left the run");
  JoinMachine machine = MakeMachine(offer, reason);
  Record record;
  absl::Status error;
  std::string said;
  int64_t said_ms = BootMs();
  JoinEvent event;
  back_off_.Reset();
  while (true) {
    const JoinAction action = machine.On(event, BootMs());
    MergeKnown(machine.known());
    if (action.kind == JoinAction::Kind::kReturn) return Entered(machine, record);
    if (action.kind == JoinAction::Kind::kFail) {
      NoteEnd(record, action.status);
      return action.status;
    }
    if (cancel.load(std::memory_order_relaxed))
      return absl::CancelledError("joining was cancelled");
    if (deadline.passed()) {
      if (!error.ok()) return absl::UnavailableError(error.message());
      return absl::DeadlineExceededError(
          Cat("no generation came about in time; waiting for: ", machine.waiting_for()));
    }
    if (action.kind == JoinAction::Kind::kSleep && machine.waiting_for() != said &&
        BootMs() - said_ms >= 1000) {
      said = machine.waiting_for();
      said_ms = BootMs();
      LogInfo("rendezvous: ", said);
    }
    event = Execute(action, &record, &error);
    if (event.kind != JoinEvent::Kind::kStoreFailed) continue;
    outage_.Failed(error);
    const Deadline pause = Deadline::After(back_off_.NextMs()).Capped(deadline);
    while (!pause.passed() && !cancel.load(std::memory_order_relaxed)) {
      SleepMs(std::min<int64_t>(pause.left_ms(), 20));
    }
  }
}

JoinEvent MembershipImpl::Execute(const JoinAction& action, Record* record, absl::Status* error) {
  JoinEvent event;
  switch (action.kind) {
    case JoinAction::Kind::kRead: {
      absl::StatusOr<Record> read = main_store_->Read(options_.member_id, false);
      if (!read.ok()) {
        *error = read.status();
        event.kind = JoinEvent::Kind::kStoreFailed;
        return event;
      }
      outage_.Answered();
      back_off_.Reset();
      *error = absl::OkStatus();
      *record = *std::move(read);
      event.kind = JoinEvent::Kind::kRecord;
      event.record = record;
      return event;
    }
    case JoinAction::Kind::kSleep:
      // Never longer than one poll, 200 ms: a wish to cancel is heard in time.
      SleepMs(std::max<int64_t>(1, action.until_ms - BootMs()));
      event.kind = JoinEvent::Kind::kWokeUp;
      return event;
    case JoinAction::Kind::kMarkLeft: {
      const absl::Status put = marks_->Put(kLeftMark, Cat(action.generation));
      // Without the mark a later death certificate could say too much; this version never reads
      // more into a death than the supervisor's word, so a full disk does not keep a worker from
      // regrouping.
      if (!put.ok())
        LogWarning("cannot note that generation ", action.generation, " was left: ", put.message());
      event.kind = JoinEvent::Kind::kMarked;
      return event;
    }
    default:
      return ExecuteChange(action, error);
  }
}

JoinEvent MembershipImpl::ExecuteChange(const JoinAction& action, absl::Status* error) {
  Failpoint("rdzv.change.before");
  absl::StatusOr<Outcome> outcome = absl::InternalError("");
  switch (action.kind) {
    case JoinAction::Kind::kFound:
      outcome = main_store_->Found(Hex(RandomBytes(16)), Hex(RandomBytes(32)), action.generation);
      break;
    case JoinAction::Kind::kJoin:
      outcome = main_store_->Join(action.fence, action.waiting);
      break;
    case JoinAction::Kind::kSeal:
      outcome = main_store_->Seal(action.fence, action.seq, action.plan, RandomNonce());
      break;
    case JoinAction::Kind::kRefuse:
      outcome = main_store_->Refuse(action.fence, action.seq, action.refusals);
      break;
    case JoinAction::Kind::kEnter:
      outcome = main_store_->Enter(action.fence, options_.member_id);
      break;
    default:
      outcome = absl::InternalError("an action that is no change");
  }
  Failpoint("rdzv.change.after");
  JoinEvent event;
  if (!outcome.ok()) {
    *error = outcome.status();
    event.kind = JoinEvent::Kind::kStoreFailed;
    return event;
  }
  event.kind = JoinEvent::Kind::kOutcome;
  event.outcome = *outcome;
  return event;
}

absl::StatusOr<Roster> MembershipImpl::Entered(const JoinMachine& machine, const Record& record) {
  Roster roster = RosterOf(record, options_.member_id);
  if (roster.rank < 0 || roster.generation != machine.known().member_of) {
    return absl::InternalError("entered a generation that this process is no member of");
  }
  failed_generation_ = 0;
  unreachable_.clear();
  ignore_finished_ = false;
  std::lock_guard lock(mutex_);
  notices_.round_open = false;
  notices_.joiners = 0;
  return roster;
}

void MembershipImpl::NoteEnd(const Record& record, const absl::Status& status) {
  if (status.code() != absl::StatusCode::kAlreadyExists) return;
  std::lock_guard lock(mutex_);
  if (record.finished) {
    notices_.finished = true;
    notices_.finished_step = record.finished_step;
    notices_.finished_digest = record.finished_digest;
  } else {
    notices_.stop = true;
  }
}

void MembershipImpl::MergeKnown(const Known& known) {
  std::lock_guard lock(mutex_);
  if (known.generation >= known_.generation && !known.uuid.empty()) {
    known_.uuid = known.uuid;
    known_.store_id = known.store_id;
    known_.generation = known.generation;
    known_.nonce = known.nonce;
  }
  known_.member_of = std::max(known_.member_of, known.member_of);
}

template <typename F>
absl::StatusOr<Outcome> MembershipImpl::Insist(Deadline deadline, const F& change) {
  back_off_.Reset();
  while (true) {
    const absl::StatusOr<Outcome> outcome = change();
    if (outcome.ok()) {
      outage_.Answered();
      return outcome;
    }
    outage_.Failed(outcome.status());
    if (deadline.passed()) return absl::UnavailableError(outcome.status().message());
    SleepMs(std::min(back_off_.NextMs(), deadline.left_ms() + 1));
  }
}

absl::Status MembershipImpl::Confirm(const Roster& roster) {
  const bool all_local =
      std::all_of(roster.members.begin(), roster.members.end(),
                  [this](const Member& m) { return m.machine == options_.machine; });
  HF_RETURN_IF_ERROR(Annotate(marks_->Put(kGenerationMark, EncodeMark(roster.run, roster.generation,
                                                                      roster.nonce, all_local)),
                              "noting the generation in the slot"));
  Fence fence;
  {
    std::lock_guard lock(mutex_);
    fence = FenceOf(known_);
  }
  fence.generation = roster.generation;
  fence.nonce = roster.nonce;
  HF_ASSIGN_OR_RETURN(const Outcome outcome, Insist(Deadline::After(kInsistMs), [&] {
                        return main_store_->Confirm(fence, options_.member_id);
                      }));
  switch (outcome) {
    case Outcome::kApplied:
      return absl::OkStatus();
    case Outcome::kConflict:
      return absl::AbortedError(
          Cat("generation ", roster.generation, " was superseded before it stood"));
    case Outcome::kDead:
      return absl::FailedPreconditionError("this process is recorded as dead: start a new one");
    case Outcome::kUntrusted:
      break;
  }
  return absl::FailedPreconditionError(
      "Redis was emptied or replaced while the generation was built");
}

void MembershipImpl::ReportFailedBuild(const Roster& roster, const std::vector<int>& unreachable) {
  failed_generation_ = roster.generation;
  unreachable_.clear();
  for (const int rank : unreachable) {
    if (rank >= 0 && rank < static_cast<int>(roster.members.size()) && rank != roster.rank) {
      unreachable_.push_back(roster.members[static_cast<size_t>(rank)].id);
    }
  }
}

bool MembershipImpl::SettledAfterLeaving(const Record& record, uint64_t left_generation) const {
  if (!record.exists || record.finished || record.generation != left_generation) return true;
  return std::all_of(
      record.sealed.members.begin(), record.sealed.members.end(),
      [&](const Member& m) { return m.id == options_.member_id || record.deaths.count(m.id) > 0; });
}

absl::Status MembershipImpl::Leave(Deadline deadline) {
  StopControl();  // the lease is not renewed any more
  left_ = true;
  Known known;
  {
    std::lock_guard lock(mutex_);
    known = known_;
  }
  if (known.uuid.empty()) return absl::OkStatus();  // has met no run
  if (known.member_of > 0) {
    const absl::Status put = marks_->Put(kLeftMark, Cat(known.generation));
    if (!put.ok())
      LogWarning("cannot note that generation ", known.generation, " was left: ", put.message());
  }
  bool told = false;
  back_off_.Reset();
  uint64_t left_generation = 0;
  int64_t poll_ms = 2;
  while (true) {
    absl::Status error;
    const absl::StatusOr<Record> record = main_store_->Read(options_.member_id, false);
    if (record.ok()) {
      std::string why;
      if (!Learn(*record, &known, &why)) return absl::FailedPreconditionError(why);
      if (!record->exists) return absl::OkStatus();
      if (!told) {
        left_generation =
            record->FindMember(options_.member_id) != nullptr ? record->generation : 0;
        const absl::StatusOr<Outcome> outcome =
            main_store_->Leave(FenceOf(known), options_.member_id);
        told = outcome.ok() && *outcome == Outcome::kApplied;
        if (told) continue;
        error = outcome.status();
      } else if (left_generation == 0 || SettledAfterLeaving(*record, left_generation)) {
        return absl::OkStatus();
      }
    } else {
      error = record.status();
    }
    if (deadline.passed()) {
      if (!told)
        return absl::UnavailableError(Cat("could not tell Redis of leaving: ", error.message()));
      return absl::DeadlineExceededError(
          "left, but the others have not sealed their next generation in time");
    }
    poll_ms = error.ok() ? std::min<int64_t>(poll_ms * 2, 50) : back_off_.NextMs();
    SleepMs(std::min(poll_ms, deadline.left_ms() + 1));
  }
}

absl::Status MembershipImpl::Finish(int64_t step, uint64_t digest) {
  Fence fence;
  {
    std::lock_guard lock(mutex_);
    fence = FenceOf(known_);
  }
  HF_ASSIGN_OR_RETURN(const Outcome outcome, Insist(Deadline::After(kInsistMs), [&] {
                        return main_store_->Finish(fence, step, digest);
                      }));
  if (outcome == Outcome::kApplied) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "Redis was emptied or replaced: the run's end is not recorded there (its checkpoint is on "
      "disk)");
}

Notices MembershipImpl::notices() const {
  Notices out;
  {
    std::lock_guard lock(mutex_);
    out = notices_;
  }
  out.contact_age_ms = outage_.age_ms();
  if (!out.store_replaced) out.store_text = outage_.error();
  return out;
}

void MembershipImpl::SetStatus(std::string_view phase, int64_t step, int world_size, double loss) {
  // A loss that is no number has no form in JSON; it becomes null.
  const nlohmann::json json = {
      {"phase", std::string(phase)}, {"step", step}, {"world_size", world_size}, {"loss", loss}};
  std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::lock_guard lock(mutex_);
  status_ = std::move(text);
}

void MembershipImpl::ControlLoop() {
  BackOff back_off(Hash64(options_.member_id, 2), 20, 500);
  int64_t pause_ms = options_.renew_ms;
  while (true) {
    Known known;
    std::string status;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, std::chrono::milliseconds(pause_ms), [this] { return stop_control_; });
      if (stop_control_) return;
      known = known_;  // copied before the request is sent: an answer can only be newer
      status = status_;
    }
    const absl::StatusOr<Record> record =
        control_store_->Beat(FenceOf(known), options_.member_id, status);
    if (record.ok()) {
      outage_.Answered();
      back_off.Reset();
      pause_ms = options_.renew_ms;
      OnBeat(*record, std::move(known));
    } else {
      outage_.Failed(record.status());
      pause_ms = back_off.NextMs();
    }
  }
}

void MembershipImpl::OnBeat(const Record& record, Known known) {
  std::string why;
  const bool trusted = Learn(record, &known, &why);
  if (trusted) MergeKnown(known);
  std::lock_guard lock(mutex_);
  notices_.store_id = Hash64(record.store_id);
  if (!trusted) {
    if (!notices_.store_replaced) LogError(why);
    notices_.store_replaced = true;
    notices_.store_text = why;
    return;
  }
  notices_.finished = notices_.finished || (record.finished && !ignore_finished_);
  if (!record.exists) return;
  notices_.stop =
      notices_.stop || (!record.stop_id.empty() && record.stop_id != known_.stale_stop_id);
  if (known_.member_of == 0 || record.generation < known_.member_of) return;
  notices_.joiners = CountJoiners(record, options_.max_workers);
  const bool member_gone =
      std::any_of(record.sealed.members.begin(), record.sealed.members.end(),
                  [&record](const Member& m) { return record.deaths.count(m.id) > 0; });
  notices_.round_open =
      record.generation > known_.member_of || record.round > record.generation || member_gone;
}

void MembershipImpl::StopControl() {
  {
    std::lock_guard lock(mutex_);
    stop_control_ = true;
  }
  wake_.notify_all();
  if (control_.joinable()) control_.join();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Membership>> Membership::Start(const MembershipOptions& options,
                                                              SlotMarks* marks, Deadline deadline) {
  if (options.run.empty() || options.run.find_first_of("{}") != std::string::npos) {
    return absl::InvalidArgumentError(
        Cat("run name '", options.run, "': must not be empty or hold braces"));
  }
  if (options.member_id.empty() || options.member_id.find_first_of(" \t\n") != std::string::npos) {
    return absl::InvalidArgumentError("member_id must not be empty or hold blanks");
  }
  if (options.renew_ms <= 0 || options.lease_ms < 2 * options.renew_ms) {
    return absl::InvalidArgumentError(Cat("lease_ms (", options.lease_ms,
                                          ") must be at least twice renew_ms (", options.renew_ms,
                                          ")"));
  }
  if (options.min_workers < 1 || options.max_workers < options.min_workers) {
    return absl::InvalidArgumentError(Cat("min_workers ", options.min_workers, " and max_workers ",
                                          options.max_workers, " contradict each other"));
  }
  auto membership = std::make_unique<MembershipImpl>(options, marks);
  HF_RETURN_IF_ERROR(membership->Open(deadline));
  return membership;
}

}  // namespace holdfast::rendezvous
