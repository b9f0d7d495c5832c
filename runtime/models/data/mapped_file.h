// A file mapped read-only into memory. Immutable after Open, so any thread may read it. The file
// must not shrink while it is mapped: reading a page that is gone ends the process (SIGBUS), as
// with every program that maps its input.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace holdfast {

class MappedFile {
 public:
  // kNotFound, kFailedPrecondition (no permission, not a regular file) or kUnavailable (I/O); an
  // empty file is mapped as an empty view.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }
  // Identity of the file, to notice one that was given twice under two names.
  uint64_t device() const { return device_; }
  uint64_t inode() const { return inode_; }

 private:
  MappedFile() = default;

  std::string path_;
  void* data_ = nullptr;
  size_t size_ = 0;
  uint64_t device_ = 0, inode_ = 0;
};

}  // namespace holdfast
