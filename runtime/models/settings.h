// What a factory of one's own trainer reads from the configuration: the keys of `holdfast run
// --help` by their name ("micro_batch_size"), and the keys of one's own, from the [model] table of
// the config file or from --set, as "model.NAME". A plain value: any thread may read it.
//
//   HF_ASSIGN_OR_RETURN(const Settings settings, Settings::Parse(toml));
//   HF_RETURN_IF_ERROR(settings.CheckOwnKeys({"window"}));
//   HF_ASSIGN_OR_RETURN(const int64_t window, settings.Integer("model.window", 1, 64, 8));
//
// Errors: kInvalidArgument, naming key, value and what would be right.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast {

class Settings {
 public:
  static absl::StatusOr<Settings> Parse(std::string_view toml);

  // Without a fallback the key must be there. Bounds are inclusive.
  absl::StatusOr<int64_t> Integer(std::string_view key, int64_t low, int64_t high,
                                  std::optional<int64_t> fallback = std::nullopt) const;
  absl::StatusOr<double> Number(std::string_view key, double low, double high,
                                std::optional<double> fallback = std::nullopt) const;
  absl::StatusOr<std::string> Text(std::string_view key,
                                   std::optional<std::string> fallback = std::nullopt) const;
  // Of a key that may hold several values (data, eval_data); empty when it is not set.
  std::vector<std::string> List(std::string_view key) const;
  // A key of one's own that is not in the list is an error: a misspelt one would change nothing,
  // silently.
  [[nodiscard]] absl::Status CheckOwnKeys(std::initializer_list<std::string_view> known) const;

 private:
  absl::StatusOr<std::optional<std::string>> One(std::string_view key, bool must) const;
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
};

}  // namespace holdfast
