#include "runtime/session/start_message.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace holdfast {
namespace {

nlohmann::json Good() {
  Config config;
  config.data = {"text.txt"};
  config.steps = 77;
  return {{"type", "start"},
          {"config", config.ToToml()},
          {"slot", 2},
          {"local_workers", 4},
          {"member_id", "m-1"},
          {"machine", "host"},
          {"run", "r"},
          {"may_found", true},
          {"redis", {{"host", "::1"}, {"port", 6380}, {"password", "secret"}}}};
}

TEST(StartMessage, IsReadWhole) {
  const auto m = ParseStartMessage(Good().dump());
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_EQ(m->config.steps, 77);
  EXPECT_EQ(m->slot, 2);
  EXPECT_EQ(m->local_workers, 4);
  EXPECT_EQ(m->member_id, "m-1");
  EXPECT_EQ(m->machine, "host");
  EXPECT_EQ(m->run, "r");
  EXPECT_TRUE(m->may_found);
  EXPECT_EQ(m->redis_host, "::1");
  EXPECT_EQ(m->redis_port, 6380);
  EXPECT_EQ(m->redis_user, "");
  EXPECT_EQ(m->redis_password, "secret");
}

TEST(StartMessage, EveryMissingOrWrongFieldIsAnError) {
  for (const char* key : {"type", "config", "slot", "local_workers", "member_id", "machine", "run",
                          "may_found", "redis"}) {
    nlohmann::json missing = Good();
    missing.erase(key);
    EXPECT_TRUE(absl::IsInvalidArgument(ParseStartMessage(missing.dump()).status())) << key;
    nlohmann::json wrong = Good();
    wrong[key] = nlohmann::json::array({1});
    EXPECT_TRUE(absl::IsInvalidArgument(ParseStartMessage(wrong.dump()).status())) << key;
  }
}

TEST(StartMessage, OtherTextIsRefusedAndSecretsAreNotRepeated) {
  for (const char* text : {"", "{", "[]", "null", "{\"type\": \"drain\"}"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseStartMessage(text).status())) << text;
  }
  nlohmann::json m = Good();
  m["redis"].erase("port");
  EXPECT_THAT(std::string(ParseStartMessage(m.dump()).status().message()),
              testing::Not(testing::HasSubstr("secret")));
}

}  // namespace
}  // namespace holdfast
