// From what a user writes after --data to a list of files.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast {

// True for the names of token files.
bool IsBinName(const std::string& path);

// Expands globs and folders (recursively, hidden names left out, sorted by path bytes). A name that
// exists is taken as it is, even when it holds '*'. Text and .bin files together are refused. `key`
// names the configuration key in messages.
absl::StatusOr<std::vector<std::string>> ExpandDataPaths(const std::vector<std::string>& entries,
                                                         const std::string& key);

}  // namespace holdfast
