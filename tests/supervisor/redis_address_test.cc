// --redis in every form, and the legal places of its password.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runtime/supervisor/exit_status.h"
#include "runtime/supervisor/redis_address.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;

TEST(RedisAddress, GoodForms) {
  EXPECT_EQ(ParseRedisUrl("redis://h:7")->text(), "h:7");
  EXPECT_EQ(ParseRedisUrl("redis://h")->text(), "h:6379");
  EXPECT_EQ(ParseRedisUrl("h:7/")->text(), "h:7");
  EXPECT_EQ(ParseRedisUrl("redis://[::1]:7")->host, "::1");
  EXPECT_EQ(ParseRedisUrl("redis://me@h:7")->user, "me");
}

TEST(RedisAddress, BadFormsAreUsageErrors) {
  for (const char* url :
       {"rediss://h:7", "redis://h:0", "redis://h:70000", "redis://h:x", "redis://",
        "redis://:pw@h:7", "redis://a:b@h", "redis://h,g:7", "unix:///tmp/s"}) {
    const auto address = ParseRedisUrl(url);
    ASSERT_FALSE(address.ok()) << url;
    EXPECT_EQ(ExitCodeOf(address.status()), ExitCode::kUsage) << url;
    EXPECT_THAT(std::string(address.status().message()), HasSubstr("--redis"));
  }
}

TEST(RedisAddress, ThePasswordComesFromTheEnvironmentOrAPrivateFile) {
  const std::string path =
      (std::filesystem::temp_directory_path() / Cat("holdfast-secret-", getpid())).string();
  std::ofstream(path) << "from-file\n";
  Config config;
  config.redis = "redis://h:7";
  setenv("HOLDFAST_REDIS_PASSWORD", "from-environment", 1);
  EXPECT_EQ(RedisFromConfig(config)->password, "from-environment");
  config.redis_password_file = path;
  chmod(path.c_str(), 0600);
  EXPECT_EQ(RedisFromConfig(config)->password, "from-file");
  chmod(path.c_str(), 0644);
  const auto open = RedisFromConfig(config);
  ASSERT_FALSE(open.ok());
  EXPECT_THAT(std::string(open.status().message()), HasSubstr("chmod 600"));
  unsetenv("HOLDFAST_REDIS_PASSWORD");
  std::filesystem::remove(path);
  EXPECT_FALSE(RedisFromConfig(config).ok());
}

}  // namespace
}  // namespace holdfast
