#include "runtime/config/keys.h"

#include <algorithm>
#include <array>

#include "runtime/base/text.h"

namespace holdfast {
namespace {

constexpr auto kBits = KeyClass::kBits;
constexpr auto kSchedule = KeyClass::kSchedule;
constexpr auto kFree = KeyClass::kFree;
constexpr auto kInteger = KeyType::kInteger;
constexpr auto kNumber = KeyType::kNumber;
constexpr auto kText = KeyType::kText;
constexpr auto kList = KeyType::kList;
constexpr auto kMilliseconds = KeyType::kMilliseconds;
constexpr double kHuge = 1e15;  // below 2^53: every integer up to here is exact as a double
using C = Config;

// clang-format off
const Key kTable[] = {
  // Where and what.
  {"dir", &C::dir, kText, kFree, "Run", 0, 0, "", "directory of the run: config, logs, checkpoints; one run per directory"},
  {"run", &C::run, kText, kFree, "Run", 0, 0, "", "name of the run, the same on every machine (default: the directory's name, with --redis a generated one)"},
  {"model", &C::model, kText, kBits, "Run", 0, 0, "", "gpt, mlp, or a name that your own trainer knows"},
  {"data", &C::data, kList, kFree, "Run", 0, 0, "", "text file, folder of text files, or uint16 .bin token files (globs); the contents are part of the run"},
  {"eval_data", &C::eval_data, kList, kFree, "Run", 0, 0, "", "held-out data (default: the last tenth of --data)"},
  {"limit_data", &C::limit_data, KeyType::kPart, kBits, "Run", 0, 0, "", "use only the beginning of --data: so many tokens, or a share like 1% (to start small)", true},
  {"overfit", &C::overfit, kInteger, kBits, "Run", 0, 1e12, "", "train on the first so many micro-batches again and again: a quick check that the model can learn; 0: off", true},
  {"steps", &C::steps, kInteger, kFree, "Run", 1, 1e12, "", "steps to train; may be raised later: the run continues"},
  {"max_time", &C::max_time_ms, kMilliseconds, kFree, "Run", 0, 1e12, "", "save and stop in order before so much time is over (3h), exit code 13; 0: no limit"},
  {"seed", &C::seed, kInteger, kBits, "Run", 0, kHuge, "", "seed of initial weights, data order and dropout"},
  {"fresh", &C::fresh, KeyType::kFlag, kFree, "Run", 0, 0, "", "set an existing run in --dir aside (DIR/old-N) and start anew"},
  {"accept_change", &C::accept_change, KeyType::kFlag, kFree, "Run", 0, 0, "", "go on with changed schedule keys, in a new branch of the run"},
  {"init_from", &C::init_from, kText, kFree, "Run", 0, 0, "", "safetensors file with the first weights (gpt: under GPT-2's names); its contents are part of the run"},
  {"init_digest", &C::init_digest, kText, kBits, "Internal", 0, 0, "", "digest of that file, found by itself"},
  // Model.
  {"layers", &C::layers, kInteger, kBits, "Model", 1, 1024, "", "transformer blocks (mlp: hidden layers)"},
  {"heads", &C::heads, kInteger, kBits, "Model", 1, 1024, "", "attention heads; must divide --embed"},
  {"embed", &C::embed, kInteger, kBits, "Model", 1, 65536, "", "width of the embedding"},
  {"context", &C::context, kInteger, kBits, "Model", 1, 1048576, "", "tokens in one sequence"},
  {"vocab_size", &C::vocab_size, kInteger, kBits, "Model", 0, 65536, "", "number of tokens; 0: from the data (256 for text)"},
  {"dropout", &C::dropout, kNumber, kBits, "Model", 0, 0.99, "", "share of activations dropped"},
  // Training.
  {"micro_batches", &C::micro_batches, kInteger, kBits, "Training", 1, 4096, "", "micro-batches in a step (M), whatever the number of workers"},
  {"micro_batch_size", &C::micro_batch_size, kInteger, kBits, "Training", 1, 1048576, "", "sequences in one micro-batch (default: on a GPU as many as make 16,384 tokens)"},
  {"learning_rate", &C::learning_rate, kNumber, kSchedule, "Training", 0, 1e3, "", "peak learning rate"},
  {"min_learning_rate", &C::min_learning_rate, kNumber, kSchedule, "Training", 0, 1e3, "", "learning rate at the last step"},
  {"warmup_steps", &C::warmup_steps, kInteger, kSchedule, "Training", 0, 1e12, "", "steps of linear warm-up"},
  {"lr_schedule", &C::lr_schedule, kText, kSchedule, "Training", 0, 0, "cosine|linear|constant", "shape of the decay after the warm-up"},
  {"decay_steps", &C::decay_steps, kInteger, kSchedule, "Training", 0, 1e12, "", "the decay ends at this step; 0: at the --steps that the run began with"},
  {"weight_decay", &C::weight_decay, kNumber, kBits, "Training", 0, 1e3, "", "AdamW's decoupled weight decay"},
  {"beta1", &C::beta1, kNumber, kBits, "Training", 0, 0.9999999, "", "AdamW's decay of the first moment"},
  {"beta2", &C::beta2, kNumber, kBits, "Training", 0, 0.9999999, "", "AdamW's decay of the second moment"},
  {"epsilon", &C::epsilon, kNumber, kBits, "Training", 1e-30, 1, "", "AdamW's epsilon"},
  {"clip", &C::clip, kNumber, kBits, "Training", 0, 1e9, "", "bound of the gradient's global norm; 0: off"},
  {"reduction", &C::reduction, kText, kBits, "Training", 0, 0, "exact|fast", "exact: the same bits for any number of workers; fast: plain sums"},
  {"precision", &C::precision, kText, kBits, "Training", 0, 0, "default|auto|fp32|bf16|fp16|tf32", "inputs of the matrix products of gpt and mlp; default: bf16 on a GPU, fp32 on a CPU; auto: on a CPU the faster of the two, timed once when the run begins"},
  // Workers.
  {"workers", &C::workers, kInteger, kFree, "Workers", 0, 1024, "", "worker processes on this machine; 0: one for each two cores, on GPUs one for each"},
  {"min_workers", &C::min_workers, kInteger, kFree, "Workers", 1, 1024, "", "training waits below this number, all machines together"},
  {"max_workers", &C::max_workers, kInteger, kFree, "Workers", 1, 1024, "", "more than this wait as spares"},
  {"threads", &C::threads, kInteger, kFree, "Workers", 1, 256, "", "micro-batches computed at once by one worker"},
  {"device", &C::device, kText, kFree, "Workers", 0, 0, "auto|cpu|cuda", "where workers compute; auto: one worker for each GPU present, else the CPU"},
  {"cuda_libs", &C::cuda_libs, kText, kFree, "Workers", 0, 0, "", "folders (a:b) in which cuBLASLt and NCCL are looked for first"},
  {"transport", &C::transport, kText, kFree, "Workers", 0, 0, "auto|tcp|shm", "what carries gradients: auto: shared memory when all workers are on one host, else tcp; shm: insist"},
  {"restarts", &C::restarts, kInteger, kFree, "Workers", 0, 1e6, "", "worker deaths tolerated without a new step in between"},
  {"detect_ms", &C::detect_ms, kMilliseconds, kFree, "Workers", 100, 600'000, "", "a silent or stopped worker is given up after this time"},
  {"grace_ms", &C::grace_ms, kMilliseconds, kFree, "Workers", 0, 86'400'000, "", "from SIGTERM or Ctrl-C to the end by force"},
  {"restore_wait_ms", &C::restore_wait_ms, kMilliseconds, kFree, "Workers", 0, 86'400'000, "", "wait for the machines that hold the newest checkpoint"},
  {"rendezvous_ms", &C::rendezvous_ms, kMilliseconds, kFree, "Workers", 1000, 86'400'000, "", "longest wait for a generation to form, and for Redis"},
  // Several machines.
  {"redis", &C::redis, kText, kFree, "Several machines", 0, 0, "", "redis://host:port (default: an embedded one on loopback); password: HOLDFAST_REDIS_PASSWORD"},
  {"redis_password_file", &C::redis_password_file, kText, kFree, "Several machines", 0, 0, "", "file with the password, readable by its owner only"},
  {"host", &C::host, kText, kFree, "Several machines", 0, 0, "", "address under which other machines reach this one"},
  {"port", &C::port, kInteger, kFree, "Several machines", 0, 64'000, "", "worker N listens on port + N; 0: any that is free"},
  // Saving, evaluating, logging.
  {"checkpoint_every", {}, KeyType::kCheckpointEvery, kFree, "Saving and logging", 0, 0, "", "steps (500) or a duration (30m)"},
  {"keep", &C::keep, kInteger, kFree, "Saving and logging", 1, 10'000, "", "checkpoints kept; older ones are pruned after a newer one is saved"},
  {"keep_best", &C::keep_best, kInteger, kFree, "Saving and logging", 0, 1, "", "1: the checkpoint with the smallest held-out loss stays, too; 0: off"},
  {"checkpoint_max_failures", &C::checkpoint_max_failures, kInteger, kFree, "Saving and logging", 1, 1'000'000, "", "failed saves in a row that end the run"},
  {"eval_every", &C::eval_every, kInteger, kFree, "Saving and logging", 0, 1e12, "", "steps between evaluations on held-out data, besides that after the last step; 0: only that one"},
  {"eval_batches", &C::eval_batches, kInteger, kFree, "Saving and logging", 0, 1e12, "", "held-out batches per evaluation; 0: all"},
  {"log_every", &C::log_every, kInteger, kFree, "Saving and logging", 1, 1e12, "", "steps between log lines"},
  {"tensorboard", &C::tensorboard, kText, kFree, "Saving and logging", 0, 0, "on|off", "event files for TensorBoard in DIR/tensorboard"},
  {"metrics_port", &C::metrics_port, kInteger, kFree, "Saving and logging", 0, 65535, "", "port of http://HOST:PORT/metrics for Prometheus; 0: none"},
  {"metrics_host", &C::metrics_host, kText, kFree, "Saving and logging", 0, 0, "", "address on which the metrics are served"},
};
// clang-format on

int64_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<int64_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int64_t diagonal = row[0];
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string Canonical(std::string_view name) {
  std::string out(name.substr(0, 64));
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

}  // namespace

std::span<const Key> Keys() { return kTable; }

const Key* FindKey(std::string_view name) {
  const std::string canonical = Canonical(name);
  for (const Key& key : kTable) {
    if (key.name == canonical) return &key;
  }
  return nullptr;
}

std::string NearestKey(std::string_view name, std::span<const std::string_view> more) {
  const std::string canonical = Canonical(name);
  std::string_view best;
  int64_t best_distance = std::max<int64_t>(2, static_cast<int64_t>(canonical.size()) / 3) + 1;
  std::vector<std::string_view> names(more.begin(), more.end());
  for (const Key& key : kTable) names.push_back(key.name);
  for (const std::string_view known : names) {
    int64_t distance = EditDistance(canonical, known);
    // "lr" or "checkpoint" should find learning_rate and checkpoint_every: a prefix or the initials
    // are near.
    if (canonical.size() >= 4 && known.substr(0, canonical.size()) == canonical) distance = 1;
    if (canonical == "lr" && known == "learning_rate") distance = 0;
    if (distance < best_distance) {
      best_distance = distance;
      best = known;
    }
  }
  return std::string(best);
}

std::string FlagOf(const Key& key) {
  std::string flag = Cat("--", key.name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

const char* ClassText(KeyClass key_class) {
  switch (key_class) {
    case KeyClass::kBits:
      return "bits";
    case KeyClass::kSchedule:
      return "schedule";
    case KeyClass::kFree:
      return "free";
  }
  return "";
}

}  // namespace holdfast
