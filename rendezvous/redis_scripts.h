// The Lua scripts, one per operation of Store: each is atomic in Redis, checks its fence, and may
// be sent twice. Their arguments and replies are described in PROTOCOL.md.
#pragma once

#include <string>

namespace holdfast::rendezvous {

struct RedisScript {
  std::string text;
  std::string sha1;
};

struct RedisScripts {
  RedisScript read, beat, found, join, seal, refuse, enter, confirm, leave, finish, certify, stop,
      clean_up;
};

const RedisScripts& Scripts();

}  // namespace holdfast::rendezvous
