#include "runtime/collectives/shared_block.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/status.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // <linux/fcntl.h>, Linux 5.1
#endif

namespace holdfast {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

int64_t PageUp(int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  return std::max<int64_t>(1, (bytes + page - 1) / page) * page;
}

absl::Status NoMemory(int64_t bytes, int error) {
  return absl::ResourceExhaustedError(
      Cat("cannot get ", bytes, " bytes of memory: ", ErrnoText(error)));
}

// A sealed memory file and its only writable mapping. An empty mapping with OK: the system does not
// have the seals.
absl::Status MakeShared(int64_t bytes, Fd* fd, Mapping* mapping) {
  Fd made(memfd_create("holdfast", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made.valid()) return absl::OkStatus();
  // Pages now: later, memory that is not there would be a SIGBUS instead of an error.
  int error = ftruncate(made.get(), bytes) == 0 ? 0 : errno;
  do {
    if (error == 0 || error == EINTR) error = posix_fallocate(made.get(), 0, bytes);
  } while (error == EINTR);
  if (error != 0) return NoMemory(bytes, error);
  void* at =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, made.get(), 0);
  if (at == MAP_FAILED) return NoMemory(bytes, errno);
  Mapping mapped(static_cast<std::byte*>(at), bytes);
  if (fcntl(made.get(), F_ADD_SEALS, kSeals) != 0) return absl::OkStatus();
  *fd = std::move(made);
  *mapping = std::move(mapped);
  return absl::OkStatus();
}

}  // namespace

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

absl::StatusOr<Mapping> Mapping::ForReading(int fd, int64_t expected_bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) return absl::InvalidArgumentError("its descriptor is no memory file");
  if ((seals & kSeals) != kSeals) {
    return absl::InvalidArgumentError(
        "its memory is not sealed: it could be shrunk under, or written by, others");
  }
  struct stat file = {};
  if (fstat(fd, &file) != 0 || file.st_size <= 0)
    return absl::InvalidArgumentError("its memory is empty");
  if (expected_bytes > 0 && file.st_size != expected_bytes) {
    return absl::InvalidArgumentError(
        Cat("its memory has ", file.st_size, " bytes instead of ", expected_bytes));
  }
  void* at = mmap(nullptr, static_cast<size_t>(file.st_size), PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return NoMemory(file.st_size, errno);
  return Mapping(static_cast<std::byte*>(at), file.st_size);
}

absl::StatusOr<SharedBlock> SharedBlock::Create(int64_t bytes, bool shareable) {
  SharedBlock block;
  block.bytes_ = bytes;
  // Refused before it is tried: a memory file takes its pages one by one until the machine has no
  // more.
  if (bytes > sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)) return NoMemory(bytes, ENOMEM);
  const int64_t mapped = PageUp(bytes);
  if (shareable) HF_RETURN_IF_ERROR(MakeShared(mapped, &block.fd_, &block.mapping_));
  if (block.data() != nullptr) return block;
  void* at = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return NoMemory(mapped, errno);
  block.mapping_ = Mapping(static_cast<std::byte*>(at), mapped);
  return block;
}

int64_t SharedBlock::OffsetOf(const std::byte* from, int64_t bytes) const {
  if (from < data() || bytes > bytes_ || from - data() > bytes_ - bytes) return -1;
  return from - data();
}

}  // namespace holdfast
