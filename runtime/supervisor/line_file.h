// A file of lines that is only appended to (events.jsonl, steps.jsonl). Opening cuts a torn last
// line, as a killed writer leaves it. A full disk loses lines, counted, and never a part of one;
// the run goes on. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace holdfast {

class LineFile {
 public:
  static absl::StatusOr<std::unique_ptr<LineFile>> Open(const std::string& path);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // `line` without its newline. False when it was lost.
  bool Append(std::string_view line);
  int64_t lost() const { return lost_; }
  int64_t cut_bytes() const { return cut_bytes_; }  // of a torn line, at opening

 private:
  LineFile(int fd, int64_t size, int64_t cut) : fd_(fd), size_(size), cut_bytes_(cut) {}
  int fd_;
  int64_t size_;
  int64_t cut_bytes_;
  int64_t lost_ = 0;
};

// Calls `take` with every whole line of a file; nothing when there is no such file. Lines above 1
// MiB end the reading.
void ForEachLine(const std::string& path, const std::function<void(std::string_view)>& take);

// The whole file; kNotFound, or kUnavailable with the reason. At most `limit` bytes, else
// kResourceExhausted.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t limit = 16 << 20);
// Written beside, synced and renamed over: readers see the old or the new content, never a part.
[[nodiscard]] absl::Status WriteFileAtomically(const std::string& path, std::string_view content,
                                               int mode = 0644);

}  // namespace holdfast
