// A checkpoint read from outside: by the commands that sample and export. Stores are opened as
// secondaries, so a run may write meanwhile and nothing is changed. What is read is proven: every
// chunk by its own hash, all of them together by the digest that the workers agreed on.
//
// Threads: one. Errors: kNotFound (no checkpoint, or not the wanted one: says what there is),
// kDataLoss (damaged), kFailedPrecondition (parts of it are on other machines: names them).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/config/config.h"
#include "runtime/models/model.h"
#include "runtime/session/best_checkpoint.h"
#include "storage/catalog.h"

namespace holdfast {

// Of a run's directory.
struct SavedRun {
  Config config;
  std::string toml;     // for a trainer's factories
  std::string machine;  // "" when it is not known
};
absl::StatusOr<SavedRun> ReadSavedRun(const std::string& dir);

struct CheckpointChoice {
  int64_t step = -1;  // -1: the newest good one
  bool best = false;  // the one with the smallest held-out loss
};

// What is done with the words. Begin may be called again, for another checkpoint, when the one
// before turned out to be damaged or was pruned meanwhile: then all starts anew.
struct CheckpointConsumer {
  std::function<absl::Status(const storage::Manifest&)> begin;
  // Words first.. of the value of tensor `tensor` (index into the ModelSpec).
  std::function<absl::Status(size_t tensor, int64_t first, std::span<const uint32_t> words)> words;
};

// Reads the chosen checkpoint whole and hands out the values of the model's tensors. The manifest
// of what was read; what was skipped and why is logged. An error of the consumer ends it.
absl::StatusOr<storage::Manifest> ReadCheckpoint(const std::string& dir, const SavedRun& run,
                                                 const ModelSpec& spec,
                                                 const CheckpointChoice& choice,
                                                 const CheckpointConsumer& consumer);

// The best checkpoint on record in these stores.
BestCheckpoint BestIn(const storage::Catalog& catalog);

}  // namespace holdfast
