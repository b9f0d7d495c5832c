// Where supervisors pin up what their part of a run looks like, for `holdfast status` on another
// machine: one text for each machine, as an expiring key. Nobody decides anything by it, and it is
// never the record: a text that is lost or cannot be written costs nothing.
//
// Keys, both with the hash tag of the run: holdfast:{RUN}:views (set of machine names) and
// holdfast:{RUN}:view:MACHINE; they expire kViewTtlMs after the last Publish. One object is one
// connection; not thread-safe. Calls take at most connect_ms + command_ms of the endpoint.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "rendezvous/redis_connection.h"

namespace holdfast::rendezvous {

inline constexpr int64_t kViewTtlMs = 86'400'000;
inline constexpr size_t kViewBytesMax = 64 * 1024, kViewMachinesMax = 1024;

struct PinnedView {
  std::string machine, text;
  int64_t age_ms = 0;  // since Publish, by the clock of Redis
};

class ViewBoard {
 public:
  ViewBoard(const RedisEndpoint& endpoint, std::string_view run);
  // kInvalidArgument above kViewBytesMax; else as RedisConnection.
  [[nodiscard]] absl::Status Publish(std::string_view machine, std::string_view text);
  // All that have not expired, in the order of the machines' names; at most kViewMachinesMax.
  absl::StatusOr<std::vector<PinnedView>> Read();

 private:
  RedisConnection connection_;
  const std::string machines_key_, view_prefix_;
};

}  // namespace holdfast::rendezvous
