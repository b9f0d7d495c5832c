// How a generation is entered: leave the former one, meet in a round, connect, come to one state,
// share out the work.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <set>
#include <tuple>
#include <type_traits>

#include "absl/strings/str_split.h"
#include "runtime/base/digest.h"
#include "runtime/base/failpoint.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/session/init_from.h"
#include "runtime/session/session.h"
#include "runtime/session/shares.h"
#include "runtime/session/transfer.h"
#include "runtime/supervisor/settle_device.h"

namespace holdfast {
namespace {

constexpr int32_t kExchangeBucket = 1 << 24;

// What every member tells the others when a generation begins. The bitmap of held micro-batches
// follows.
struct ExchangeHead {
  int64_t step = 0, evaluated_step = -1, saved_step = -1;
  uint64_t digest = 0;
  uint32_t want_save = 0, intents = 0;
  storage::CheckpointId saved;
  BestCheckpoint best;
  BestTracker::Candidate candidate;
};
static_assert(std::is_trivially_copyable_v<ExchangeHead>);

std::vector<bool> BitsFrom(const std::byte* bytes, int64_t count) {
  std::vector<bool> bits(count);
  for (int64_t j = 0; j < count; ++j) bits[j] = (std::to_integer<int>(bytes[j / 8]) >> (j % 8)) & 1;
  return bits;
}

// "learning_rate = 0.0005, warmup_steps = 10": the lines of `now` that are not in `before`.
std::string ScheduleChange(std::string_view before, std::string_view now) {
  const std::set<std::string> old = absl::StrSplit(View(before), '\n');
  std::string text;
  for (const absl::string_view line : absl::StrSplit(View(now), '\n')) {
    if (!old.contains(std::string(line))) text += Cat(text.empty() ? "" : ", ", line);
  }
  return text.empty() ? "the former schedule" : text;
}

}  // namespace

rendezvous::Offer Session::MakeOffer() {
  rendezvous::Offer offer;
  offer.address = config_.host;
  offer.port = endpoint_->port();
  offer.fingerprint_text = join_text_;
  offer.fingerprint = Hex64(Hash64(join_text_));
  offer.probe = probe_;
  offer.compute_class = compute_class_;
  offer.branch = branch_;
  offer.lineage = lineage_;
  offer.schedule = config_.ScheduleText();
  offer.has_state = state_->valid && !state_->marked;
  if (offer.has_state) {
    offer.step = state_->scalars.step;
    offer.digest = state_->Digest();
    offer.vouched = vouched_;
  } else {
    // Stores are listed only by those who have no state: this is on the way from a loss to the next
    // step.
    offers_ = held_->Offers(state_->grid(), fingerprint_text_, lineage_);
    std::reverse(offers_.begin(), offers_.end());
  }
  offer.checkpoints = offers_;
  offer.progress = std::max({held_->progress(), offer.step, agreed_step_});
  offer.expected_local_workers = start_.local_workers;
  offer.agreed_step = agreed_step_;
  offer.agreed_digest = agreed_digest_;
  return offer;
}

absl::StatusOr<Session::Ending> Session::EnterGeneration(std::string_view why) {
  std::string reason(why);
  const Deadline outage = Deadline::After(600'000);
  // What the last change cost those who were training. The first entry of a process (founding a
  // run, waiting for others) interrupts nobody and costs nothing.
  const bool was_training = state_->valid && generation_.roster.generation != 0;
  const int64_t began_ms = lost_at_ms_ != 0 ? lost_at_ms_ : BootMs();
  Ending ending;
  while (true) {
    progress_.store(0);
    time_.Switch(lost_at_ms_ != 0 ? TimeKind::kLost : TimeKind::kWait);
    Failpoint("regroup.before_join", state_->scalars.step);
    joining_since_ms_.store(BootMs());
    auto roster =
        membership_->Join(MakeOffer(), reason, cancel_, Deadline::After(config_.rendezvous_ms));
    joining_since_ms_.store(0);
    if (absl::IsUnavailable(roster.status()) && !outage.passed()) {
      LogWarning("Redis cannot be reached; the state is kept, trying again: ",
                 std::string(roster.status().message()));
      continue;
    }
    if (absl::IsCancelled(roster.status())) {
      (void)membership_->Leave(Deadline::After(1000));
      ending.kind = Ending::Kind::kLeft;
      ending.cause = EndReason::kDrain;
      ending.others_remain = true;
      ending.reason = "left on request while waiting for a round";
      return ending;
    }
    if (absl::IsAlreadyExists(roster.status())) {
      const bool stopped = membership_->notices().stop && !membership_->notices().finished;
      ending.kind = stopped ? Ending::Kind::kLeft : Ending::Kind::kFinished;
      ending.cause = stopped ? EndReason::kStop : EndReason::kNone;
      ending.reason = std::string(roster.status().message());
      return ending;
    }
    if (!roster.ok()) {
      const bool lost = membership_->notices().store_replaced;
      exit_ = lost                                          ? ExitCode::kStoreLost
              : absl::IsFailedPrecondition(roster.status()) ? ExitCode::kRefused
              : absl::IsDataLoss(roster.status())           ? ExitCode::kCheckpoint
              : absl::IsUnavailable(roster.status())        ? ExitCode::kStore
                                                            : ExitCode::kFailed;
      return roster.status();
    }
    Failpoint("regroup.after_seal", roster->step);
    const absl::Status built = BuildGeneration(*roster);
    if (built.ok()) break;
    if (generation_.comm != nullptr) generation_.comm->Abort(built);
    if (fatal_) return built;
    LogWarning("generation ", roster->generation,
               " could not be entered: ", std::string(built.message()));
    if (absl::IsDataLoss(built))
      reporter_.Event("checkpoint_skipped", roster->step, StdView(built.message()));
    membership_->ReportFailedBuild(*roster, endpoint_->Unreached());
    // The next round would be refused like this one, until a person changes something.
    if (absl::IsFailedPrecondition(built) && generation_.comm == nullptr) {
      exit_ = ExitCode::kUsage;
      (void)membership_->Leave(Deadline::After(1000));
      return built;
    }
    generation_.comm.reset();
    reason = std::string(built.message());
    VerifyOwnState();
  }
  RecordChoices();
  entered_ms_ = BootMs();
  last_regroup_ms_ = was_training ? entered_ms_ - began_ms : 0;
  lost_at_ms_ = 0;
  JoinedReport joined;
  joined.generation = generation_.roster.generation;
  joined.world_size = generation_.comm->world_size();
  joined.rank = generation_.comm->rank();
  joined.step = state_->scalars.step;
  joined.branch = branch_;
  for (const rendezvous::Fork& fork : lineage_) joined.forks.emplace_back(fork.branch, fork.step);
  joined.source = generation_.roster.source == rendezvous::Source::kMemory       ? "memory"
                  : generation_.roster.source == rendezvous::Source::kCheckpoint ? "checkpoint"
                                                                                 : "fresh";
  joined.note = generation_.roster.note;
  joined.carrier = generation_.comm->Carrier();
  reporter_.Joined(joined);
  membership_->SetStatus("training", joined.step, joined.world_size, train_loss_);
  return ending;  // kRegroup: train
}

// A state in memory whose digest is not the recorded one any more could be offered, and refused by
// those who receive it, for ever. One pass over the memory, after a failed build only.
void Session::VerifyOwnState() {
  if (!state_->valid || state_->marked) return;
  const uint64_t recorded = state_->Digest();
  if (state_->Redigest().ok() && state_->Digest() == recorded) return;
  reporter_.Event("corrupt", state_->scalars.step,
                  "the state in this worker's memory has changed since it was agreed: given up");
  state_->valid = false;
  vouched_ = false;
  unagreed_.present = false;
  agreed_step_ = -1;
}

// The links between the roster's members and, between GPUs, NCCL beside them.
absl::Status Session::Connect(const rendezvous::Roster& roster) {
  if (roster.members.size() == 1) {
    if (nccl_ != nullptr) nccl_->Forget();  // its kernels may still stand on the GPU
    generation_.comm = MakeLocalCommunicator(device_);
    return absl::OkStatus();
  }
  const bool gpu = device_->backend() != kernels::Backend::kCpu;
  TcpEndpoint::GroupOptions options;
  options.run = roster.run;
  options.secret = roster.secret;
  options.generation = roster.generation;
  options.nonce = roster.nonce;
  options.rank = roster.rank;
  options.detect_ms = config_.detect_ms;
  options.transport = gpu || config_.transport == "tcp" ? Transport::kTcp
                      : config_.transport == "shm"      ? Transport::kShm
                                                        : Transport::kAuto;
  options.agree_on_transport = !gpu;
  options.shared = engine_->shared();
  for (const rendezvous::Member& m : roster.members) options.peers.push_back({m.address, m.port});
  HF_ASSIGN_OR_RETURN(auto links, endpoint_->Build(options, &cancel_));
  if (!gpu) {
    generation_.comm = std::move(links);
    return absl::OkStatus();
  }
  if (const absl::Status made = MakeNccl(); !made.ok()) {  // no other round would help
    exit_ = ExitCode::kUsage;
    fatal_ = true;
    links->Abort(made);
    return made;
  }
  HF_ASSIGN_OR_RETURN(generation_.comm, nccl_->Join(std::move(links), roster.generation, &cancel_));
  return absl::OkStatus();
}

absl::Status Session::BuildGeneration(const rendezvous::Roster& roster) {
  generation_ = Generation();
  generation_.roster = roster;
  const bool held_before =
      state_->valid && !state_->marked && state_->scalars.step == roster.step &&
      roster.source == rendezvous::Source::kMemory && roster.members[roster.rank].has_state;
  HF_RETURN_IF_ERROR(Connect(roster));
  TransferOptions transfer;
  transfer.seed = config_.seed;
  transfer.streams = data_->streaming() ? config_.micro_batches : 0;
  transfer.scales_loss = config_.precision == "fp16";
  if (!held_before) {
    vouched_ = false;
    unagreed_.present = false;
  }
  HF_RETURN_IF_ERROR(TakeState(*generation_.comm, roster, transfer, *held_, *state_));
  if (roster.source == rendezvous::Source::kFresh && !config_.init_from.empty()) {
    const absl::Status status =
        InitializeFrom(config_.init_from, config_.init_digest, state_.get());
    if (!status.ok()) {
      exit_ = ExitCode::kData;
      fatal_ = true;
      return absl::InvalidArgumentError(Cat("--init-from: ", StdView(status.message())));
    }
  }
  if (roster.source == rendezvous::Source::kCheckpoint) {
    saved_step_ = roster.step;
    saved_id_ = {roster.checkpoint.branch, roster.step, roster.checkpoint.generation};
    reporter_.Event("restore", roster.step,
                    Cat("resumed from the checkpoint of step ", roster.step,
                        roster.note.empty() ? "" : ". ", roster.note));
  }
  // From the first step on there is something to come back to: a loss of all before the first
  // regular checkpoint would else leave progress on record and no state.
  if (roster.source == rendezvous::Source::kFresh) want_save_ = true;
  engine_->SetWorld(static_cast<int>(roster.members.size()), roster.rank);
  // Own sums stay good only for the state that they were computed from.
  if (!held_before || engine_->accumulator().dirty() ||
      engine_->exponents() != state_->scalars.exponent) {
    engine_->ResetSums();
  }
  HF_RETURN_IF_ERROR(Exchange());
  HF_RETURN_IF_ERROR(TakeLineage(roster));
  return membership_->Confirm(roster);
}

// From here on this worker is on the roster's newest branch. Durable before it confirms, and so
// before it contributes to a step: no step of a branch is done before all its members know of it.
absl::Status Session::TakeLineage(const rendezvous::Roster& roster) {
  if (roster.lineage == lineage_) return absl::OkStatus();
  HF_ASSIGN_OR_RETURN(Schedules schedules, Schedules::Of(config_, roster.lineage));
  HF_RETURN_IF_ERROR(store_->PutMark(kBranchesMark, rendezvous::EncodeLineage(roster.lineage)));
  if (!lineage_.empty() && roster.rank == 0) {
    const rendezvous::Fork& fork = roster.lineage.back();
    reporter_.Event("branch", fork.step,
                    Cat("branch ", fork.branch, " goes on after step ", fork.step, " with ",
                        ScheduleChange(lineage_.back().schedule, fork.schedule)));
  }
  lineage_ = roster.lineage;
  branch_ = roster.branch;
  engine_->SetSchedules(std::move(schedules));
  saver_->Follow(lineage_);
  return absl::OkStatus();
}

// All learn what all hold: micro-batches of the step under way, and how far saves and evaluations
// are.
absl::Status Session::Exchange() {
  Communicator& comm = *generation_.comm;
  const int world = comm.world_size();
  const int64_t bitmap = (config_.micro_batches + 7) / 8;
  const int64_t size = static_cast<int64_t>(sizeof(ExchangeHead)) + bitmap;
  std::vector<std::byte> all(world * size);
  ExchangeHead head;
  head.step = state_->scalars.step;
  head.evaluated_step = evaluated_step_;
  head.saved_step = saved_step_;
  head.digest = state_->Digest();
  head.want_save = want_save_;
  head.intents = adopted_intents_;
  best_.BeginAt(head.step, lineage_);
  head.saved = saved_id_;
  head.best = best_.best();
  head.candidate = best_.candidate();
  std::byte* mine = all.data() + comm.rank() * size;
  std::memcpy(mine, &head, sizeof head);
  const std::vector<bool>& held = engine_->accumulator().held();
  for (int64_t j = 0; j < config_.micro_batches; ++j) {
    if (held[j]) mine[sizeof head + j / 8] |= std::byte{1} << (j % 8);
  }
  std::vector<int64_t> borders;
  for (int r = 0; r <= world; ++r) borders.push_back(r * size);
  HF_RETURN_IF_ERROR(comm.Wait(comm.AllGather(all, borders, {head.step, 0, kExchangeBucket}),
                               Deadline::After(60'000)));
  std::vector<std::vector<bool>> bitmaps;
  for (int r = 0; r < world; ++r) {
    ExchangeHead other;
    std::memcpy(&other, all.data() + r * size, sizeof other);
    if (other.step != head.step || other.digest != head.digest) {
      return absl::AbortedError(Cat("rank ", r, " entered with step ", other.step, ", digest ",
                                    Hex64(other.digest), "; this one with step ", head.step,
                                    ", digest ", Hex64(head.digest)));
    }
    // A save or evaluation that one member saw completed is completed.
    evaluated_step_ = std::max(evaluated_step_, other.evaluated_step);
    saved_step_ = std::max(saved_step_, other.saved_step);
    if (std::tie(other.saved.step, other.saved) > std::tie(saved_id_.step, saved_id_))
      saved_id_ = other.saved;
    best_.Merge(other.best, other.candidate);
    want_save_ |= other.want_save != 0;
    adopted_intents_ |= other.intents;
    bitmaps.push_back(BitsFrom(all.data() + r * size + sizeof other, config_.micro_batches));
  }
  best_.BeginAt(head.step, lineage_);
  saver_->KeepBest(best_.best());
  // All hold the roster's state now, so that whoever is left of them may vouch for it.
  vouched_ = true;
  agreed_step_ = head.step;
  agreed_digest_ = head.digest;
  const Deal deal = DealMicroBatches(config_.micro_batches, bitmaps);
  if (deal.reset[comm.rank()]) engine_->ResetSums();
  generation_.mine = deal.compute[comm.rank()];
  return absl::OkStatus();
}

}  // namespace holdfast
