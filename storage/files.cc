#include "storage/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "runtime/base/status.h"

namespace holdfast::storage {
namespace {

struct Fd {
  int fd;
  ~Fd() {
    if (fd >= 0) close(fd);
  }
};

std::string Parent(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status WriteFully(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "write", path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ErrnoStatus(int error, std::string_view what, const std::string& path) {
  const std::string text = Cat("cannot ", what, " ", path, ": ", strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(
          Cat(text, " (", FreeBytes(Parent(path)), " bytes free): free some disk space"));
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOTDIR:
    case EEXIST:
      return absl::FailedPreconditionError(text);
    case ENOENT:
      return absl::NotFoundError(text);
    default:
      return absl::UnavailableError(text);
  }
}

absl::Status MakeDirs(const std::string& path) {
  if (IsDir(path)) return absl::OkStatus();
  const std::string parent = Parent(path);
  if (parent != path) HF_RETURN_IF_ERROR(MakeDirs(parent));
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, "make directory", path);
  }
  if (!IsDir(path)) return ErrnoStatus(ENOTDIR, "make directory", path);
  return SyncDir(parent);
}

absl::Status SyncDir(const std::string& path) {
  const Fd dir{open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (dir.fd < 0) return ErrnoStatus(errno, "open", path);
  if (fsync(dir.fd) != 0) return ErrnoStatus(errno, "sync", path);
  return absl::OkStatus();
}

absl::Status WriteFileSynced(const std::string& path, std::string_view bytes) {
  const std::string temporary = path + ".new";
  {
    const Fd file{open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (file.fd < 0) return ErrnoStatus(errno, "create", temporary);
    HF_RETURN_IF_ERROR(WriteFully(file.fd, bytes, temporary));
    if (fsync(file.fd) != 0) return ErrnoStatus(errno, "sync", temporary);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) return ErrnoStatus(errno, "rename to", path);
  return SyncDir(Parent(path));
}

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t limit) {
  const Fd file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return ErrnoStatus(errno, "open", path);
  std::string bytes(limit + 1, '\0');
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t n = read(file.fd, bytes.data() + size, bytes.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "read", path);
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  if (size > limit) return absl::DataLossError(Cat(path, " is longer than ", limit, " bytes"));
  bytes.resize(size);
  return bytes;
}

absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(path.c_str()), closedir);
  if (dir == nullptr) return ErrnoStatus(errno, "list", path);
  std::vector<std::string> names;
  while (const dirent* entry = readdir(dir.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Exists(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0;
}

bool IsDir(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

uint64_t Inode(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

int64_t FreeBytes(const std::string& path) {
  struct statvfs info;
  if (statvfs(path.c_str(), &info) != 0) return -1;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

absl::Status RemoveAll(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? ErrnoStatus(error.value(), "remove", path) : absl::OkStatus();
}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<FileLock> FileLock::Take(const std::string& path) {
  FileLock lock;
  lock.fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock.fd_ < 0) return ErrnoStatus(errno, "open", path);
  if (flock(lock.fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, "lock", path);
    const auto text = ReadFile(path, 64);
    std::string holder = text.ok() ? *text : "";
    holder.erase(std::find(holder.begin(), holder.end(), '\n'), holder.end());
    return absl::FailedPreconditionError(
        Cat(path, " is locked by another process", holder.empty() ? "" : " (pid ", holder,
            holder.empty() ? "" : ")", ": end that process first, or use another directory"));
  }
  const std::string pid = Cat(getpid(), "\n");
  if (ftruncate(lock.fd_, 0) != 0 ||
      pwrite(lock.fd_, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    // The pid is for people only: on a full disk the lock holds without it.
    (void)ftruncate(lock.fd_, 0);
  }
  return lock;
}

}  // namespace holdfast::storage
