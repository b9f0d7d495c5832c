#include "rendezvous/redis_scripts.h"

#include <openssl/sha.h>

#include <string_view>

#include "runtime/base/digest.h"
#include "runtime/base/text.h"

namespace holdfast::rendezvous {
namespace {

// KEYS: record joins deaths confirmed refused status alive ended lease: (the last one is a prefix;
// all share one hash tag) ARGV: uuid, store id, generation, nonce, ttl_ms, lease_ms, alive_ms, then
// the operation's own as A[1], A[2], ...
constexpr char kPrelude[] = R"lua(
local RECORD, JOINS, DEATHS, CONFIRMED, REFUSED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local STATUS, ALIVE, ENDED, LEASE = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local UUID, STORE, GENERATION, NONCE, TTL = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local LEASE_MS, ALIVE_MS = ARGV[6], ARGV[7]
local A = {}
for i = 8, #ARGV do A[i - 7] = ARGV[i] end
local function store_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
end
local function get(field) return redis.call('HGET', RECORD, field) end
local function trusted()
  return get('uuid') == UUID and get('store') == STORE and store_id() == STORE
end
local function same_generation() return get('generation') == GENERATION and get('nonce') == NONCE end
local function is_member(id)
  return string.find(' ' .. (get('members') or '') .. ' ', ' ' .. id .. ' ', 1, true) ~= nil
end
local function is_dead(id) return redis.call('HEXISTS', DEATHS, id) == 1 end
local function changed() redis.call('HINCRBY', RECORD, 'seq', 1) end
local function touch()
  for i = 1, 6 do redis.call('PEXPIRE', KEYS[i], TTL) end
end
local function lease(id) redis.call('SET', LEASE .. id, '1', 'PX', LEASE_MS) end
local function snapshot(asking, with_status)
  local joins = redis.call('HGETALL', JOINS)
  local leases = {}
  local function add(id)
    local left = redis.call('PTTL', LEASE .. id)
    if left > 0 then leases[#leases + 1] = id; leases[#leases + 1] = left end
  end
  for id in string.gmatch(get('members') or '', '%S+') do add(id) end
  for i = 1, #joins, 2 do add(joins[i]) end
  local now = redis.call('TIME')
  return {store_id(), now[1], now[2], redis.call('HGETALL', RECORD), joins,
          redis.call('HGETALL', DEATHS), redis.call('HKEYS', CONFIRMED),
          redis.call('HGET', REFUSED, asking) or '', leases, redis.call('EXISTS', ALIVE),
          redis.call('GET', ENDED) or '', with_status == '1' and redis.call('HGETALL', STATUS) or {}}
end
)lua";

constexpr char kRead[] = R"lua(
return snapshot(A[1], A[2])
)lua";

// A lease is only a sign of life: it is renewed also before there is a record, but never for the
// dead.
constexpr char kBeat[] = R"lua(
local id = A[1]
if redis.call('EXISTS', RECORD) == 0 then
  lease(id)
elseif trusted() and not is_dead(id) then
  lease(id)
  redis.call('HSET', STATUS, id, A[2])
  if is_member(id) then redis.call('SET', ALIVE, '1', 'PX', ALIVE_MS) end
  touch()
end
return snapshot(id, '0')
)lua";

constexpr char kFound[] = R"lua(
if redis.call('HSETNX', RECORD, 'uuid', UUID) == 0 then
  return get('uuid') == UUID and 'OK' or 'CONFLICT'
end
redis.call('HSET', RECORD, 'store', store_id(), 'secret', A[1], 'generation', A[2], 'nonce', '0',
           'round', '0', 'seq', '1', 'members', '')
redis.call('DEL', JOINS, DEATHS, CONFIRMED, REFUSED, STATUS, ALIVE, ENDED)
touch()
return 'OK'
)lua";

constexpr char kJoin[] = R"lua(
local id = A[1]
if not trusted() then return 'UNTRUSTED' end
if is_dead(id) then return 'DEAD' end
if not same_generation() then return 'CONFLICT' end
lease(id)
if redis.call('HGET', JOINS, id) ~= A[2] then
  redis.call('HSET', JOINS, id, A[2])
  redis.call('HDEL', REFUSED, id)
  if is_member(id) then redis.call('HSET', RECORD, 'round', A[3]) end
  changed()
end
touch()
return 'OK'
)lua";

// A: seq, new generation, new nonce, sealed, members, take_over, cold, then the ids to be removed
// from the joins.
constexpr char kSeal[] = R"lua(
if not trusted() then return 'UNTRUSTED' end
if get('nonce') == A[3] then return 'OK' end
if not same_generation() or get('seq') ~= A[1] then return 'CONFLICT' end
if A[6] == '1' and redis.call('EXISTS', ALIVE) == 1 then return 'CONFLICT' end
redis.call('HSET', RECORD, 'generation', A[2], 'nonce', A[3], 'sealed', A[4], 'members', A[5],
           'round', '0')
