// The config file. toml++ and its exceptions stay in this file.
#include <toml++/toml.h>

#include <charconv>
#include <sstream>

#include "absl/strings/str_split.h"
#include "runtime/base/status.h"
#include "runtime/config/keys.h"

namespace holdfast {
namespace {

constexpr std::string_view kModelTable = "model_keys";

// The source line, for messages: the reader sees the key and the value as he wrote them.
std::string LineText(std::string_view text, size_t line) {
  size_t number = 1;
  for (const absl::string_view part : absl::StrSplit(View(text), '\n')) {
    if (number++ == line) {
      std::string out(part.substr(0, 120));
      if (!out.empty() && out.back() == '\r') out.pop_back();
      return out;
    }
  }
  return "";
}

absl::Status At(std::string_view file_name, const toml::source_region& source,
                std::string_view what) {
  return absl::InvalidArgumentError(Cat(file_name, ":", source.begin.line, ": ", what));
}

// A scalar as the text that SetFromText reads; false for what is no scalar. TOML floats arrive as
// doubles: the shortest text that reads back the same.
bool ScalarText(const toml::node& node, std::string* text) {
  if (const auto* v = node.as_integer()) {
    *text = Cat(v->get());
  } else if (const auto* v = node.as_floating_point()) {
    char buffer[40];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, v->get());
    text->assign(buffer, end.ptr);
  } else if (const auto* v = node.as_boolean()) {
    *text = v->get() ? "true" : "false";
  } else if (const auto* v = node.as_string()) {
    *text = v->get();
  } else {
    return false;
  }
  return true;
}

// A text where a number is expected is a mistake that must be named, not guessed at ("1e-3" in
// quotes).
bool TypeFits(const Key& key, const toml::node& node) {
  switch (key.type) {
    case KeyType::kInteger:
      return node.is_integer() || node.is_floating_point();
    case KeyType::kNumber:
      return node.is_integer() || node.is_floating_point();
    case KeyType::kText:
      return node.is_string();
    case KeyType::kFlag:
      return node.is_boolean();
    case KeyType::kMilliseconds:
    case KeyType::kCheckpointEvery:
    case KeyType::kPart:
      return node.is_integer() || node.is_floating_point() || node.is_string();
    case KeyType::kList:
      return node.is_string();
  }
  return false;
}

std::string KindText(const toml::node& node) {
  std::ostringstream out;
  out << node.type();
  return out.str();
}

absl::Status SetFromNode(const Key& key, const toml::node& node, Config* config) {
  if (key.type == KeyType::kList && node.is_array()) {
    std::vector<std::string> values;
    for (const toml::node& element : *node.as_array()) {
      if (!element.is_string()) {
        return absl::InvalidArgumentError(
            Cat("an element of type ", KindText(element), "; expected ", Expectation(key)));
      }
      values.push_back(element.as_string()->get());
    }
    return SetList(key, std::move(values), config);
  }
  std::string text;
  if (!ScalarText(node, &text)) {
    return absl::InvalidArgumentError(
        Cat("a value of type ", KindText(node), "; expected ", Expectation(key)));
  }
  if (!TypeFits(key, node)) {
    return absl::InvalidArgumentError(
        Cat("'", text, "' is of type ", KindText(node), "; expected ", Expectation(key)));
  }
  return SetFromText(key, text, config);
}

// Every scalar of [model], for a user's model: keys are his business, but for `name`, which is the
// key `model`. config.toml writes the two apart (model = "..", [model_keys]), as a file may not
// hold a key and a table of one name.
absl::Status ReadModelTable(const toml::table& table, std::string_view file_name, Config* config) {
  for (const auto& [key, node] : table) {
    std::string text;
    if (key.str() == "name" && node.is_string()) {
      config->model = node.as_string()->get();
      continue;
    }
    if (!ScalarText(node, &text)) {
      return At(file_name, node.source(),
                Cat("model key '", key.str(), "': expected a number, a text, true or false"));
    }
    config->model_keys[std::string(key.str())] = text;
  }
  return absl::OkStatus();
}

}  // namespace

namespace {

absl::Status MergeTable(const toml::table& table, std::string_view file_name, Config* config) {
  std::map<const Key*, std::string> seen;  // micro_batches and micro-batches are one key
  for (const auto& [name, node] : table) {
    const std::string_view spelled = name.str();
    if (node.is_table() && (spelled == "model" || spelled == kModelTable)) {
      HF_RETURN_IF_ERROR(ReadModelTable(*node.as_table(), file_name, config));
      continue;
    }
    const Key* key = FindKey(spelled);
    if (key == nullptr) {
      const std::string near = NearestKey(spelled);
      return At(file_name, name.source(),
                Cat("unknown key '", spelled, "'",
                    near.empty() ? "" : Cat("; did you mean '", near, "'?"),
                    " (keys of your own model go into a [model] table)"));
    }
    if (const auto [it, fresh] = seen.emplace(key, std::string(spelled)); !fresh) {
      return At(file_name, name.source(),
                Cat("key '", spelled, "' is the same as '", it->second, "' above: keep one"));
    }
    const absl::Status status = SetFromNode(*key, node, config);
    if (!status.ok())
      return At(file_name, node.source(), Cat(spelled, ": ", StdView(status.message())));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MergeToml(std::string_view text, std::string_view file_name, Config* config) {
  try {
    return MergeTable(toml::parse(text, file_name), file_name, config);
  } catch (const toml::parse_error& error) {
    return At(file_name, error.source(),
              Cat(error.description(), ", in: ", LineText(text, error.source().begin.line)));
  }
}

absl::StatusOr<Config> ConfigFromToml(std::string_view text, std::string_view file_name) {
  Config config;
  HF_RETURN_IF_ERROR(MergeToml(text, file_name, &config));
  const absl::Status status = Validate(config);
  if (!status.ok()) return Annotate(status, file_name);
  return config;
}

}  // namespace holdfast
