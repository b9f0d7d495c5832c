#include "runtime/models/settings.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "runtime/base/status.h"

namespace holdfast {
namespace {

constexpr std::string_view kOwn = "model.";

absl::Status Wrong(std::string_view key, std::string_view text) {
  return absl::InvalidArgumentError(Cat("config key ", key, ": ", text));
}

std::string HowToSet(std::string_view key) {
  if (!key.starts_with(kOwn)) return "it is missing";
  const std::string_view name = key.substr(kOwn.size());
  return Cat("it is missing: give --set ", name, "=VALUE, or write ", name,
             " = VALUE into the [model] table of the config file");
}

template <typename Node>
bool TextOf(const Node& node, std::string* text) {
  if (const auto* v = node.as_string()) {
    *text = v->get();
  } else if (const auto* v = node.as_integer()) {
    *text = Cat(v->get());
  } else if (const auto* v = node.as_boolean()) {
    *text = v->get() ? "true" : "false";
  } else if (const auto* v = node.as_floating_point()) {
    char digits[40];
    const auto end = std::to_chars(digits, digits + sizeof digits, v->get());
    text->assign(digits, end.ptr);
  } else {
    return false;
  }
  return true;
}

std::string Canonical(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

void Add(const std::string& name, const toml::node& node,
         std::map<std::string, std::vector<std::string>, std::less<>>* values) {
  std::string text;
  std::vector<std::string>& to = (*values)[name];
  if (TextOf(node, &text)) {
    to.push_back(text);
  } else if (const toml::array* array = node.as_array()) {
    for (const toml::node& item : *array) {
      if (TextOf(item, &text)) to.push_back(text);
    }
  }
}

template <typename T>
bool ReadNumber(const std::string& text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

absl::StatusOr<Settings> Settings::Parse(std::string_view toml) try {
  Settings settings;
  for (const auto& [key, node] : toml::parse(toml)) {
    const std::string name = Canonical(key.str());
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      Add(name, node, &settings.values_);
    } else if (name == "model" || name == "model_keys") {
      for (const auto& [own, value] : *table) {
        Add(Cat(kOwn, Canonical(own.str())), value, &settings.values_);
      }
    }
  }
  return settings;
} catch (const toml::parse_error& error) {
  return absl::InvalidArgumentError(
      Cat("config, line ", error.source().begin.line, ": ", error.description()));
}

absl::StatusOr<std::optional<std::string>> Settings::One(std::string_view key, bool must) const {
  const auto at = values_.find(key);
  if (at == values_.end() || at->second.empty()) {
    if (must) return Wrong(key, HowToSet(key));
    return std::optional<std::string>();
  }
  if (at->second.size() != 1) return Wrong(key, "one value is expected, not a list");
  return std::optional<std::string>(at->second.front());
}

absl::StatusOr<int64_t> Settings::Integer(std::string_view key, int64_t low, int64_t high,
                                          std::optional<int64_t> fallback) const {
  HF_ASSIGN_OR_RETURN(const auto text, One(key, !fallback));
  if (!text) return *fallback;
  int64_t value = 0;
  if (!ReadNumber(*text, &value) || value < low || value > high) {
    return Wrong(key, Cat("'", *text, "' is not an integer from ", low, " to ", high));
  }
  return value;
}

absl::StatusOr<double> Settings::Number(std::string_view key, double low, double high,
                                        std::optional<double> fallback) const {
  HF_ASSIGN_OR_RETURN(const auto text, One(key, !fallback));
  if (!text) return *fallback;
  double value = 0;
  if (!ReadNumber(*text, &value) || !(value >= low && value <= high)) {
    return Wrong(key, Cat("'", *text, "' is not a number from ", low, " to ", high));
  }
  return value;
}

absl::StatusOr<std::string> Settings::Text(std::string_view key,
                                           std::optional<std::string> fallback) const {
  HF_ASSIGN_OR_RETURN(auto text, One(key, !fallback));
  return text ? *std::move(text) : *std::move(fallback);
}

std::vector<std::string> Settings::List(std::string_view key) const {
  const auto at = values_.find(key);
  return at == values_.end() ? std::vector<std::string>() : at->second;
}

absl::Status Settings::CheckOwnKeys(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, values] : values_) {
    if (!std::string_view(key).starts_with(kOwn)) continue;
    const std::string_view name = std::string_view(key).substr(kOwn.size());
    if (name == "name" || std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string all;
    for (const std::string_view k : known) all += Cat(all.empty() ? "" : ", ", k);
    return Wrong(key, Cat("this model has no such key; it has: ", all.empty() ? "none" : all));
  }
  return absl::OkStatus();
}

}  // namespace holdfast
