#include "runtime/supervisor/redis_address.h"

#include <sys/stat.h>

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "runtime/supervisor/exit_status.h"
#include "runtime/supervisor/line_file.h"

namespace holdfast {

std::string RedisAddress::text() const { return Cat(host, ":", port); }

absl::StatusOr<RedisAddress> ParseRedisUrl(const std::string& url) {
  RedisAddress address;
  std::string rest = url;
  if (const size_t scheme = rest.find("://"); scheme != std::string::npos) {
    if (rest.substr(0, scheme) != "redis") {
      return ExitError(
          ExitCode::kUsage, "--redis: the scheme '", rest.substr(0, scheme),
          "' is not known; write redis://host:port (TLS, sockets and sentinels are not supported)");
    }
    rest = rest.substr(scheme + 3);
  }
  if (const size_t at = rest.rfind('@'); at != std::string::npos) {
    const std::string login = rest.substr(0, at);
    if (login.find(':') != std::string::npos) {
      return ExitError(ExitCode::kUsage,
                       "--redis: a password on the command line can be read by every user of this "
                       "machine; put it into "
                       "the environment variable HOLDFAST_REDIS_PASSWORD or into a file for "
                       "--redis-password-file");
    }
    address.user = login;
    rest = rest.substr(at + 1);
  }
  while (!rest.empty() && rest.back() == '/') rest.pop_back();
  std::string port;
  if (const size_t colon = rest.rfind(':');
      colon != std::string::npos && rest.find(']', colon) == std::string::npos) {
    port = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
    if (!absl::SimpleAtoi(port, &address.port) || address.port < 1 || address.port > 65'535) {
      return ExitError(ExitCode::kUsage, "--redis: '", port, "' is not a port from 1 to 65535");
    }
  }
  if (rest.size() > 2 && rest.front() == '[' && rest.back() == ']')
    rest = rest.substr(1, rest.size() - 2);
  if (rest.empty() || rest.find_first_of(" /,?#") != std::string::npos) {
    return ExitError(ExitCode::kUsage, "--redis: '", rest,
                     "' is not a host; write redis://host:port");
  }
  address.host = rest;
  return address;
}

absl::StatusOr<RedisAddress> RedisFromConfig(const Config& config) {
  HF_ASSIGN_OR_RETURN(RedisAddress address, ParseRedisUrl(config.redis));
  const std::string& path = config.redis_password_file;
  if (const char* password = std::getenv("HOLDFAST_REDIS_PASSWORD");
      password != nullptr && path.empty()) {
    address.password = password;
  }
  if (path.empty()) return address;
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return ExitError(ExitCode::kUsage, "--redis-password-file ", path, ": cannot be read");
  }
  if ((info.st_mode & (S_IROTH | S_IWOTH | S_IRGRP | S_IWGRP)) != 0) {
    return ExitError(ExitCode::kUsage, "--redis-password-file ", path,
                     ": others can read it; make it private first: chmod 600 ", path);
  }
  const auto content = ReadSmallFile(path, 4096);
  if (!content.ok()) {
    return WithExit(Annotate(content.status(), "--redis-password-file"), ExitCode::kUsage);
  }
  address.password = std::string(absl::StripTrailingAsciiWhitespace(*content));
  return address;
}

}  // namespace holdfast
