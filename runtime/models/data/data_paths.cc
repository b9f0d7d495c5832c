#include "runtime/models/data/data_paths.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "runtime/base/status.h"

namespace holdfast {
namespace {

namespace fs = std::filesystem;

bool Hidden(const fs::path& path) {
  const std::string name = path.filename().string();
  return !name.empty() && name[0] == '.';
}

absl::Status ExpandFolder(const std::string& folder, const std::string& key,
                          std::vector<std::string>* files) {
  std::error_code error;
  std::vector<std::string> found;
  fs::recursive_directory_iterator it(folder, error), end;
  for (; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (Hidden(it->path())) {
      if (it->is_directory(ignored)) it.disable_recursion_pending();
      continue;
    }
    if (it->is_regular_file(ignored)) found.push_back(it->path().string());
  }
  if (error) {
    return absl::FailedPreconditionError(
        Cat(key, ": cannot read the folder ", folder, ": ", error.message()));
  }
  for (const std::string& path : found) {
    if (!IsBinName(path)) continue;
    return absl::InvalidArgumentError(
        Cat(key, ": the folder ", folder, " holds token files (", path,
            "); a folder is read as text. Give token files by a glob, for example '", folder,
            "/*.bin'"));
  }
  // An empty file in a folder is no sample and no fault; a folder of nothing else is.
  std::erase_if(found, [](const std::string& path) {
    std::error_code ignored;
    return fs::file_size(path, ignored) == 0;
  });
  if (found.empty()) {
    return absl::InvalidArgumentError(
        Cat(key, ": the folder ", folder, " holds no text files that are not empty or hidden"));
  }
  std::sort(found.begin(), found.end());
  files->insert(files->end(), found.begin(), found.end());
  return absl::OkStatus();
}

absl::Status ExpandPath(const std::string& path, const std::string& key,
                        std::vector<std::string>* files) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return ExpandFolder(path, key, files);
  files->push_back(path);
  return absl::OkStatus();
}

absl::Status ExpandGlob(const std::string& pattern, const std::string& key,
                        std::vector<std::string>* files) {
  glob_t matches{};
  const int rc = glob(pattern.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &matches);
  std::vector<std::string> found;
  for (size_t i = 0; rc == 0 && i < matches.gl_pathc; ++i) found.emplace_back(matches.gl_pathv[i]);
  globfree(&matches);
  if (rc == GLOB_NOMATCH) {
    return absl::NotFoundError(Cat(key, ": no file matches '", pattern, "'"));
  }
  if (rc != 0) {
    return absl::FailedPreconditionError(
        Cat(key, ": cannot list '", pattern, "' (a folder in it cannot be read)"));
  }
  std::sort(found.begin(), found.end());  // by bytes: glob's own order depends on the locale
  for (const std::string& path : found) HF_RETURN_IF_ERROR(ExpandPath(path, key, files));
  return absl::OkStatus();
}

}  // namespace

bool IsBinName(const std::string& path) { return path.ends_with(".bin"); }

absl::StatusOr<std::vector<std::string>> ExpandDataPaths(const std::vector<std::string>& entries,
                                                         const std::string& key) {
  if (entries.empty()) {
    return absl::InvalidArgumentError(
        Cat("no ", key, " given: name a text file, a folder of text files, or .bin token files"));
  }
  std::vector<std::string> files;
  for (const std::string& entry : entries) {
    if (entry.empty()) return absl::InvalidArgumentError(Cat(key, ": an empty file name"));
    std::error_code ignored;
    const bool exists = fs::exists(entry, ignored);
    if (!exists && entry.find_first_of("*?[") != std::string::npos) {
      HF_RETURN_IF_ERROR(ExpandGlob(entry, key, &files));
    } else {
      HF_RETURN_IF_ERROR(ExpandPath(entry, key, &files));
    }
  }
  for (const std::string& path : files) {
    if (IsBinName(path) == IsBinName(files[0])) continue;
    return absl::InvalidArgumentError(
        Cat(key, ": text and .bin token files cannot be mixed (", files[0], " and ", path, ")"));
  }
  return files;
}

}  // namespace holdfast
