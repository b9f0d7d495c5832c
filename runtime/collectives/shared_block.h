// Memory of this process that members on the same host can read where it lies, and never write.
//
// It is an anonymous file (memfd_create): it has no name in any directory, lives exactly as long as
// descriptors and mappings of it, and so leaves nothing behind, whatever kills the process. It is
// sealed when it is made: its size is fixed (a reader never gets SIGBUS because the owner shrank
// it), and after the owner's own mapping no writable one can be made any more (F_SEAL_FUTURE_WRITE,
// Linux 5.1), not even by who holds the descriptor. So a process of an earlier generation that
// wakes up late can read stale bytes, but not change any.
//
// Threads: a SharedBlock belongs to one thread at a time. Sizes in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/collectives/socket.h"

namespace holdfast {

// A mapped range, unmapped on destruction.
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // Maps another process's block for reading. kInvalidArgument when the descriptor is none of
  // those that SharedBlock makes: no memory file, size not sealed, writable by others. A size other
  // than `expected_bytes` (if > 0) is refused too.
  static absl::StatusOr<Mapping> ForReading(int fd, int64_t expected_bytes);

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

class SharedBlock {
 public:
  SharedBlock() = default;
  // Zeroed memory, page-aligned. With `shareable` others can be let read it (fd() >= 0); where the
  // system does not have what that takes, and without `shareable`, it is plain memory of this
  // process: everything works, but is copied once more on its way. kResourceExhausted names the
  // size.
  static absl::StatusOr<SharedBlock> Create(int64_t bytes, bool shareable);

  std::byte* data() const { return mapping_.data(); }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(mapping_.data());
  }
  int fd() const { return fd_.get(); }  // -1: plain memory
  // The offset of [from, from + bytes) in this block, or -1 when it is not inside.
  int64_t OffsetOf(const std::byte* from, int64_t bytes) const;

 private:
  Fd fd_;
  Mapping mapping_;
  int64_t bytes_ = 0;
};

}  // namespace holdfast
