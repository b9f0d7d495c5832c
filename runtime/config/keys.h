// The table of configuration keys: the one place that knows a key's name, field, type, class,
// bounds and help. Flags, the config file, config.toml, --help and the README's table all come from
// it. Pure and immutable: any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "runtime/config/config.h"

namespace holdfast {

// What a change of the key does to an existing run (see config.h).
enum class KeyClass : uint8_t { kBits, kSchedule, kFree };

// How the text of a value is read. kMilliseconds: an integer, or "500ms", "10s", "30m", "2h".
// kCheckpointEvery: an integer (steps) or a duration. kPart: a number of tokens, or "1%".
enum class KeyType : uint8_t {
  kInteger,
  kNumber,
  kText,
  kList,
  kFlag,
  kMilliseconds,
  kCheckpointEvery,
  kPart
};

using KeyField = std::variant<std::monostate, int Config::*, int64_t Config::*, uint64_t Config::*,
                              double Config::*, bool Config::*, std::string Config::*,
                              std::vector<std::string> Config::*>;

struct Key {
  std::string_view name;  // as in the file: micro_batches; the flag is --micro-batches
  KeyField field;
  KeyType type = KeyType::kInteger;
  KeyClass key_class = KeyClass::kFree;
  std::string_view group;    // heading in --help
  double min = 0, max = 0;   // inclusive; of kInteger, kNumber and kMilliseconds
  std::string_view choices;  // of kText: "exact|fast"; "" = any text
  std::string_view help;
  bool later = false;  // see Config::BitsText
};

// In the order of --help and of config.toml.
std::span<const Key> Keys();
// Accepts micro_batches and micro-batches; null when unknown.
const Key* FindKey(std::string_view name);
// The known name nearest to `name` by edit distance ("" when none is near).
// `more`: further names that count, spelled as keys.
std::string NearestKey(std::string_view name, std::span<const std::string_view> more = {});
// "--micro-batches"
std::string FlagOf(const Key& key);
const char* ClassText(KeyClass key_class);

// Reads `text` as a value of `key`, independent of the locale. Errors say the value and what was
// expected, not where.
[[nodiscard]] absl::Status SetFromText(const Key& key, std::string_view text, Config* config);
[[nodiscard]] absl::Status SetList(const Key& key, std::vector<std::string> values, Config* config);
// The value as TOML ("0.001", "\"gpt\"", "[\"a\", \"b\"]"): reading it back gives the same value,
// bit for bit.
std::string ValueText(const Key& key, const Config& config);
// "an integer from 1 to 4096", for messages and help.
std::string Expectation(const Key& key);

// Sets in *config what the TOML text names, over what it holds; does not call Validate. Errors name
// file and line.
[[nodiscard]] absl::Status MergeToml(std::string_view text, std::string_view file_name,
                                     Config* config);

// A TOML basic string with its quotes.
std::string Quoted(std::string_view text);

}  // namespace holdfast
