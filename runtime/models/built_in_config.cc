#include "runtime/models/built_in_config.h"

#include <toml++/toml.h>

#include <algorithm>

#include "runtime/base/status.h"

namespace holdfast {
namespace {

// Both spellings of a key are known: micro_batches and micro-batches.
toml::node_view<const toml::node> Find(const toml::table& table, std::string key) {
  if (!table.contains(key)) std::replace(key.begin(), key.end(), '_', '-');
  return table[key];
}

absl::Status ReadInteger(const toml::table& table, const std::string& key, int64_t low,
                         int64_t high, int64_t* out) {
  const auto node = Find(table, key);
  if (!node) return absl::OkStatus();
  const auto* integer = node.as_integer();
  if (integer == nullptr) {
    return absl::InvalidArgumentError(Cat("config key ", key, ": an integer is expected"));
  }
  if (integer->get() < low || integer->get() > high) {
    return absl::InvalidArgumentError(
        Cat("config key ", key, " = ", integer->get(), ": must be between ", low, " and ", high));
  }
  *out = integer->get();
  return absl::OkStatus();
}

absl::Status ReadNames(const toml::table& table, const std::string& key,
                       std::vector<std::string>* out) {
  const auto node = Find(table, key);
  if (!node) return absl::OkStatus();
  if (const auto* one = node.as_string()) {
    if (!one->get().empty()) out->push_back(one->get());
    return absl::OkStatus();
  }
  const toml::array* array = node.as_array();
  if (array == nullptr) {
    return absl::InvalidArgumentError(
        Cat("config key ", key, ": a list of file names is expected"));
  }
  for (const toml::node& item : *array) {
    const auto* name = item.as_string();
    if (name == nullptr) {
      return absl::InvalidArgumentError(Cat("config key ", key, ": its items must be strings"));
    }
    out->push_back(name->get());
  }
  return absl::OkStatus();
}

absl::Status ReadText(const toml::table& table, const std::string& key, std::string* out) {
  const auto node = Find(table, key);
  if (!node) return absl::OkStatus();
  const auto* text = node.as_string();
  if (text == nullptr)
    return absl::InvalidArgumentError(Cat("config key ", key, ": a string is expected"));
  *out = text->get();
  return absl::OkStatus();
}

// A seed above 2^63-1 does not fit a TOML integer: then it stands as a string of digits.
absl::Status ReadSeed(const toml::table& table, uint64_t* out) {
  const auto node = Find(table, "seed");
  if (!node) return absl::OkStatus();
  if (const auto* integer = node.as_integer()) {
    *out = static_cast<uint64_t>(integer->get());
    return absl::OkStatus();
  }
  const auto* text = node.as_string();
  if (text == nullptr || !absl::SimpleAtoi(View(text->get()), out)) {
    return absl::InvalidArgumentError("config key seed: an integer is expected");
  }
  return absl::OkStatus();
}

absl::Status ReadFraction(const toml::table& table, const std::string& key, double* out) {
  const auto node = Find(table, key);
  if (!node) return absl::OkStatus();
  const auto value = node.value<double>();
  if (!value) return absl::InvalidArgumentError(Cat("config key ", key, ": a number is expected"));
  if (!(*value >= 0 && *value < 1)) {
    return absl::InvalidArgumentError(
        Cat("config key ", key, " = ", *value, ": must be at least 0 and below 1"));
  }
  *out = *value;
  return absl::OkStatus();
}

// A number of tokens may stand as an integer or as a text.
absl::Status ReadPart(const toml::table& table, const std::string& key, std::string* out) {
  const auto node = Find(table, key);
  if (node && node.is_integer()) {
    *out = Cat(node.as_integer()->get());
    return absl::OkStatus();
  }
  return ReadText(table, key, out);
}

absl::StatusOr<BuiltInConfig> FromTable(const toml::table& table) {
  BuiltInConfig config;
  HF_RETURN_IF_ERROR(ReadText(table, "model", &config.model));
  HF_RETURN_IF_ERROR(ReadText(table, "precision", &config.precision));
  HF_RETURN_IF_ERROR(ReadNames(table, "data", &config.data));
  HF_RETURN_IF_ERROR(ReadNames(table, "eval_data", &config.eval_data));
  HF_RETURN_IF_ERROR(ReadPart(table, "limit_data", &config.limit_data));
  struct Integer {
    const char* key;
    int64_t low, high;
    int64_t* out;
  };
  const Integer integers[] = {
      {"layers", 1, 1024, &config.layers},
      {"heads", 1, 1024, &config.heads},
      {"embed", 1, 65536, &config.embed},
      {"context", 1, 1 << 20, &config.context},
      {"vocab_size", 0, 1 << 24, &config.vocab_size},
      {"micro_batches", 1, 4096, &config.micro_batches},
      {"micro_batch_size", 1, 1 << 20, &config.micro_batch_size},
      {"eval_batches", 0, int64_t{1} << 40, &config.eval_batches},
  };
  for (const Integer& i : integers) {
    HF_RETURN_IF_ERROR(ReadInteger(table, i.key, i.low, i.high, i.out));
  }
  HF_RETURN_IF_ERROR(ReadSeed(table, &config.seed));
  HF_RETURN_IF_ERROR(ReadFraction(table, "dropout", &config.dropout));
  return config;
}

}  // namespace

absl::StatusOr<BuiltInConfig> ParseBuiltInConfig(std::string_view toml) {
  try {
    return FromTable(toml::parse(toml));
  } catch (const toml::parse_error& error) {
    return absl::InvalidArgumentError(
        Cat("config, line ", error.source().begin.line, ": ", error.description()));
  }
}

}  // namespace holdfast
