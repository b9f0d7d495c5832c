// Reading and writing safetensors files (safetensors_header.h has the format). Reading never maps
// the file: one that is cut short meanwhile gives an error, not a signal. Writing goes to a file
// beside the wanted one, which is renamed when all of it is durable: what was there before stays
// until then.
//
// Threads: an object belongs to one thread. Errors: kNotFound, kUnavailable (I/O, named),
// kInvalidArgument (no safetensors file, or one that is damaged), kResourceExhausted (disk full).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/models/safetensors_header.h"

namespace holdfast {

class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const SafetensorsHeader& header() const { return header_; }
  const FileTensor* Find(std::string_view name) const;
  // Elements first .. first + out.size() - 1 as fp32: F32 as it is, F16 and BF16 exactly, other
  // types are kInvalidArgument.
  [[nodiscard]] absl::Status ReadFloats(const FileTensor& tensor, int64_t first,
                                        std::span<float> out) const;
  // Of every byte of the file; 32 hexadecimal digits.
  absl::StatusOr<std::string> Digest() const;

 private:
  SafetensorsFile(std::string path, int fd, int64_t bytes)
      : path_(std::move(path)), fd_(fd), bytes_(bytes) {}
  absl::Status Read(int64_t at, void* out, int64_t bytes) const;

  const std::string path_;
  const int fd_;
  const int64_t bytes_;
  int64_t data_at_ = 0;
  SafetensorsHeader header_;
};

class SafetensorsWriter {
 public:
  // header: names, dtypes and shapes, in the order of the data; the rest is filled in.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path,
                                                                   SafetensorsHeader header);
  ~SafetensorsWriter();  // removes what was not committed
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Words of an F32 tensor, from element `first` on. Any order; each element once.
  [[nodiscard]] absl::Status Write(size_t tensor, int64_t first, std::span<const uint32_t> words);
  // Durable and visible under its name. kFailedPrecondition: elements are missing.
  [[nodiscard]] absl::Status Commit();

 private:
  SafetensorsWriter(std::string path, std::string temporary, int fd)
      : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}
  absl::Status WriteAt(int64_t at, const void* data, int64_t bytes) const;

  const std::string path_, temporary_;
  int fd_;
  SafetensorsHeader header_;
  int64_t data_at_ = 0, left_ = 0;  // bytes that are not written yet
};

}  // namespace holdfast
