// The resolved configuration of a run: flags over config file over defaults. A plain value;
// read-only after parsing. Every field is a flag (--micro-batches) and a key of the config file
// (micro_batches or micro-batches). The table of keys (name, class, unit, help) is in keys.cc:
// parsing, --help, config.toml and the README's table all come from it.
//
// Classes: kBits moves the result (a change is refused for an existing run), kSchedule moves it in
// a way people want (accepted with --accept-change in a later version; refused until then), kFree
// moves nothing but speed, membership, logs, storage.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast {

struct Config {
  // Where and what.
  std::string dir = "holdfast-run";
  std::string run;                     // "" = name of dir
  std::string model = "gpt";           // gpt | mlp | a trainer's own
  std::vector<std::string> data;       // text file, folder of text files, or .bin files (globs)
  std::vector<std::string> eval_data;  // "" = the last tenth of data is held out
  // Workers and membership (free).
  int workers = 0;  // 0 = auto: one for each two cores, at least 1
  int min_workers = 1, max_workers = 64;
  std::string redis;                // "" = embedded; redis://host:port
  std::string redis_password_file;  // or the environment variable HOLDFAST_REDIS_PASSWORD
  std::string host = "127.0.0.1";   // address under which other machines reach this one's workers
  std::string transport = "auto";   // auto | tcp | shm
  int64_t detect_ms = 1000;
  int64_t grace_ms = 30'000;  // from SIGTERM to SIGKILL of own workers
  int64_t restore_wait_ms = 60'000;
  int64_t rendezvous_ms = 120'000;
  int restarts = 20;  // budget of worker deaths without progress in between (see README)
  // Model (bits).
  int64_t layers = 4, heads = 4, embed = 128, context = 64,
          vocab_size = 0;  // 0: from the data (256 for text)
  double dropout = 0;
  // Training (bits unless said).
  int64_t steps = 1000;  // schedule
  uint64_t seed = 1;
  int64_t micro_batches = 4;                              // M
  int64_t micro_batch_size = 3;                           // sequences (samples) in one micro-batch
  double learning_rate = 1e-3, min_learning_rate = 1e-4;  // schedule
  int64_t warmup_steps = 100;                             // schedule
  std::string lr_schedule = "cosine";                     // cosine | linear | constant; schedule
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, clip = 1.0;
  std::string reduction = "exact";  // exact | fast; bits
  // Saving, evaluating, logging (free, but for eval_batches: reported only).
  int64_t checkpoint_every_steps = 0;     // of --checkpoint-every: steps, or
  int64_t checkpoint_every_ms = 600'000;  // a duration ("30m"); the one not given is 0
  int keep = 3;
  int checkpoint_max_failures = 5;
  int64_t eval_every = 250, eval_batches = 0;  // 0 batches: the whole held-out part
  int64_t log_every = 10;
  int threads = 1;     // micro-batches computed at once by one worker
  bool fresh = false;  // set an existing run's checkpoints aside and start anew
  std::map<std::string, std::string>
      model_keys;  // [model] table of the file: for a user's own model

  // All keys as TOML, in the order of the table; what a model or data factory receives, and
  // DIR/config.toml.
  std::string ToToml() const;
  // "key = value" lines of the keys of class kBits (and kSchedule where asked): equal lines, equal
  // bits.
  std::string BitsText() const;
  std::string ScheduleText() const;
};

// Reads a TOML text whose keys are the table's (a worker reads what the supervisor resolved).
// Strict: unknown keys (with the nearest known one), wrong types, out-of-range and contradictory
// values are kInvalidArgument with file, line, key, value, expectation.
absl::StatusOr<Config> ConfigFromToml(std::string_view text, std::string_view file_name);
// Relations between keys ("min-workers 5 is above max-workers 4"). Called by everything that builds
// a Config.
[[nodiscard]] absl::Status Validate(const Config& config);

}  // namespace holdfast
