#include "rendezvous/machine.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "rendezvous/source.h"
#include "runtime/base/digest.h"
#include "runtime/base/text.h"

namespace holdfast::rendezvous {
namespace {

// The poll starts short, since a round after a death is over in milliseconds, and grows while
// nothing happens.
constexpr int64_t kPollFirstMs = 2, kPollRoundMs = 50, kPollIdleMs = 200;
// An answer after a gap as long as this means that the store was away and that others may have had
// no chance to renew.
constexpr int64_t kGapMs = 1000;

}  // namespace

bool Learn(const Record& record, Known* known, std::string* why) {
  if (!known->uuid.empty()) {
    if (!record.exists) {
      if (record.ended_uuid == known->uuid) return true;
      *why = "Redis has lost the record of this run (flushed, or restarted empty)";
      return false;
    }
    if (record.uuid != known->uuid) {
      *why = "Redis holds another run under this name: it was emptied and used anew";
      return false;
    }
    if (record.store_id != known->store_id) {
      *why =
          "this is another Redis instance than before (restarted, replaced, or a promoted replica)";
      return false;
    }
    if (record.generation < known->generation ||
        (record.generation == known->generation && record.nonce != known->nonce)) {
      *why =
          Cat("Redis holds generation ", record.generation, " but this process knows generation ",
              known->generation, ": the record was set back (an old backup or a stale replica)");
      return false;
    }
  }
  if (record.exists && record.founded_at != record.store_id) {
    *why =
        "the record of this run was written by another Redis instance (restarted, restored from a "
        "backup, or a promoted replica)";
    return false;
  }
  if (record.exists) {
    known->uuid = record.uuid;
    known->store_id = record.store_id;
    known->generation = record.generation;
    known->nonce = record.nonce;
  }
  return true;
}

std::string EncodeMark(std::string_view uuid, uint64_t generation, uint64_t nonce, bool all_local) {
  return nlohmann::json{{"run", std::string(uuid)},
                        {"generation", Hex64(generation)},
                        {"nonce", Hex64(nonce)},
                        {"all_local", all_local}}
      .dump();
}

bool DecodeMark(std::string_view text, std::string* uuid, uint64_t* generation, bool* all_local) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("run") || !json["run"].is_string() ||
      !json.contains("generation") || !json["generation"].is_string() ||
      !json.contains("all_local") || !json["all_local"].is_boolean()) {
    return false;
  }
  *uuid = json["run"].get<std::string>();
  *all_local = json["all_local"].get<bool>();
  return ParseHex64(json["generation"].get<std::string>(), generation);
}

JoinMachine::JoinMachine(JoinOptions options, Known known, Offer offer, std::string reason,
                         uint64_t failed_generation, std::vector<std::string> unreachable,
                         int64_t lapses_count_from_ms)
    : options_(std::move(options)), known_(std::move(known)) {
  waiting_.id = options_.id;
  waiting_.machine = options_.machine;
  waiting_.slot = options_.slot;
  waiting_.offer = std::move(offer);
  waiting_.reason = std::move(reason);
  waiting_.failed_generation = failed_generation;
  waiting_.unreachable = std::move(unreachable);
  observed_.lapses_count_from_ms = lapses_count_from_ms;
}

JoinAction JoinMachine::Act(JoinAction::Kind kind) const {
  JoinAction action;
  action.kind = kind;
  action.fence = {known_.uuid, known_.store_id, known_.generation, known_.nonce};
  return action;
}

JoinAction JoinMachine::Sleep(int64_t now_ms, int64_t until_ms, std::string why) {
  waiting_for_ = std::move(why);
  JoinAction action = Act(JoinAction::Kind::kSleep);
  action.until_ms = std::max(std::min(until_ms, now_ms + poll_ms_), now_ms + 1);
  return action;
}

JoinAction JoinMachine::On(const JoinEvent& event, int64_t now_ms) {
  switch (event.kind) {
    case JoinEvent::Kind::kStart:
    case JoinEvent::Kind::kWokeUp:
      return Act(JoinAction::Kind::kRead);
    case JoinEvent::Kind::kStoreFailed:
      // The outcome of the last change is unknown: everything is read again. The back-off is the
      // executor's.
      entering_ = false;
      return Act(JoinAction::Kind::kRead);
    case JoinEvent::Kind::kMarked:
      marked_left_ = std::max(known_.generation, known_.member_of);
      return Act(JoinAction::Kind::kRead);
    case JoinEvent::Kind::kOutcome: {
      const bool entered = std::exchange(entering_, false) && event.outcome == Outcome::kApplied;
      if (!entered) return Act(JoinAction::Kind::kRead);
      known_.member_of = known_.generation;
      return Act(JoinAction::Kind::kReturn);
    }
    case JoinEvent::Kind::kRecord:
      break;
  }
  if (last_answer_ms_ >= 0 && now_ms - last_answer_ms_ > kGapMs) {
    observed_.lapses_count_from_ms =
        std::max(observed_.lapses_count_from_ms, now_ms + options_.lease_ms);
  }
  last_answer_ms_ = now_ms;
  return OnRecord(*event.record, now_ms);
}

