#include "runtime/session/saver.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace holdfast {

Saver::Saver(storage::SlotStore* store, int keep) : store_(store), keep_(std::max(1, keep)) {
  if (const auto mark = store_->GetMark(kBestMark); mark.ok()) {
    if (const auto best = BestCheckpoint::Decode(*mark); best.ok()) best_ = marked_ = *best;
  }
  thread_ = std::thread([this] { Loop(); });
}

Saver::~Saver() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Saver::Post(Phase phase) {
  std::lock_guard lock(mutex_);
  assert(!working_);
  phase_ = phase;
  working_ = true;
  status_ = absl::OkStatus();
  changed_.notify_all();
}

void Saver::Follow(const rendezvous::Lineage& lineage) {
  std::lock_guard lock(mutex_);
  lineage_ = lineage;
}

double Saver::Begin(State& state, Target target) {
  assert(idle() && state.valid && !state.marked);
  const int64_t start_us = BootUs();
  if (!grid_) grid_.emplace(state.grid().regions());
  const auto [first, last] = grid_->Owned(target.rank, target.world_size);
  const int64_t bytes = grid_->WordsIn(first, last) * 4;
  if (snapshot_.bytes() < bytes) {
    auto buffer = state.device().AllocateHost(bytes);
    if (!buffer.ok()) {
      std::lock_guard lock(mutex_);
      target_ = std::move(target);
      phase_ = Phase::kFailed;
      status_ = Annotate(buffer.status(), "checkpoint snapshot");
      return 0;
    }
    snapshot_ = *std::move(buffer);
  }
  device_ = &state.device();
  if (copies_ == nullptr) copies_ = device_->NewStream();
  copies_->Wait(state.stream().Record());
  offset_.clear();
  int64_t words = 0;
  for (int64_t ordinal = first; ordinal < last; ++ordinal) {
    const storage::Chunk& c = grid_->chunk(ordinal);
    offset_.push_back(words);
    state.device().Copy(*copies_, snapshot_.as<uint32_t>() + words,
                        state.RegionData(c.region) + c.first, c.words * 4);
    words += c.words;
  }
  state.stream().Wait(copies_->Record());  // the next update comes after the copy
  target_ = std::move(target);
  const double stall_ms = static_cast<double>(BootUs() - start_us) * 1e-3;
  Post(Phase::kWriting);
  return stall_ms;
}

void Saver::WriteManifest(std::vector<storage::ShardInfo> shards) {
  {
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::kShardDurable) return;  // asked for already
  }
  target_->manifest.shards = std::move(shards);
  Post(Phase::kWritingManifest);
}

void Saver::Saved() {
  saved_ = target_->manifest.id;
  target_.reset();
  Post(Phase::kPruning);
}

BestCheckpoint Saver::best() const {
  std::lock_guard lock(mutex_);
  return marked_;
}

void Saver::KeepBest(const BestCheckpoint& best) {
  {
    std::lock_guard lock(mutex_);
    if (best_ == best) return;
    best_ = best;
  }
  // Else the prune after the save under way writes it down, or the next one.
  if (idle()) Post(Phase::kPruning);
}

void Saver::Abandon() {
  if (!target_ || dropped_) return;
  dropped_ = true;
  Reap();
}

void Saver::Reap() {
  std::lock_guard lock(mutex_);
  if (!dropped_ || working_) return;
  target_.reset();
  dropped_ = false;
  phase_ = Phase::kIdle;
}

bool Saver::idle() {
  Reap();
  std::lock_guard lock(mutex_);
  return !target_ && !working_;
}

absl::Status Saver::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

double Saver::write_ms() const {
  std::lock_guard lock(mutex_);
  return write_ms_;
}

bool Saver::WaitWriter(int64_t wait_ms) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(wait_ms), [&] { return !working_; });
}

void Saver::FillRow(ControlRow* row) {
  Reap();
  std::lock_guard lock(mutex_);
  if (!target_ || dropped_) {
    if (!target_ && !working_) row->flags |= kRowSaverIdle;
    return;
  }
  row->save_step = target_->manifest.id.step;
  if (phase_ == Phase::kFailed) row->flags |= kRowSaveFailed;
  const bool durable = phase_ == Phase::kShardDurable || phase_ == Phase::kWritingManifest ||
                       phase_ == Phase::kManifestDurable;
  if (durable) {
    row->flags |= kRowShardDurable;
    row->shard_digest = shard_.state_digest;
    row->shard_bytes = shard_.bytes;
  }
  if (phase_ == Phase::kManifestDurable) row->flags |= kRowManifestDurable;
}

