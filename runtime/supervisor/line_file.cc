#include "runtime/supervisor/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "runtime/base/status.h"

namespace holdfast {
namespace {

absl::Status FileError(std::string_view what, const std::string& path) {
  const int error = errno;
  const std::string text = Cat(what, " ", path, ": ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// Where the last whole line ends.
int64_t WholeLinesEnd(int fd, int64_t size) {
  char buffer[4096];
  int64_t end = size;
  while (end > 0) {
    const int64_t from =
        end > static_cast<int64_t>(sizeof buffer) ? end - static_cast<int64_t>(sizeof buffer) : 0;
    const ssize_t n = pread(fd, buffer, static_cast<size_t>(end - from), from);
    if (n <= 0) return 0;
    for (ssize_t i = n; i > 0; --i) {
      if (buffer[i - 1] == '\n') return from + i;
    }
    end = from;
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LineFile>> LineFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return FileError("cannot open", path);
  struct stat info;
  if (fstat(fd, &info) != 0) {
    close(fd);
    return FileError("cannot read", path);
  }
  const int64_t whole = WholeLinesEnd(fd, info.st_size);
  if (whole != info.st_size && ftruncate(fd, whole) != 0) {
    close(fd);
    return FileError("cannot cut the torn last line of", path);
  }
  return std::unique_ptr<LineFile>(new LineFile(fd, whole, info.st_size - whole));
}

LineFile::~LineFile() { close(fd_); }

bool LineFile::Append(std::string_view line) {
  const std::string bytes = Cat(line, "\n");
  if (lseek(fd_, size_, SEEK_SET) == size_ && WriteAll(fd_, bytes)) {
    size_ += static_cast<int64_t>(bytes.size());
    return true;
  }
  (void)!ftruncate(fd_, size_);
  ++lost_;
  return false;
}

void ForEachLine(const std::string& path, const std::function<void(std::string_view)>& take) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  while (std::getline(file, line) && !file.eof() && line.size() <= (1 << 20)) take(line);
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t limit) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError("cannot open", path);
  std::string content;
  char buffer[16'384];
  ssize_t n;
  while ((n = read(fd, buffer, sizeof buffer)) > 0 &&
         static_cast<int64_t>(content.size()) <= limit) {
    content.append(buffer, static_cast<size_t>(n));
  }
  const absl::Status status = n < 0 ? FileError("cannot read", path) : absl::OkStatus();
  close(fd);
  if (!status.ok()) return status;
  if (static_cast<int64_t>(content.size()) > limit) {
    return absl::ResourceExhaustedError(Cat(path, " is larger than ", limit, " bytes"));
  }
  return content;
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view content, int mode) {
  const std::string temporary = Cat(path, ".new");
  (void)unlink(temporary.c_str());  // a leftover may have another mode
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return FileError("cannot write", temporary);
  if (!WriteAll(fd, content) || fsync(fd) != 0) {
    const absl::Status status = FileError("cannot write", temporary);
    close(fd);
    (void)unlink(temporary.c_str());
    return status;
  }
  close(fd);
  if (rename(temporary.c_str(), path.c_str()) != 0) return FileError("cannot replace", path);
  return absl::OkStatus();
}

}  // namespace holdfast
