// Store on one Redis. Keys: holdfast:{RUN}:record, :joins, :deaths, :confirmed, :refused, :status,
// :alive, :ended and :lease:ID; all expire. See PROTOCOL.md. One object is one connection; not
// thread-safe.
#pragma once

#include <memory>
#include <string>

#include "rendezvous/redis_connection.h"
#include "rendezvous/store.h"

namespace holdfast::rendezvous {

struct RedisStoreOptions {
  RedisEndpoint endpoint;
  std::string run;  // name
  int64_t lease_ms = 3000, redis_outage_ms = 600'000, key_ttl_ms = 86'400'000;
};

std::unique_ptr<Store> MakeRedisStore(const RedisStoreOptions& options);

}  // namespace holdfast::rendezvous
