// Relations between keys, and the texts made of a whole Config.
#include "absl/strings/str_split.h"
#include "runtime/base/status.h"
#include "runtime/config/keys.h"

namespace holdfast {
namespace {

absl::Status Wrong(std::string_view text) { return absl::InvalidArgumentError(View(text)); }

absl::Status ValidateNames(const Config& c) {
  if (c.dir.empty()) return Wrong("--dir is empty: name a directory for the run");
  if (c.run.size() > 100) return Wrong("--run is longer than 100 characters");
  for (const char ch : c.run) {
    const bool plain = (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') ||
                       (ch >= '0' && ch <= '9') || ch == '-' || ch == '_' || ch == '.';
    if (!plain)
      return Wrong(
          Cat("--run '", c.run, "': only letters, digits, '-', '_' and '.' may stand in a name"));
  }
  if (c.model.empty())
    return Wrong("--model is empty: gpt, mlp, or a name that your trainer knows");
  const bool built_in = c.model == "gpt" || c.model == "mlp";
  if (c.model == "gpt" && c.data.empty()) {
    return Wrong(
        "--data is missing: a text file, a folder of text files, or uint16 .bin token files");
  }
  if (built_in && !c.model_keys.empty()) {
    return Wrong(Cat(
        "[model] has the key '", c.model_keys.begin()->first, "', but the built-in model ", c.model,
        " has no keys of its own: write its keys (layers, heads, ...) outside of the table"));
  }
  if (!c.redis_password_file.empty() && c.redis.empty()) {
    return Wrong(
        "--redis-password-file without --redis: the embedded Redis has a password of its own");
  }
  return absl::OkStatus();
}

absl::Status ValidateModel(const Config& c) {
  if (c.model == "gpt" && c.embed % c.heads != 0) {
    return Wrong(Cat("--embed ", c.embed, " is not a multiple of --heads ", c.heads,
                     ": every head gets embed / heads elements"));
  }
  if (c.fresh && c.accept_change)
    return Wrong("--fresh starts anew: there is no run whose change --accept-change could accept");
  if (c.min_learning_rate > c.learning_rate) {
    return Wrong(Cat("--min-learning-rate ", c.min_learning_rate, " is above --learning-rate ",
                     c.learning_rate));
  }
  // Samples of a step and tokens of a sequence are counted in int64 and in fixed-point sums: keep
  // the product sane.
  if (c.micro_batches * c.micro_batch_size > (int64_t{1} << 31)) {
    return Wrong(Cat("--micro-batches ", c.micro_batches, " x --micro-batch-size ",
                     c.micro_batch_size, " is above 2^31 samples in a step"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const Config& c) {
  HF_RETURN_IF_ERROR(ValidateNames(c));
  HF_RETURN_IF_ERROR(ValidateModel(c));
  if (c.min_workers > c.max_workers) {
    return Wrong(Cat("--min-workers ", c.min_workers, " is above --max-workers ", c.max_workers));
  }
  if (c.redis.empty() && c.workers != 0 && c.min_workers > c.workers) {
    return Wrong(
        Cat("--min-workers ", c.min_workers, " is above --workers ", c.workers,
            ", and without --redis no other machine can join: training would wait for ever"));
  }
  if (c.max_time_ms != 0 && c.max_time_ms < 1000) {
    return Wrong(
        Cat("--max-time ", c.max_time_ms, " ms is below a second: nothing could be trained"));
  }
  if (c.rendezvous_ms < 5 * c.detect_ms) {
    return Wrong(Cat("--rendezvous-ms ", c.rendezvous_ms, " is below five times --detect-ms ",
                     c.detect_ms, ": a generation could not form after a loss"));
  }
  if ((c.checkpoint_every_steps > 0) == (c.checkpoint_every_ms > 0)) {
    return Wrong("checkpoint_every is either a number of steps or a duration");
  }
  return absl::OkStatus();
}

std::string Config::ToToml() const {
  std::string text;
  for (const Key& key : Keys()) text += Cat(key.name, " = ", ValueText(key, *this), "\n");
  if (!model_keys.empty()) text += "\n[model_keys]\n";
  for (const auto& [key, value] : model_keys) text += Cat(Quoted(key), " = ", Quoted(value), "\n");
  return text;
}

namespace {
std::string ClassLines(const Config& config, KeyClass key_class) {
  static const Config defaults;
  std::string text;
  for (const Key& key : Keys()) {
    if (key.key_class != key_class) continue;
    const std::string value = ValueText(key, config);
    if (key.later && value == ValueText(key, defaults)) continue;
    text += Cat(key.name, " = ", value, "\n");
  }
  return text;
}
}  // namespace

std::string Config::BitsText() const {
  std::string text = ClassLines(*this, KeyClass::kBits);
  for (const auto& [key, value] : model_keys)
    text += Cat("model.", key, " = ", Quoted(value), "\n");
  return text;
}

std::string Config::ScheduleText() const { return ClassLines(*this, KeyClass::kSchedule); }

}  // namespace holdfast