std::optional<absl::Status> JoinMachine::Ended(const Record& record) const {
  const bool counts = options_.target_step == 0 || record.finished_step >= options_.target_step;
  if (record.finished && counts && !options_.fresh) {
    return absl::AlreadyExistsError(Cat("the run is finished at step ", record.finished_step,
                                        " (state digest ", Hex64(record.finished_digest), ")"));
  }
  if (!record.stop_id.empty() && record.stop_id != known_.stale_stop_id) {
    return absl::AlreadyExistsError(Cat("the run is being stopped: ", record.stop_reason));
  }
  if (!record.exists && !known_.uuid.empty() && record.ended_uuid == known_.uuid) {
    return absl::AlreadyExistsError("the run was stopped and all its workers have left");
  }
  return std::nullopt;
}

JoinAction JoinMachine::OnNoRecord(const Record& record, int64_t now_ms) {
  if (auto ended = Ended(record)) {
    JoinAction fail = Act(JoinAction::Kind::kFail);
    fail.status = *ended;
    return fail;
  }
  if (first_absent_ms_ < 0) first_absent_ms_ = now_ms;
  int64_t window_ms = 0;
  if (!options_.may_found) {
    // A trace of the run means that a generation may be running which has lost sight of this Redis.
    const bool trace = known_.marked_generation > 0 && !known_.marked_all_local &&
                       record.ended_uuid != known_.marked_uuid;
    window_ms = trace ? options_.redis_outage_ms : options_.found_window_ms;
  }
  if (now_ms < first_absent_ms_ + window_ms) {
    poll_ms_ = kPollRoundMs;
    return Sleep(now_ms, first_absent_ms_ + window_ms,
                 Cat("Redis holds no record of this run; it is founded when none has appeared in ",
                     window_ms / 1000, " s"));
  }
  JoinAction found = Act(JoinAction::Kind::kFound);
  found.generation = std::max(known_.marked_generation, record.ended_generation);
  return found;
}

JoinAction JoinMachine::SendJoin(const Record& record) {
  // "left g" lies in the slot before anybody can hear that g was left: a dead process's slot then
  // tells the truth.
  const uint64_t leaving = known_.member_of > 0 ? std::max(known_.generation, known_.member_of) : 0;
  if (leaving > marked_left_) {
    JoinAction mark = Act(JoinAction::Kind::kMarkLeft);
    mark.generation = leaving;
    return mark;
  }
  JoinAction join = Act(JoinAction::Kind::kJoin);
  join.waiting = waiting_;
  join.waiting.known_generation = std::max(record.generation, known_.marked_generation);
  return join;
}

JoinAction JoinMachine::OnRecord(const Record& record, int64_t now_ms) {
  JoinAction fail = Act(JoinAction::Kind::kFail);
  std::string why;
  if (!Learn(record, &known_, &why)) {
    fail.status = absl::FailedPreconditionError(Cat(
        why,
        ". Nothing is founded anew or guessed: the state is kept; save it, stop all workers and "
        "start the run again"));
    return fail;
  }
  if (!record.exists) return OnNoRecord(record, now_ms);
  if (auto ended = Ended(record)) {
    fail.status = *ended;
    return fail;
  }
  if (!record.refused.empty()) {
    fail.status = record.refused.starts_with(kNoUsableState)
                      ? absl::DataLossError(record.refused)
                      : absl::FailedPreconditionError(record.refused);
    return fail;
  }
  const auto death = record.deaths.find(options_.id);
  if (death != record.deaths.end()) {
    fail.status = absl::FailedPreconditionError(
        Cat("this process is recorded as gone (", death->second, "): start a new one"));
    return fail;
  }
  const Member* self = record.FindMember(options_.id);
  const bool superseded =
      record.round > record.generation ||
      std::any_of(record.sealed.members.begin(), record.sealed.members.end(),
                  [&record](const Member& m) { return record.deaths.count(m.id) > 0; });
  if (self != nullptr && record.generation > known_.member_of && !superseded) {
    entering_ = true;
    return Act(JoinAction::Kind::kEnter);
  }
  if (record.seq != last_seq_) poll_ms_ = kPollFirstMs;
  last_seq_ = record.seq;
  if (record.joins.count(options_.id) == 0) {
    observed_.open_since_ms = now_ms;
    return SendJoin(record);
  }

  const Decision decision = DecideSeal(record, observed_, options_.seal, now_ms);
  if (decision.blocked) observed_.open_since_ms = now_ms;
  switch (decision.kind) {
    case Decision::Kind::kSeal: {
      JoinAction seal = Act(JoinAction::Kind::kSeal);
      seal.plan = decision.plan;
      seal.seq = record.seq;
      const bool admitted =
          std::any_of(seal.plan.sealed.members.begin(), seal.plan.sealed.members.end(),
                      [this](const Member& m) { return m.id == options_.id; });
      // One of the members seals: a spare does not decide about a world that it is not in.
      if (admitted) return seal;
      waiting_for_ = "a place in the world: a spare";
      break;
    }
    case Decision::Kind::kRefuse: {
      JoinAction refuse = Act(JoinAction::Kind::kRefuse);
      refuse.refusals = decision.refusals;
      refuse.seq = record.seq;
      return refuse;
    }
    case Decision::Kind::kWait:
      break;
  }
  const bool in_round = record.round > record.generation || record.sealed.members.empty();
  poll_ms_ = std::min(poll_ms_ + poll_ms_ / 2 + 1, in_round ? kPollRoundMs : kPollIdleMs);
  const bool spare = decision.kind == Decision::Kind::kSeal;
  return Sleep(now_ms, decision.until_ms, spare ? waiting_for_ : decision.why);
}

}  // namespace holdfast::rendezvous
