// The resolved configuration of a run: flags over config file over defaults. A plain value;
// read-only after parsing. Every field is a flag (--micro-batches) and a key of the config file
// (micro_batches or micro-batches). The table of keys (name, class, unit, help) is in keys.cc:
// parsing, --help, config.toml and the README's table all come from it.
//
// Classes: kBits moves the result (a change is refused for an existing run), kSchedule moves it in
// a way people want (refused unless --accept-change says so; the run then goes on in a new branch,
// see runtime/base/lineage.h), kFree moves nothing but speed, membership, logs, storage.
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
  std::string limit_data;  // "" = all; "1%" or "200000": only so much of the beginning; bits
  int64_t overfit = 0;     // > 0: the first so many micro-batches again and again; bits
  // Workers and membership (free).
  int workers = 0;  // 0 = auto: one for each two cores, at least 1
  int min_workers = 1, max_workers = 64;
  std::string redis;                // "" = embedded; redis://host:port
  std::string redis_password_file;  // or the environment variable HOLDFAST_REDIS_PASSWORD
  std::string host = "127.0.0.1";   // address under which other machines reach this one's workers
  std::string transport = "auto";   // auto | tcp | shm
  std::string device = "auto";  // auto | cpu | cuda; auto becomes one of them when the run begins
  std::string cuda_libs;        // folders, ':' between them
  int port = 0;                 // worker N listens on port + N; 0: any that is free
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
  int64_t steps = 1000;  // free: the learning rate of a step does not depend on it
  uint64_t seed = 1;
  int64_t micro_batches = 4;  // M
  // Sequences (samples) in one micro-batch; 0 (never from a user): left open, see
  // supervisor/settle_bits.h.
  int64_t micro_batch_size = 3;
  double learning_rate = 1e-3, min_learning_rate = 1e-4;  // schedule
  int64_t warmup_steps = 100;                             // schedule
  std::string lr_schedule = "cosine";                     // cosine | linear | constant; schedule
  // The decay ends at this step; 0: at `steps` as they were when the run began (schedule). A run's
  // directory keeps the number, so that raising `steps` later moves no step's learning rate.
  int64_t decay_steps = 0;
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, clip = 1.0;
  // fp32 | bf16 | fp16 | tf32; "default" and "auto" become one of them when the run begins.
  std::string precision = "default";
  std::string init_from;            // safetensors file of a fresh run's first values (free), and
  std::string init_digest;          // the digest of its bytes: found by `holdfast run`, bits
  std::string reduction = "exact";  // exact | fast; bits
  // Saving, evaluating, logging (free, but for eval_batches: reported only).
  int64_t checkpoint_every_steps = 0;     // of --checkpoint-every: steps, or
  int64_t checkpoint_every_ms = 600'000;  // a duration ("30m"); the one not given is 0
  int keep = 3, keep_best = 1;
  int checkpoint_max_failures = 5;
  int64_t eval_every = 250, eval_batches = 0;  // 0 batches: the whole held-out part
  int64_t log_every = 10;
  std::string tensorboard = "on";          // on | off: event files in DIR/tensorboard
  int metrics_port = 0;                    // of the page for Prometheus; 0: none
  std::string metrics_host = "127.0.0.1";  // address on which it listens
  int threads = 1;                         // micro-batches computed at once by one worker
  int64_t max_time_ms = 0;     // saves and stops in order before so much time is over; 0: no limit
  bool fresh = false;          // set an existing run's checkpoints aside and start anew
  bool accept_change = false;  // changed schedule keys open a new branch of an existing run
  std::map<std::string, std::string>
      model_keys;  // [model] table of the file: for a user's own model

  // All keys as TOML, in the order of the table; what a model or data factory receives, and
  // DIR/config.toml.
  std::string ToToml() const;
  // "key = value" lines of the keys of class kBits, and of class kSchedule: equal lines, equal
  // bits. Keys that came after the first version are left out of BitsText while they have their
  // default, so that runs made before them can go on.
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
