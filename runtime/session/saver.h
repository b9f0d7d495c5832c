// Saves of one worker. The main thread copies this rank's slice of the state (the only stall) and
// goes on; on a GPU the copy runs on a stream of its own into pinned memory, the next update of the
// state waits for it on the device, and the main thread does not wait at all. The writer thread,
// owned here, writes it into the slot's store. The two counts ("durable on all", then "manifest
// durable on all") go through the control table: this class only says where this worker stands and
// does what the verdict says.
//
// A change of membership ends the wait and undoes nothing: Abandon() forgets the save, bytes stay
// where they are.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "rendezvous/lineage.h"
#include "runtime/session/best_checkpoint.h"
#include "runtime/session/control_table.h"
#include "runtime/session/state.h"
#include "storage/checkpoint_store.h"

namespace holdfast {

class Saver {
 public:
  // `store` outlives this. keep: checkpoints that stay after a newer one is saved.
  Saver(storage::SlotStore* store, int keep);
  ~Saver();

  // What is pruned first from now on: checkpoints that are not of this history. Main thread.
  void Follow(const rendezvous::Lineage& lineage);

  struct Target {
    storage::Manifest manifest;  // shards filled in later; regions, id, scalars, digest now
    int rank = 0, world_size = 1;
  };
  // Copies the slice and starts to write it. The state must be whole; idle() must be true. Returns
  // the stall in ms.
  double Begin(State& state, Target target);
  // Verdict "all shards durable": rows' shard facts complete the manifest, which is then written.
  void WriteManifest(std::vector<storage::ShardInfo> shards);
  // Verdict "saved": this checkpoint counts; older ones beyond `keep` are pruned in the background.
  void Saved();
  // On record in this store.
  BestCheckpoint best() const;
  // The best checkpoint: written down durably (mark "best"), and spared by every prune after that.
  // Not known: there is none any more.
  void KeepBest(const BestCheckpoint& best);
  // The save is over without success (failure of a rank, or the generation ended). Does not wait: a
  // write under way goes on, and idle() is false until it has come to its end.
  void Abandon();

  bool idle();  // nothing in flight and the writer thread at rest
  bool in_flight() const { return target_.has_value() && !dropped_; }
  storage::CheckpointId id() const { return target_->manifest.id; }
  uint64_t digest() const { return target_->manifest.state_digest; }
  absl::Status status() const;  // of the writer's last job
  double write_ms() const;
  // This worker's part of a row.
  void FillRow(ControlRow* row);
  // Waits until the writer's present job is over, at most wait_ms.
  bool WaitWriter(int64_t wait_ms) const;

 private:
  enum class Phase {
    kIdle,
    kWriting,
    kShardDurable,
    kWritingManifest,
    kManifestDurable,
    kPruning,
    kFailed
  };
  // What a job came to. The phase and "at rest" become visible together: the verdict that a row's
  // phase leads to may post the next job at once.
  struct Outcome {
    Phase phase = Phase::kIdle;
    absl::Status status;
    storage::ShardInfo shard;  // of the job that wrote one
    double write_ms = 0;
  };
  void Loop();
  Outcome RunShard();
  Outcome RunManifest();
  Outcome RunPrune();
  absl::Status MarkBest(storage::CheckpointId* spared);
  void Post(Phase phase);
  void Reap();

  storage::SlotStore* store_;
  const int keep_;
  bool dropped_ = false;          // target_ was abandoned while the writer still reads it
  std::optional<Target> target_;  // main thread; the writer reads it while a job runs
  std::optional<storage::ChunkGrid> grid_;
  kernels::Buffer snapshot_;  // host memory
  kernels::Device* device_ = nullptr;
  // The writer's while a job runs: it waits for the copies there.
  std::unique_ptr<kernels::Stream> copies_;
  std::vector<int64_t> offset_;  // words, of each owned chunk in the snapshot
  storage::CheckpointId saved_;

  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  Phase phase_ = Phase::kIdle;
  bool working_ = false, quit_ = false;
  rendezvous::Lineage lineage_;
  absl::Status status_;
  storage::ShardInfo shard_;
  double write_ms_ = 0;
  BestCheckpoint best_, marked_;  // as it is to be, and as it is on record
  std::thread thread_;
};

}  // namespace holdfast
