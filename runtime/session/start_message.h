// The first message of the supervisor, decoded (supervisor/messages.h).
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "rendezvous/membership.h"
#include "runtime/config/config.h"

namespace holdfast {

struct StartMessage {
  Config config;
  std::string toml;  // the same, as the factories want it
  int slot = 0, local_workers = 1;
  std::string member_id, machine, run;
  std::string redis_host, redis_user, redis_password;
  int redis_port = 0;
  bool may_found = false;
};

absl::StatusOr<StartMessage> ParseStartMessage(std::string_view json);

}  // namespace holdfast
