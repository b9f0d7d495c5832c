#include "runtime/session/start_message.h"

#include "nlohmann/json.hpp"
#include "runtime/base/status.h"

namespace holdfast {

absl::StatusOr<StartMessage> ParseStartMessage(std::string_view text) {
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  StartMessage m;
  try {
    if (!j.is_object() || j.value("type", "") != "start") {
      return absl::InvalidArgumentError("the supervisor's first message is not a start message");
    }
    m.toml = j.at("config").get<std::string>();
    m.slot = j.at("slot").get<int>();
    m.local_workers = j.at("local_workers").get<int>();
    m.member_id = j.at("member_id").get<std::string>();
    m.machine = j.at("machine").get<std::string>();
    m.run = j.at("run").get<std::string>();
    m.may_found = j.at("may_found").get<bool>();
    const auto& redis = j.at("redis");
    m.redis_host = redis.at("host").get<std::string>();
    m.redis_port = redis.at("port").get<int>();
    m.redis_user = redis.value("user", "");
    m.redis_password = redis.value("password", "");
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(Cat("start message: ", e.what()));
  }
  HF_ASSIGN_OR_RETURN(m.config, ConfigFromToml(m.toml, "start message"));
  return m;
}

}  // namespace holdfast
