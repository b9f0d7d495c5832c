#include "rendezvous/view_board.h"

#include <algorithm>

#include "runtime/base/status.h"

namespace holdfast::rendezvous {

using Kind = RedisReply::Kind;

ViewBoard::ViewBoard(const RedisEndpoint& endpoint, std::string_view run)
    : connection_(endpoint),
      machines_key_(Cat("holdfast:{", run, "}:views")),
      view_prefix_(Cat("holdfast:{", run, "}:view:")) {}

absl::Status ViewBoard::Publish(std::string_view machine, std::string_view text) {
  if (text.size() > kViewBytesMax) {
    return absl::InvalidArgumentError(
        Cat("a view of ", text.size(), " bytes; at most ", kViewBytesMax, " are published"));
  }
  const std::string ttl = Cat(kViewTtlMs);
  HF_RETURN_IF_ERROR(
      connection_.Command({"SET", Cat(view_prefix_, machine), std::string(text), "PX", ttl})
          .status());
  HF_RETURN_IF_ERROR(connection_.Command({"SADD", machines_key_, std::string(machine)}).status());
  return connection_.Command({"PEXPIRE", machines_key_, ttl}).status();
}

absl::StatusOr<std::vector<PinnedView>> ViewBoard::Read() {
  HF_ASSIGN_OR_RETURN(const RedisReply names, connection_.Command({"SMEMBERS", machines_key_}));
  std::vector<std::string> machines;
  for (const RedisReply& name : names.list) machines.push_back(name.text);
  std::sort(machines.begin(), machines.end());
  if (machines.size() > kViewMachinesMax) machines.resize(kViewMachinesMax);
  std::vector<PinnedView> views;
  for (const std::string& machine : machines) {
    const std::string key = Cat(view_prefix_, machine);
    // First the age: a text that is replaced in between is younger than said, never older.
    HF_ASSIGN_OR_RETURN(const RedisReply left, connection_.Command({"PTTL", key}));
    HF_ASSIGN_OR_RETURN(RedisReply text, connection_.Command({"GET", key}));
    if (text.kind != Kind::kText || left.kind != Kind::kInteger || left.integer < 0) continue;
    views.push_back({machine, std::move(text.text),
                     std::clamp<int64_t>(kViewTtlMs - left.integer, 0, kViewTtlMs)});
  }
  return views;
}

}  // namespace holdfast::rendezvous
