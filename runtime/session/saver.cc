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

double Saver::Begin(State& state, Target target) {
  assert(idle() && state.valid && !state.marked);
  const int64_t start_us = BootUs();
  if (!grid_) grid_.emplace(state.grid().regions());
  const auto [first, last] = grid_->Owned(target.rank, target.world_size);
  const int64_t bytes = grid_->WordsIn(first, last) * 4;
  if (snapshot_.bytes() < bytes) {
    auto buffer = kernels::CpuDevice().Allocate(bytes);
    if (!buffer.ok()) {
      std::lock_guard lock(mutex_);
      target_ = std::move(target);
      phase_ = Phase::kFailed;
      status_ = Annotate(buffer.status(), "checkpoint snapshot");
      return 0;
    }
    snapshot_ = *std::move(buffer);
  }
  offset_.clear();
  int64_t words = 0;
  for (int64_t ordinal = first; ordinal < last; ++ordinal) {
    const storage::Chunk& c = grid_->chunk(ordinal);
    offset_.push_back(words);
    std::memcpy(snapshot_.as<uint32_t>() + words, state.RegionData(c.region) + c.first,
                c.words * 4);
    words += c.words;
  }
  shard_ = storage::ShardInfo();
  shard_.owner = target.rank;
  shard_.first = first;
  shard_.last = last;
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

void Saver::Abandon() {
  if (!target_ || dropped_) return;
  abandoned_.insert(target_->manifest.id);
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
    if (phase == Phase::kWriting) RunShard();
    if (phase == Phase::kWritingManifest) RunManifest();
    if (phase == Phase::kPruning) RunPrune();
    lock.lock();
    working_ = false;
    changed_.notify_all();
  }
}

void Saver::RunShard() {
  const int64_t start_us = BootUs();
  auto shard = store_->WriteShard(
      target_->manifest.id, target_->rank, *grid_, shard_.first, shard_.last,
      [&](int64_t ordinal, std::span<uint32_t> out) {
        std::memcpy(out.data(), snapshot_.as<uint32_t>() + offset_[ordinal - shard_.first],
                    out.size() * 4);
        return absl::OkStatus();
      });
  std::lock_guard lock(mutex_);
  write_ms_ = static_cast<double>(BootUs() - start_us) * 1e-3;
  if (shard.ok()) {
    shard_ = *shard;
    phase_ = Phase::kShardDurable;
  } else {
    status_ = Annotate(shard.status(), Cat("checkpoint of step ", target_->manifest.id.step));
    phase_ = Phase::kFailed;
  }
}

void Saver::RunManifest() {
  const absl::Status status = store_->WriteManifest(target_->manifest);
  std::lock_guard lock(mutex_);
  status_ = Annotate(status, Cat("manifest of step ", target_->manifest.id.step));
  phase_ = status.ok() ? Phase::kManifestDurable : Phase::kFailed;
}

void Saver::RunPrune() {
  // Only ids below the newest saved one, and only beyond the `keep` newest of them: by explicit
  // list.
  auto manifests = store_->Manifests();
  std::vector<storage::CheckpointId> doomed;
  if (manifests.ok()) {
    std::vector<storage::CheckpointId> kept;
    for (auto m = manifests->rbegin(); m != manifests->rend(); ++m) {
      if (m->id > saved_) continue;
      if (static_cast<int>(kept.size()) < keep_) {
        kept.push_back(m->id);
      } else {
        doomed.push_back(m->id);
      }
    }
  }
  for (const storage::CheckpointId& id : abandoned_) {
    const bool has_manifest =
        manifests.ok() && std::any_of(manifests->begin(), manifests->end(),
                                      [&](const auto& m) { return m.id == id; });
    if (id < saved_ && !has_manifest) doomed.push_back(id);
  }
  absl::Status status = manifests.status();
  if (status.ok() && !doomed.empty()) status = store_->Prune(doomed);
  if (status.ok()) {
    for (const auto& id : doomed) abandoned_.erase(id);
  } else {
    LogWarning("old checkpoints could not be pruned (tried again after the next save): ",
               std::string(status.message()));
  }
  std::lock_guard lock(mutex_);
  phase_ = Phase::kIdle;
}

}  // namespace holdfast
