#include "runtime/models/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "kernels/math/half.h"
#include "runtime/base/bytes.h"
#include "runtime/base/digest.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;

absl::Status SystemError(const std::string& path, std::string_view what, int error) {
  const std::string text = Cat(path, ": ", what, ": ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

absl::Status NoFile(const std::string& path, std::string_view why) {
  return absl::InvalidArgumentError(Cat(path, " is no safetensors file: ", why));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError(path, "cannot be read", errno);
  struct stat info {};
  const bool known = fstat(fd, &info) == 0;
  std::unique_ptr<SafetensorsFile> file(
      new SafetensorsFile(path, fd, known ? static_cast<int64_t>(info.st_size) : 0));
  if (!known || !S_ISREG(info.st_mode)) return NoFile(path, "not a regular file");
  if (file->bytes_ < 8) return NoFile(path, Cat("it has ", file->bytes_, " bytes"));
  uint64_t length = 0;
  HF_RETURN_IF_ERROR(file->Read(0, &length, 8));
  if (length > static_cast<uint64_t>(std::min(kMaxHeaderBytes, file->bytes_ - 8))) {
    return NoFile(path, Cat("a header of ", length, " bytes is announced; the file has ",
                            file->bytes_, ", and at most ", kMaxHeaderBytes, " are allowed"));
  }
  std::string json(length, '\0');
  HF_RETURN_IF_ERROR(file->Read(8, json.data(), static_cast<int64_t>(length)));
  file->data_at_ = 8 + static_cast<int64_t>(length);
  auto header = ParseSafetensorsHeader(json, file->bytes_ - file->data_at_);
  if (!header.ok()) return NoFile(path, StdView(header.status().message()));
  file->header_ = *std::move(header);
  return file;
}

SafetensorsFile::~SafetensorsFile() { close(fd_); }

const FileTensor* SafetensorsFile::Find(std::string_view name) const {
  for (const FileTensor& tensor : header_.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

absl::Status SafetensorsFile::Read(int64_t at, void* out, int64_t bytes) const {
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = pread(fd_, to, static_cast<size_t>(bytes), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(path_, "cannot be read", errno);
    if (n == 0) return NoFile(path_, Cat("it ends at byte ", at, ", earlier than before"));
    to += n;
    at += n;
    bytes -= n;
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFile::ReadFloats(const FileTensor& tensor, int64_t first,
                                         std::span<float> out) const {
  const auto count = static_cast<int64_t>(out.size());
  if (first < 0 || count > tensor.elements() || first > tensor.elements() - count)
    return absl::InvalidArgumentError(Cat("tensor ", tensor.name, ": elements out of range"));
  const int64_t at = data_at_ + tensor.begin + first * DtypeBytes(tensor.dtype);
  if (tensor.dtype == "F32") return Read(at, out.data(), count * 4);
  if (tensor.dtype != "F16" && tensor.dtype != "BF16") {
    return absl::InvalidArgumentError(
        Cat("tensor ", tensor.name, " is of type ", tensor.dtype, "; F32, F16 or BF16 is needed"));
  }
  std::vector<uint16_t> halves(out.size());
  HF_RETURN_IF_ERROR(Read(at, halves.data(), count * 2));
  const bool brain = tensor.dtype == "BF16";
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = brain ? kernels::FloatOfBf16(halves[i]) : kernels::FloatOfF16(halves[i]);
  return absl::OkStatus();
}

absl::StatusOr<std::string> SafetensorsFile::Digest() const {
  std::string piece(static_cast<size_t>(std::min(kPieceBytes, bytes_)), '\0');
  ByteWriter digests;
  digests.Put(bytes_);
  for (int64_t at = 0; at < bytes_; at += kPieceBytes) {
    const int64_t bytes = std::min(kPieceBytes, bytes_ - at);
    HF_RETURN_IF_ERROR(Read(at, piece.data(), bytes));
    const Hash128 hash = Hash128Of(piece.data(), static_cast<size_t>(bytes));
    digests.Put(hash.low);
    digests.Put(hash.high);
  }
  const Hash128 all = Hash128Of(digests.bytes().data(), digests.bytes().size());
  return Cat(Hex64(all.high), Hex64(all.low));
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, SafetensorsHeader header) {
  HF_ASSIGN_OR_RETURN(const std::string head, MakeSafetensorsHeader(&header));
  for (const FileTensor& t : header.tensors) {
    if (t.dtype != "F32") return absl::InvalidArgumentError("only F32 tensors are written");
  }
  // The new file takes the place of the old one by its name: a device must not go that way.
  struct stat old = {};
  if (stat(path.c_str(), &old) == 0 && !S_ISREG(old.st_mode))
    return absl::InvalidArgumentError(
        Cat(path, " is there and is no regular file: name a file to write or to replace"));
  const std::string temporary = Cat(path, ".", getpid(), ".part");
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return SystemError(temporary, "cannot be written", errno);
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter(path, temporary, fd));
  writer->header_ = std::move(header);
  writer->data_at_ = static_cast<int64_t>(head.size());
  for (const FileTensor& t : writer->header_.tensors) writer->left_ += t.end - t.begin;
  HF_RETURN_IF_ERROR(writer->WriteAt(0, head.data(), writer->data_at_));
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  close(fd_);
  (void)unlink(temporary_.c_str());
}

absl::Status SafetensorsWriter::WriteAt(int64_t at, const void* data, int64_t bytes) const {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = pwrite(fd_, from, static_cast<size_t>(bytes), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(temporary_, "cannot be written", errno);
    from += n;
    at += n;
    bytes -= n;
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Write(size_t tensor, int64_t first,
                                      std::span<const uint32_t> words) {
  const FileTensor& t = header_.tensors[tensor];
  const auto count = static_cast<int64_t>(words.size());
  if (first < 0 || count > t.elements() || first > t.elements() - count)
    return absl::InvalidArgumentError(Cat("tensor ", t.name, ": elements out of range"));
  left_ -= count * 4;
  return WriteAt(data_at_ + t.begin + first * 4, words.data(), count * 4);
}

absl::Status SafetensorsWriter::Commit() {
  if (left_ != 0)
    return absl::FailedPreconditionError(Cat(path_, ": ", left_, " bytes were never written"));
  if (fsync(fd_) != 0) return SystemError(temporary_, "cannot be made durable", errno);
  if (rename(temporary_.c_str(), path_.c_str()) != 0)
    return SystemError(path_, "cannot be replaced", errno);
  close(std::exchange(fd_, -1));
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  const int directory =
      open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return SystemError(path_, "its folder cannot be opened", errno);
  const bool synced = fsync(directory) == 0;
  const int error = errno;
  close(directory);
  return synced ? absl::OkStatus() : SystemError(path_, "its folder cannot be made durable", error);
}

}  // namespace holdfast