redis.call('DEL', CONFIRMED, DEATHS)
for i = 8, #A do redis.call('HDEL', JOINS, A[i]) end
if A[7] == '1' then
  redis.call('HDEL', RECORD, 'stop', 'finished')
  redis.call('DEL', ENDED)
end
redis.call('SET', ALIVE, '1', 'PX', ALIVE_MS)
changed()
touch()
return 'OK'
)lua";

constexpr char kRefuse[] = R"lua(
if not trusted() then return 'UNTRUSTED' end
if not same_generation() or get('seq') ~= A[1] then return 'CONFLICT' end
for i = 2, #A, 2 do
  redis.call('HSET', REFUSED, A[i], A[i + 1])
  redis.call('HDEL', JOINS, A[i])
end
changed()
touch()
return 'OK'
)lua";

// Entering ends when a later round has been opened or sealed: nobody comes late into a generation
// that was taken over.
constexpr char kEnter[] = R"lua(
local id = A[1]
if not trusted() then return 'UNTRUSTED' end
if is_dead(id) then return 'DEAD' end
if not same_generation() or not is_member(id) or get('round') ~= '0' then return 'CONFLICT' end
lease(id)
redis.call('SET', ALIVE, '1', 'PX', ALIVE_MS)
touch()
return 'OK'
)lua";

constexpr char kConfirm[] = R"lua(
local id = A[1]
if not trusted() then return 'UNTRUSTED' end
if is_dead(id) then return 'DEAD' end
if not same_generation() or not is_member(id) or get('round') ~= '0' then return 'CONFLICT' end
if redis.call('HSET', CONFIRMED, id, '1') == 1 then changed() end
redis.call('SET', ALIVE, '1', 'PX', ALIVE_MS)
touch()
return 'OK'
)lua";

constexpr char kLeave[] = R"lua(
local id = A[1]
if not trusted() then return 'UNTRUSTED' end
if is_dead(id) then return 'OK' end
if not same_generation() then return 'CONFLICT' end
redis.call('DEL', LEASE .. id)
redis.call('HDEL', STATUS, id)
redis.call('HDEL', JOINS, id)
if is_member(id) then redis.call('HSET', RECORD, 'round', A[3]) end
redis.call('HSET', DEATHS, id, A[2])
changed()
touch()
return 'OK'
)lua";

constexpr char kFinish[] = R"lua(
if not trusted() then return 'UNTRUSTED' end
if not get('finished') then
  redis.call('HSET', RECORD, 'finished', A[1])
  changed()
end
redis.call('SET', ENDED, A[2], 'PX', TTL)
touch()
return 'OK'
)lua";

constexpr char kCertify[] = R"lua(
if not trusted() then return 'UNTRUSTED' end
for i = 2, #A do
  local id = A[i]
  if redis.call('HSETNX', DEATHS, id, A[1]) == 1 then
    redis.call('DEL', LEASE .. id)
    redis.call('HDEL', JOINS, id)
    redis.call('HDEL', STATUS, id)
    changed()
  end
end
touch()
return 'OK'
)lua";

constexpr char kStop[] = R"lua(
if not trusted() then return 'UNTRUSTED' end
if not get('stop') then
  redis.call('HSET', RECORD, 'stop', A[1])
  changed()
end
touch()
return 'OK'
)lua";

// Nobody is left when every member is certified dead or has left, and no joiner has a lease. A:
// ended, then the ids.
constexpr char kCleanUp[] = R"lua(
for i = 2, #A do redis.call('DEL', LEASE .. A[i]) end
if not trusted() then return 'UNTRUSTED' end
for i = 2, #A do
  if redis.call('HDEL', JOINS, A[i]) == 1 then changed() end
  redis.call('HDEL', STATUS, A[i])
end
for id in string.gmatch(get('members') or '', '%S+') do
  if not is_dead(id) then return 'OK' end
end
for _, id in ipairs(redis.call('HKEYS', JOINS)) do
  if redis.call('EXISTS', LEASE .. id) == 1 then return 'OK' end
end
if redis.call('EXISTS', ENDED) == 0 then redis.call('SET', ENDED, A[1], 'PX', TTL) end
redis.call('DEL', RECORD, JOINS, DEATHS, CONFIRMED, REFUSED, STATUS, ALIVE)
return 'OK'
)lua";

RedisScript Make(std::string_view body) {
  RedisScript script;
  script.text = Cat(kPrelude, body);
  unsigned char hash[SHA_DIGEST_LENGTH];
  SHA1(reinterpret_cast<const unsigned char*>(script.text.data()), script.text.size(), hash);
  script.sha1 = Hex(std::string_view(reinterpret_cast<const char*>(hash), sizeof hash));
  return script;
}

}  // namespace

const RedisScripts& Scripts() {
  static const RedisScripts* scripts =
      new RedisScripts{Make(kRead),    Make(kBeat),  Make(kFound),   Make(kJoin),  Make(kSeal),
                       Make(kRefuse),  Make(kEnter), Make(kConfirm), Make(kLeave), Make(kFinish),
                       Make(kCertify), Make(kStop),  Make(kCleanUp)};
  return *scripts;
}

}  // namespace holdfast::rendezvous
