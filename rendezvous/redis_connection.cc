#include "rendezvous/redis_connection.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <sys/time.h>

#include <cstring>
#include <utility>

#include "runtime/base/status.h"

namespace holdfast::rendezvous {
namespace {

constexpr int kMaxDepth = 8;

timeval Milliseconds(int64_t ms) {
  timeval t;
  t.tv_sec = ms / 1000;
  t.tv_usec = (ms % 1000) * 1000;
  return t;
}

bool Convert(const redisReply& reply, int depth, RedisReply* out) {
  switch (reply.type) {
    case REDIS_REPLY_NIL:
      out->kind = RedisReply::Kind::kNil;
      return true;
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
      out->kind = RedisReply::Kind::kText;
      out->text.assign(reply.str, reply.len);
      return true;
    case REDIS_REPLY_INTEGER:
      out->kind = RedisReply::Kind::kInteger;
      out->integer = reply.integer;
      return true;
    case REDIS_REPLY_ARRAY:
      if (depth >= kMaxDepth) return false;
      out->kind = RedisReply::Kind::kList;
      out->list.resize(reply.elements);
      for (size_t i = 0; i < reply.elements; ++i) {
        if (reply.element[i] == nullptr || !Convert(*reply.element[i], depth + 1, &out->list[i])) {
          return false;
        }
      }
      return true;
    default:
      return false;
  }
}

bool Has(std::string_view text, std::string_view what) {
  return text.find(what) != std::string_view::npos;
}

}  // namespace

absl::Status StatusOfRedisError(std::string_view error, std::string_view endpoint) {
  // Inside a script the code of a failed command stands in the middle of the text.
  const std::string where = Cat("Redis at ", endpoint);
  if (Has(error, "WRONGPASS") || Has(error, "invalid password")) {
    return absl::UnauthenticatedError(Cat(
        where, " refuses the password: correct HOLDFAST_REDIS_PASSWORD or --redis-password-file"));
  }
  if (Has(error, "NOAUTH") || Has(error, "unauthenticated")) {
    return absl::UnauthenticatedError(Cat(
        where, " wants a password: give it in HOLDFAST_REDIS_PASSWORD or --redis-password-file"));
  }
  if (Has(error, "without any password configured")) {
    return absl::UnauthenticatedError(Cat(
        where, " has no password, but one was given: set requirepass there, or give none here"));
  }
  if (Has(error, "NOPERM")) {
    return absl::UnauthenticatedError(Cat(where, " forbids a command to this user (", error,
                                          "): it needs scripts, INFO and the keys holdfast:*"));
  }
  if (Has(error, "READONLY")) {
    return absl::FailedPreconditionError(Cat(
        where, ": endpoint is a read-only replica; give the address of its primary in --redis"));
  }
  if (Has(error, "MISCONF")) {
    return absl::FailedPreconditionError(
        Cat(where,
            " refuses writes because it cannot save to its disk (MISCONF): free space there, or "
            "set stop-writes-on-bgsave-error no"));
  }
  if (Has(error, "OOM")) {
    return absl::ResourceExhaustedError(
        Cat(where, " is out of memory (maxmemory): raise it or remove keys of others"));
  }
  if (Has(error, "LOADING")) return absl::UnavailableError(Cat(where, " is loading its data"));
  if (Has(error, "max number of clients")) {
    return absl::UnavailableError(Cat(where, " has too many clients (maxclients)"));
  }
  return absl::UnavailableError(Cat(where, " answers: ", error.substr(0, 200)));
}

RedisConnection::RedisConnection(RedisEndpoint endpoint)
    : endpoint_(std::move(endpoint)), endpoint_text_(Cat(endpoint_.host, ":", endpoint_.port)) {}

RedisConnection::~RedisConnection() { Close(); }

void RedisConnection::Close() {
  if (context_ != nullptr) redisFree(context_);
  context_ = nullptr;
}

absl::Status RedisConnection::Connect() {
  context_ = redisConnectWithTimeout(endpoint_.host.c_str(), endpoint_.port,
                                     Milliseconds(endpoint_.connect_ms));
  if (context_ == nullptr)
    return absl::ResourceExhaustedError("out of memory for a Redis connection");
  if (context_->err != 0) {
    const absl::Status status = absl::UnavailableError(
        Cat("cannot connect to Redis at ", endpoint_text_, ": ", context_->errstr));
    Close();
    return status;
  }
  const int flags = fcntl(context_->fd, F_GETFD);
  if (flags >= 0) fcntl(context_->fd, F_SETFD, flags | FD_CLOEXEC);
  redisEnableKeepAlive(context_);
  if (redisSetTimeout(context_, Milliseconds(endpoint_.command_ms)) != REDIS_OK) {
    Close();
    return absl::InternalError("cannot set the timeout of a Redis connection");
  }
  // Without a password PING asks whether one is wanted: Redis cuts a stranger's longer command off
  // with no telling answer.
  std::vector<std::string> hello = {"PING"};
  if (!endpoint_.password.empty()) {
    hello = {"AUTH"};
    if (!endpoint_.user.empty()) hello.push_back(endpoint_.user);
    hello.push_back(endpoint_.password);
  }
  bool no_script = false;
  const absl::Status status = RawCommand(hello, &no_script).status();
  if (!status.ok()) Close();
  return status;
}

absl::StatusOr<RedisReply> RedisConnection::RawCommand(const std::vector<std::string>& arguments,
                                                       bool* no_script) {
  std::vector<const char*> argv;
  std::vector<size_t> lengths;
  for (const std::string& argument : arguments) {
    argv.push_back(argument.data());
    lengths.push_back(argument.size());
  }
  auto* reply = static_cast<redisReply*>(
      redisCommandArgv(context_, static_cast<int>(argv.size()), argv.data(), lengths.data()));
  if (reply == nullptr) {
    // hiredis reports a read timeout as EAGAIN.
    const bool timed_out =
        context_->err == REDIS_ERR_IO && (errno == EAGAIN || errno == EWOULDBLOCK);
    const bool nonsense = context_->err == REDIS_ERR_PROTOCOL;
    const std::string why = context_->errstr;
    Close();
    if (timed_out) {
      return absl::DeadlineExceededError(
          Cat("Redis at ", endpoint_text_, " did not answer within ", endpoint_.command_ms, " ms"));
    }
    if (nonsense) {
      return absl::DataLossError(
          Cat("what listens at ", endpoint_text_, " does not speak Redis: ", why));
    }
    return absl::UnavailableError(Cat("connection to Redis at ", endpoint_text_, " lost: ", why));
  }
  absl::StatusOr<RedisReply> result = RedisReply();
  if (reply->type == REDIS_REPLY_ERROR) {
    const std::string_view error(reply->str, reply->len);
    *no_script = error.substr(0, 8) == "NOSCRIPT";
    result = StatusOfRedisError(error, endpoint_text_);
  } else if (!Convert(*reply, 0, &*result)) {
    result =
        absl::DataLossError(Cat("Redis at ", endpoint_text_, " sent a reply of an unknown kind"));
  }
  freeReplyObject(reply);
  if (!result.ok() && !*no_script) Close();
  return result;
}

absl::StatusOr<RedisReply> RedisConnection::Command(const std::vector<std::string>& arguments) {
  if (context_ == nullptr) HF_RETURN_IF_ERROR(Connect());
  bool no_script = false;
  return RawCommand(arguments, &no_script);
}

absl::StatusOr<RedisReply> RedisConnection::Script(const std::string& text, const std::string& sha1,
                                                   const std::vector<std::string>& keys,
                                                   const std::vector<std::string>& arguments) {
  if (context_ == nullptr) HF_RETURN_IF_ERROR(Connect());
  std::vector<std::string> command = {"EVALSHA", sha1, Cat(keys.size())};
  command.insert(command.end(), keys.begin(), keys.end());
  command.insert(command.end(), arguments.begin(), arguments.end());
  bool no_script = false;
  absl::StatusOr<RedisReply> reply = RawCommand(command, &no_script);
  if (reply.ok() || !no_script) return reply;
  command[0] = "EVAL";
  command[1] = text;
  no_script = false;
  return RawCommand(command, &no_script);
}

}  // namespace holdfast::rendezvous
