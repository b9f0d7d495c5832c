// Event files of TensorBoard, written by hand: TFRecord framing (u64 length, masked CRC-32C of the
// length, data, masked CRC-32C of the data; little-endian) around protocol buffers "Event" with
// scalar summaries (tensorflow/core/util/event.proto, framework/summary.proto).
//
// One file for each life of a run, in a folder that TensorBoard reads as one run, in the order of
// the names. A life begins with "session start at step s", which makes TensorBoard drop what an
// earlier file says of steps from s on. A record that does not fit on the disk is lost as a whole,
// and counted. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::metrics {

struct Scalar {
  std::string tag;
  double value = 0;
};

// The framed bytes of one record.
std::string TfRecord(std::string_view data);
// Serialised events.
std::string VersionEvent(double wall_s);
std::string SessionStartEvent(double wall_s, int64_t step);
// Values that are not finite are left out.
std::string ScalarsEvent(double wall_s, int64_t step, const std::vector<Scalar>& scalars);

class EventFile {
 public:
  // Creates a new file in `folder` (made when it is not there); its first records say the version
  // and that a session starts at `step`.
  static absl::StatusOr<std::unique_ptr<EventFile>> Create(const std::string& folder, int64_t step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // False when it was lost.
  bool Append(int64_t step, double wall_s, const std::vector<Scalar>& scalars);
  int64_t lost() const { return lost_; }
  const std::string& path() const { return path_; }

 private:
  EventFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  bool Write(std::string_view bytes);

  const std::string path_;
  const int fd_;
  int64_t size_ = 0, lost_ = 0;
};

}  // namespace holdfast::metrics
