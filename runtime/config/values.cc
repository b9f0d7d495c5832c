// Reading and writing the values of keys. Nothing here depends on the locale: absl::SimpleAtod and
// charconv are used.
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/status.h"
#include "runtime/config/keys.h"

namespace holdfast {
namespace {

// The shortest text that reads back as the same double, and looks like a TOML float or integer.
std::string NumberText(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string text(buffer, end.ptr);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string BoundText(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return Cat(static_cast<int64_t>(value));
  return NumberText(value);
}

absl::Status Expected(const Key& key, std::string_view text) {
  return absl::InvalidArgumentError(Cat("'", text, "' is not ", Expectation(key)));
}

// A decimal integer, or a number in scientific notation that is one (1e3). No octal, hex, or inner
// blanks.
bool ParseInteger(std::string_view text, int64_t* value) {
  if (absl::SimpleAtoi(View(text), value)) return true;
  if (text.find_first_of("eE.") == std::string_view::npos) return false;
  double number;
  if (!absl::SimpleAtod(View(text), &number) || !std::isfinite(number)) return false;
  if (number != std::floor(number) || std::abs(number) > 9e15) return false;
  *value = static_cast<int64_t>(number);
  return true;
}

// "500ms", "10s", "30m", "2h", a blank before the unit allowed; the result in milliseconds.
bool ParseDuration(std::string_view text, int64_t* ms) {
  const size_t unit_at = text.find_first_not_of("0123456789.");
  if (unit_at == 0 || unit_at == std::string_view::npos) return false;
  double number;
  if (!absl::SimpleAtod(View(text.substr(0, unit_at)), &number)) return false;
  std::string_view unit = text.substr(unit_at);
  if (unit.front() == ' ') unit.remove_prefix(1);
  double factor = 0;
  if (unit == "ms") factor = 1;
  if (unit == "s") factor = 1000;
  if (unit == "m" || unit == "min") factor = 60'000;
  if (unit == "h") factor = 3'600'000;
  const double total = number * factor;
  if (factor == 0 || total > 9e15 || total != std::floor(total)) return false;
  *ms = static_cast<int64_t>(total);
  return true;
}

absl::Status SetInteger(const Key& key, std::string_view text, int64_t value, Config* config) {
  if (static_cast<double>(value) < key.min || static_cast<double>(value) > key.max) {
    return Expected(key, text);
  }
  if (const auto* f = std::get_if<int Config::*>(&key.field))
    config->** f = static_cast<int>(value);
  if (const auto* f = std::get_if<int64_t Config::*>(&key.field)) config->** f = value;
  if (const auto* f = std::get_if<uint64_t Config::*>(&key.field)) {
    config->** f = static_cast<uint64_t>(value);
  }
  return absl::OkStatus();
}

absl::Status SetCheckpointEvery(const Key& key, std::string_view text, Config* config) {
  int64_t value;
  if (ParseInteger(text, &value) && value >= 1 && value <= 1'000'000'000'000) {
    config->checkpoint_every_steps = value;
    config->checkpoint_every_ms = 0;
    return absl::OkStatus();
  }
  if (ParseDuration(text, &value) && value >= 100) {
    config->checkpoint_every_steps = 0;
    config->checkpoint_every_ms = value;
    return absl::OkStatus();
  }
  return Expected(key, text);
}

// "200000", "0.5%": in one spelling, so that equal parts are equal texts. All of it is "".
bool ParsePart(std::string_view text, std::string* canonical) {
  int64_t tokens;
  if (text.empty() || text == "0") {
    canonical->clear();
    return true;
  }
  if (text.back() != '%') {
    if (!ParseInteger(text, &tokens) || tokens < 1) return false;
    *canonical = Cat(tokens);
    return true;
  }
  double percent;
  const std::string_view number = text.substr(0, text.size() - 1);
  if (number.find_first_not_of("0123456789.eE-+") != std::string_view::npos ||
      !absl::SimpleAtod(View(number), &percent) || !(percent > 0 && percent <= 100)) {
    return false;
  }
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, percent);
  *canonical = percent == 100 ? "" : std::string(buffer, end.ptr) + "%";
  return true;
}

std::string DurationText(int64_t ms) {
  if (ms != 0 && ms % 3'600'000 == 0) return Cat(ms / 3'600'000, "h");
  if (ms != 0 && ms % 60'000 == 0) return Cat(ms / 60'000, "m");
  if (ms % 1000 == 0) return Cat(ms / 1000, "s");
  return Cat(ms, "ms");
}

bool IsOneOf(std::string_view text, std::string_view choices) {
  for (const absl::string_view choice : absl::StrSplit(View(choices), '|')) {
    if (StdView(choice) == text) return true;
  }
  return false;
}

}  // namespace

absl::Status SetFromText(const Key& key, std::string_view text, Config* config) {
  int64_t integer;
  double number;
  switch (key.type) {
    case KeyType::kInteger:
      if (!ParseInteger(text, &integer)) return Expected(key, text);
      return SetInteger(key, text, integer, config);
    case KeyType::kMilliseconds:
      if (!ParseInteger(text, &integer) && !ParseDuration(text, &integer))
        return Expected(key, text);
      return SetInteger(key, text, integer, config);
    case KeyType::kNumber:
      // SimpleAtod also takes "inf", "nan" and hexadecimal: the first two fail the range, the last
      // is refused here.
      if (text.find_first_of("xX") != std::string_view::npos ||
          !absl::SimpleAtod(View(text), &number)) {
        return Expected(key, text);
      }
      if (!(number >= key.min && number <= key.max)) return Expected(key, text);
      config->*std::get<double Config::*>(key.field) = number;
      return absl::OkStatus();
    case KeyType::kText:
      if (!key.choices.empty() && !IsOneOf(text, key.choices)) return Expected(key, text);
      for (const char c : text) {
        if (static_cast<unsigned char>(c) < 0x20)
          return Expected(key, "(text with control characters)");
      }
      config->*std::get<std::string Config::*>(key.field) = std::string(text);
      return absl::OkStatus();
    case KeyType::kList:
      return SetList(key, {std::string(text)}, config);
    case KeyType::kFlag:
      if (text != "true" && text != "false") return Expected(key, text);
      config->*std::get<bool Config::*>(key.field) = text == "true";
      return absl::OkStatus();
    case KeyType::kCheckpointEvery:
      return SetCheckpointEvery(key, text, config);
    case KeyType::kPart:
      if (!ParsePart(text, &(config->*std::get<std::string Config::*>(key.field))))
        return Expected(key, text);
      return absl::OkStatus();
  }
  return absl::InternalError("key without a type");
}

absl::Status SetList(const Key& key, std::vector<std::string> values, Config* config) {
  for (const std::string& value : values) {
    if (value.empty()) return Expected(key, value);
  }
  config->*std::get<std::vector<std::string> Config::*>(key.field) = std::move(values);
  return absl::OkStatus();
}

std::string ValueText(const Key& key, const Config& config) {
  switch (key.type) {
    case KeyType::kInteger:
      if (const auto* f = std::get_if<int Config::*>(&key.field)) return Cat(config.**f);
      if (const auto* f = std::get_if<uint64_t Config::*>(&key.field)) return Cat(config.**f);
      return Cat(config.*std::get<int64_t Config::*>(key.field));
    case KeyType::kMilliseconds:
      return Cat(config.*std::get<int64_t Config::*>(key.field));
    case KeyType::kNumber:
      return NumberText(config.*std::get<double Config::*>(key.field));
    case KeyType::kText:
    case KeyType::kPart:
      return Quoted(config.*std::get<std::string Config::*>(key.field));
    case KeyType::kFlag:
      return config.*std::get<bool Config::*>(key.field) ? "true" : "false";
    case KeyType::kCheckpointEvery:
      if (config.checkpoint_every_steps > 0) return Cat(config.checkpoint_every_steps);
      return Quoted(DurationText(config.checkpoint_every_ms));
    case KeyType::kList: {
      const auto& values = config.*std::get<std::vector<std::string> Config::*>(key.field);
      std::string text = "[";
      for (const std::string& value : values) {
        if (text.size() > 1) text += ", ";
        text += Quoted(value);
      }
      return text + "]";
    }
  }
  return "";
}

std::string Expectation(const Key& key) {
  switch (key.type) {
    case KeyType::kInteger:
      return Cat("an integer from ", BoundText(key.min), " to ", BoundText(key.max));
    case KeyType::kMilliseconds:
      return Cat("a time from ", BoundText(key.min), " to ", BoundText(key.max),
                 " ms (an integer, or \"500ms\", \"10s\", \"30m\")");
    case KeyType::kNumber:
      return Cat("a finite number from ", BoundText(key.min), " to ", BoundText(key.max));
    case KeyType::kText: {
      if (key.choices.empty()) return "text";
      return Cat("one of ", absl::StrJoin(absl::StrSplit(View(key.choices), '|'), ", "));
    }
    case KeyType::kList:
      return "a text or a list of texts, none of them empty";
    case KeyType::kFlag:
      return "true or false";
    case KeyType::kPart:
      return "a number of tokens from 1, or a share above 0% and up to 100% (\"1%\")";
    case KeyType::kCheckpointEvery:
      return "a number of steps from 1 to 1000000000000 or a duration of at least 100ms (\"30m\", "
             "\"10s\")";
  }
  return "";
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace holdfast