void Saver::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return quit_ || working_; });
    if (!working_) return;
    const Phase phase = phase_;
    lock.unlock();
    Outcome outcome = phase == Phase::kWriting           ? RunShard()
                      : phase == Phase::kWritingManifest ? RunManifest()
                                                         : RunPrune();
    lock.lock();
    if (phase == Phase::kWriting) {
      shard_ = std::move(outcome.shard);
      write_ms_ = outcome.write_ms;
    }
    phase_ = outcome.phase;
    status_ = std::move(outcome.status);
    working_ = false;
    changed_.notify_all();
  }
}

Saver::Outcome Saver::RunShard() {
  const int64_t start_us = BootUs();
  absl::Status copied = device_->BindThread();
  if (copied.ok()) copied = copies_->Synchronize(Deadline::After(kDeviceWaitMs));
  if (!copied.ok()) {
    Outcome failed;
    failed.phase = Phase::kFailed;
    failed.status = absl::UnavailableError(Cat("checkpoint snapshot: ", copied.message()));
    return failed;
  }
  const auto [first, last] = grid_->Owned(target_->rank, target_->world_size);
  auto shard = store_->WriteShard(target_->manifest.id, target_->rank, *grid_, first, last,
                                  [&, begin = first](int64_t ordinal, std::span<uint32_t> out) {
                                    std::memcpy(out.data(),
                                                snapshot_.as<uint32_t>() + offset_[ordinal - begin],
                                                out.size() * 4);
                                    return absl::OkStatus();
                                  });
  Outcome outcome;
  outcome.write_ms = static_cast<double>(BootUs() - start_us) * 1e-3;
  if (shard.ok()) {
    outcome.phase = Phase::kShardDurable;
    outcome.shard = *std::move(shard);
  } else {
    outcome.phase = Phase::kFailed;
    outcome.status =
        Annotate(shard.status(), Cat("checkpoint of step ", target_->manifest.id.step));
  }
  return outcome;
}

Saver::Outcome Saver::RunManifest() {
  Outcome outcome;
  outcome.status = Annotate(store_->WriteManifest(target_->manifest),
                            Cat("manifest of step ", target_->manifest.id.step));
  outcome.phase = outcome.status.ok() ? Phase::kManifestDurable : Phase::kFailed;
  return outcome;
}

// Before anything is pruned: else the record could name a checkpoint that is gone.
absl::Status Saver::MarkBest(storage::CheckpointId* spared) {
  BestCheckpoint best;
  {
    std::lock_guard lock(mutex_);
    best = best_;
    if (best.known) *spared = best.id;
    if (best == marked_) return absl::OkStatus();
  }
  HF_RETURN_IF_ERROR(store_->PutMark(kBestMark, best.known ? best.Encode() : ""));
  std::lock_guard lock(mutex_);
  marked_ = best;
  return absl::OkStatus();
}

// By explicit list of ids below the newest saved one: those beyond the `keep` newest, those of a
// history that was left behind (nothing restores them any more), and the remains of saves that were
// given up (shards without a manifest were never part of anything that
// was called saved), by this process or one before it.
Saver::Outcome Saver::RunPrune() {
  std::vector<storage::CheckpointId> doomed;
  rendezvous::Lineage lineage;
  {
    std::lock_guard lock(mutex_);
    lineage = lineage_;
  }
  storage::CheckpointId spared{0, -1, 0};
  absl::Status status = MarkBest(&spared);
  const auto manifests = store_->Manifests();
  const auto ids = store_->Ids();
  if (status.ok()) status = manifests.ok() ? ids.status() : manifests.status();
  if (status.ok()) {
    int kept = 0;
    for (auto m = manifests->rbegin(); m != manifests->rend(); ++m) {
      if (m->id > saved_) continue;
      const bool ours = m->id.step <= rendezvous::LastStepOn(lineage, m->id.branch);
      if ((!ours || kept++ >= keep_) && m->id != spared) doomed.push_back(m->id);
    }
    for (const storage::CheckpointId& id : *ids) {
      const bool has_manifest = std::any_of(manifests->begin(), manifests->end(),
                                            [&](const auto& m) { return m.id == id; });
      if (id < saved_ && !has_manifest) doomed.push_back(id);
    }
    if (!doomed.empty()) status = store_->Prune(doomed);
  }
  if (!status.ok()) {
    LogWarning("old checkpoints could not be pruned (tried again after the next save): ",
               std::string(status.message()));
  }
  return {};
}

}  // namespace holdfast
