// Small file-system helpers of the store. Errors name the path: kResourceExhausted (disk or quota
// full, with the bytes free), kFailedPrecondition (no permission, read-only, not a directory),
// kNotFound, else kUnavailable. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::storage {

// The status of errno value `error` met while doing `what` to `path`.
absl::Status ErrnoStatus(int error, std::string_view what, const std::string& path);
// Makes `path` and its missing parents, mode 0755, and syncs the parents that got a new entry.
[[nodiscard]] absl::Status MakeDirs(const std::string& path);
[[nodiscard]] absl::Status SyncDir(const std::string& path);
// Replaces `path` as a whole: temporary file, fsync, rename, fsync of the directory.
[[nodiscard]] absl::Status WriteFileSynced(const std::string& path, std::string_view bytes);
// At most `limit` bytes; more is an error.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t limit);
// Names without "." and "..", sorted.
absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path);
bool Exists(const std::string& path);
bool IsDir(const std::string& path);
// 0 when there is no such file.
uint64_t Inode(const std::string& path);
// Bytes that an ordinary user may still write there; -1 when it cannot be asked.
int64_t FreeBytes(const std::string& path);
// Removes a file or a directory with all in it. Missing is no error.
[[nodiscard]] absl::Status RemoveAll(const std::string& path);

// An exclusive lock on a file that holds the owner's pid. Freed when destroyed or when the process
// ends.
class FileLock {
 public:
  FileLock() = default;
  FileLock(FileLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();
  // kFailedPrecondition names the path and the pid that holds it.
  static absl::StatusOr<FileLock> Take(const std::string& path);

 private:
  int fd_ = -1;
};

}  // namespace holdfast::storage
