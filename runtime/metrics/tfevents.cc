#include "runtime/metrics/tfevents.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "runtime/base/bytes.h"
#include "runtime/base/status.h"
#include "runtime/metrics/crc32c.h"
#include "runtime/metrics/row.h"

namespace holdfast::metrics {
namespace {

// Field numbers of event.proto and summary.proto.
constexpr int kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
              kEventSessionLog = 7;
constexpr int kSummaryValue = 1, kValueTag = 1, kValueSimple = 2;
constexpr int kSessionStatus = 1, kSessionStart = 1;

// The wire format of protocol buffers (protobuf.dev, "Encoding").
class Message {
 public:
  Message& Varint(int field, uint64_t value) {
    Raw(static_cast<uint64_t>(field) << 3 | 0);
    return Raw(value);
  }
  Message& Double(int field, double value) {
    Raw(static_cast<uint64_t>(field) << 3 | 1);
    bytes_.Put(value);
    return *this;
  }
  Message& Float(int field, float value) {
    Raw(static_cast<uint64_t>(field) << 3 | 5);
    bytes_.Put(value);
    return *this;
  }
  Message& Bytes(int field, std::string_view value) {
    Raw(static_cast<uint64_t>(field) << 3 | 2);
    Raw(value.size());
    bytes_.PutRaw(value.data(), value.size());
    return *this;
  }
  std::string Take() { return bytes_.Take(); }

 private:
  Message& Raw(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.Put(static_cast<uint8_t>(value | 0x80));
    bytes_.Put(static_cast<uint8_t>(value));
    return *this;
  }
  ByteWriter bytes_;
};

Message Event(double wall_s, int64_t step) {
  Message event;
  event.Double(kEventWallTime, wall_s);
  if (step != 0) event.Varint(kEventStep, static_cast<uint64_t>(step));
  return event;
}

}  // namespace

std::string TfRecord(std::string_view data) {
  ByteWriter length, record;
  length.Put<uint64_t>(data.size());
  record.PutRaw(length.bytes().data(), length.bytes().size());
  record.Put<uint32_t>(MaskedCrc32c(length.bytes()));
  record.PutRaw(data.data(), data.size());
  record.Put<uint32_t>(MaskedCrc32c(data));
  return record.Take();
}

std::string VersionEvent(double wall_s) {
  return Event(wall_s, 0).Bytes(kEventFileVersion, "brain.Event:2").Take();
}

std::string SessionStartEvent(double wall_s, int64_t step) {
  return Event(wall_s, step)
      .Bytes(kEventSessionLog, Message().Varint(kSessionStatus, kSessionStart).Take())
      .Take();
}

std::string ScalarsEvent(double wall_s, int64_t step, const std::vector<Scalar>& scalars) {
  Message summary;
  for (const Scalar& s : scalars) {
    if (!std::isfinite(s.value)) continue;
    summary.Bytes(
        kSummaryValue,
        Message().Bytes(kValueTag, s.tag).Float(kValueSimple, static_cast<float>(s.value)).Take());
  }
  return Event(wall_s, step).Bytes(kEventSummary, summary.Take()).Take();
}

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::Create(const std::string& folder,
                                                             int64_t step) {
  const auto error = [](std::string_view what, const std::string& path) {
    return absl::UnavailableError(Cat(what, " ", path, ": ", std::strerror(errno)));
  };
  if (mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) return error("cannot create", folder);
  char host[65] = "";
  (void)gethostname(host, sizeof host - 1);
  const double wall_s = WallSeconds();
  // TensorBoard reads in the order of the names: the second comes first, as everywhere else. Lives
  // that begin in one second are told apart by the number behind.
  for (int number = 0; number < 1000; ++number) {
    char name[256];
    std::snprintf(name, sizeof name, "/events.out.tfevents.%010lld.%s.%d.%03d",
                  static_cast<long long>(wall_s), host, static_cast<int>(getpid()), number);
    const std::string path = folder + name;
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd < 0) return error("cannot create", path);
    std::unique_ptr<EventFile> file(new EventFile(path, fd));
    if (!file->Write(TfRecord(VersionEvent(wall_s)) + TfRecord(SessionStartEvent(wall_s, step))))
      return error("cannot write", path);
    return file;
  }
  return absl::UnavailableError(Cat("no free name for an event file in ", folder));
}

EventFile::~EventFile() { close(fd_); }

bool EventFile::Write(std::string_view bytes) {
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const ssize_t n = pwrite(fd_, rest.data(), rest.size(),
                             size_ + static_cast<off_t>(bytes.size() - rest.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int error = errno;
      (void)!ftruncate(fd_, size_);
      errno = error;
      return false;
    }
    rest.remove_prefix(static_cast<size_t>(n));
  }
  size_ += static_cast<int64_t>(bytes.size());
  return true;
}

bool EventFile::Append(int64_t step, double wall_s, const std::vector<Scalar>& scalars) {
  if (Write(TfRecord(ScalarsEvent(wall_s, step, scalars)))) return true;
  ++lost_;
  return false;
}

}  // namespace holdfast::metrics
