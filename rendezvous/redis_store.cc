#include "rendezvous/redis_store.h"

#include <charconv>
#include <utility>

#include "rendezvous/redis_scripts.h"
#include "runtime/base/digest.h"
#include "runtime/base/status.h"

namespace holdfast::rendezvous {
namespace {

using Kind = RedisReply::Kind;

absl::Status Damaged(std::string_view what) {
  return absl::DataLossError(Cat("the run's record in Redis is damaged: ", what));
}

template <typename T>
bool ParseNumber(std::string_view text, T* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

// A flat list [key, value, key, value, ...] of texts or integers.
absl::StatusOr<std::map<std::string, std::string>> Pairs(const RedisReply& reply) {
  std::map<std::string, std::string> out;
  if (reply.kind != Kind::kList || reply.list.size() % 2 != 0)
    return Damaged("a list of pairs is none");
  for (size_t i = 0; i < reply.list.size(); i += 2) {
    const RedisReply &key = reply.list[i], &value = reply.list[i + 1];
    if (key.kind != Kind::kText || (value.kind != Kind::kText && value.kind != Kind::kInteger)) {
      return Damaged("a pair is none");
    }
    out[key.text] = value.kind == Kind::kText ? value.text : Cat(value.integer);
  }
  return out;
}

// "uuid generation step digest"; step -1: ended, but not finished.
bool ParseEnded(const std::string& text, Record* record) {
  const size_t a = text.find(' '), b = text.find(' ', a + 1), c = text.find(' ', b + 1);
  if (a == std::string::npos || b == std::string::npos || c == std::string::npos) return false;
  record->ended_uuid = text.substr(0, a);
  int64_t step = 0;
  if (!ParseNumber(std::string_view(text).substr(a + 1, b - a - 1), &record->ended_generation) ||
      !ParseNumber(std::string_view(text).substr(b + 1, c - b - 1), &step) ||
      !ParseHex64(std::string_view(text).substr(c + 1), &record->finished_digest)) {
    return false;
  }
  record->finished = step >= 0;
  record->finished_step = step;
  return true;
}

absl::Status ParseFields(std::map<std::string, std::string> fields, Record* record) {
  record->exists = !fields.empty();
  if (!record->exists) return absl::OkStatus();
  record->uuid = fields["uuid"];
  record->secret = fields["secret"];
  record->founded_at = fields["store"];
  if (record->uuid.empty() || record->secret.empty()) return Damaged("no uuid or secret");
  if (!ParseNumber(fields["seq"], &record->seq) || !ParseNumber(fields["round"], &record->round) ||
      !ParseNumber(fields["generation"], &record->generation)) {
    return Damaged("seq, round or generation");
  }
  if (fields["nonce"] != "0" && !ParseHex64(fields["nonce"], &record->nonce))
    return Damaged("nonce");
  if (!fields["sealed"].empty()) {
    HF_ASSIGN_OR_RETURN(record->sealed, DecodeSealed(fields["sealed"]));
  }
  if (!fields["finished"].empty()) {
    Record finished;
    if (!ParseEnded(fields["finished"], &finished)) return Damaged("finished");
    record->finished = true;
    record->finished_step = finished.finished_step;
    record->finished_digest = finished.finished_digest;
  } else {
    record->finished = false;
  }
  const std::string& stop = fields["stop"];
  record->stop_id = stop.substr(0, stop.find(' '));
  if (stop.find(' ') != std::string::npos) record->stop_reason = stop.substr(stop.find(' ') + 1);
  return absl::OkStatus();
}

absl::StatusOr<Record> ParseRecord(const RedisReply& reply) {
  if (reply.kind != Kind::kList || reply.list.size() != 12)
    return Damaged("the answer has another shape");
  const std::vector<RedisReply>& r = reply.list;
  Record record;
  record.store_id = r[0].text;
  if (record.store_id.empty()) return Damaged("INFO server shows no run_id; is this a Redis?");
  int64_t seconds = 0, micros = 0;
  if (!ParseNumber(r[1].text, &seconds) || !ParseNumber(r[2].text, &micros)) return Damaged("TIME");
  record.store_ms = seconds * 1000 + micros / 1000;
  // The record's own "finished" is read after the trace, and wins.
  if (!r[10].text.empty() && !ParseEnded(r[10].text, &record))
    return Damaged("the trace of an ended run");
  HF_ASSIGN_OR_RETURN(auto fields, Pairs(r[3]));
  HF_RETURN_IF_ERROR(ParseFields(std::move(fields), &record));
  HF_ASSIGN_OR_RETURN(const auto joins, Pairs(r[4]));
  for (const auto& [id, text] : joins) {
    HF_ASSIGN_OR_RETURN(Waiting waiting, DecodeWaiting(text));
    if (waiting.id != id) return Damaged("a join under another's id");
    record.joins.emplace(id, std::move(waiting));
  }
  HF_ASSIGN_OR_RETURN(record.deaths, Pairs(r[5]));
  if (r[6].kind != Kind::kList) return Damaged("confirmed");
  for (const RedisReply& id : r[6].list) record.confirmed.insert(id.text);
  record.refused = r[7].text;
  HF_ASSIGN_OR_RETURN(const auto leases, Pairs(r[8]));
  for (const auto& [id, left] : leases) {
    if (!ParseNumber(left, &record.lease_left_ms[id])) return Damaged("a lease");
  }
  record.alive = r[9].integer != 0;
  HF_ASSIGN_OR_RETURN(record.status, Pairs(r[11]));
  return record;
}

class RedisStore : public Store {
 public:
  explicit RedisStore(const RedisStoreOptions& options)
      : options_(options), connection_(options.endpoint) {
    const std::string prefix = Cat("holdfast:{", options.run, "}:");
    for (const char* name : {"record", "joins", "deaths", "confirmed", "refused", "status", "alive",
                             "ended", "lease:"}) {
      keys_.push_back(Cat(prefix, name));
    }
  }

  absl::StatusOr<Record> Read(std::string_view asking, bool with_status) override {
    HF_ASSIGN_OR_RETURN(RedisReply reply,
                        Run(Scripts().read, {}, {std::string(asking), with_status ? "1" : "0"}));
    return ParseRecord(reply);
  }

  absl::StatusOr<Record> Beat(const Fence& fence, std::string_view id,
                              std::string_view status) override {
    HF_ASSIGN_OR_RETURN(RedisReply reply,
                        Run(Scripts().beat, fence, {std::string(id), std::string(status)}));
    return ParseRecord(reply);
  }

  absl::StatusOr<Outcome> Found(std::string_view uuid, std::string_view secret,
                                uint64_t generation) override {
    Fence fence;
    fence.uuid = uuid;
    return Change(Scripts().found, fence, {std::string(secret), Cat(generation)});
  }

  absl::StatusOr<Outcome> Join(const Fence& fence, const Waiting& waiting) override {
    return Change(Scripts().join, fence,
                  {waiting.id, EncodeWaiting(waiting), Cat(fence.generation + 1)});
  }

  absl::StatusOr<Outcome> Seal(const Fence& fence, uint64_t seq, const SealPlan& plan,
                               uint64_t new_nonce) override {
    std::string members;
    std::vector<std::string> removed = plan.dropped;
    for (const Member& m : plan.sealed.members) {
      members += Cat(members.empty() ? "" : " ", m.id);
      removed.push_back(m.id);
    }
    std::vector<std::string> arguments = {
        Cat(seq), Cat(plan.generation),       Hex64(new_nonce),     EncodeSealed(plan.sealed),
        members,  plan.take_over ? "1" : "0", plan.cold ? "1" : "0"};
    arguments.insert(arguments.end(), removed.begin(), removed.end());
    return Change(Scripts().seal, fence, std::move(arguments));
  }

  absl::StatusOr<Outcome> Refuse(const Fence& fence, uint64_t seq,
                                 const std::vector<Refusal>& refusals) override {
    std::vector<std::string> arguments = {Cat(seq)};
    for (const Refusal& r : refusals) {
      arguments.push_back(r.id);
      arguments.push_back(r.why);
    }
    return Change(Scripts().refuse, fence, std::move(arguments));
  }

  absl::StatusOr<Outcome> Enter(const Fence& fence, std::string_view id) override {
    return Change(Scripts().enter, fence, {std::string(id)});
  }
  absl::StatusOr<Outcome> Confirm(const Fence& fence, std::string_view id) override {
    return Change(Scripts().confirm, fence, {std::string(id)});
  }
  absl::StatusOr<Outcome> Leave(const Fence& fence, std::string_view id) override {
    return Change(Scripts().leave, fence,
                  {std::string(id), kLeftOnRequest, Cat(fence.generation + 1)});
  }
  absl::StatusOr<Outcome> Finish(const Fence& fence, int64_t step, uint64_t digest) override {
    const std::string ended = Cat(fence.uuid, " ", fence.generation, " ", step, " ", Hex64(digest));
    return Change(Scripts().finish, fence, {ended, ended});
  }
  absl::StatusOr<Outcome> Certify(const Fence& fence, const std::vector<std::string>& ids,
                                  std::string_view how) override {
    std::vector<std::string> arguments = {std::string(how)};
    arguments.insert(arguments.end(), ids.begin(), ids.end());
    return Change(Scripts().certify, fence, std::move(arguments));
  }
  absl::StatusOr<Outcome> Stop(const Fence& fence, std::string_view stop_id,
                               std::string_view reason) override {
    return Change(Scripts().stop, fence, {Cat(stop_id, " ", reason)});
  }
  absl::StatusOr<Outcome> CleanUp(const Fence& fence,
                                  const std::vector<std::string>& ids) override {
    std::vector<std::string> arguments = {Cat(fence.uuid, " ", fence.generation, " -1 ", Hex64(0))};
    arguments.insert(arguments.end(), ids.begin(), ids.end());
    return Change(Scripts().clean_up, fence, std::move(arguments));
  }

 private:
  absl::StatusOr<RedisReply> Run(const RedisScript& script, const Fence& fence,
                                 const std::vector<std::string>& own) {
    std::vector<std::string> arguments = {fence.uuid,
                                          fence.store_id,
                                          Cat(fence.generation),
                                          fence.nonce == 0 ? "0" : Hex64(fence.nonce),
                                          Cat(options_.key_ttl_ms),
                                          Cat(options_.lease_ms),
                                          Cat(options_.redis_outage_ms)};
    arguments.insert(arguments.end(), own.begin(), own.end());
    return connection_.Script(script.text, script.sha1, keys_, arguments);
  }

  absl::StatusOr<Outcome> Change(const RedisScript& script, const Fence& fence,
                                 const std::vector<std::string>& own) {
    HF_ASSIGN_OR_RETURN(const RedisReply reply, Run(script, fence, own));
    if (reply.text == "OK") return Outcome::kApplied;
    if (reply.text == "CONFLICT") return Outcome::kConflict;
    if (reply.text == "UNTRUSTED") return Outcome::kUntrusted;
    if (reply.text == "DEAD") return Outcome::kDead;
    return Damaged("a script gave an unknown answer");
  }

  const RedisStoreOptions options_;
  RedisConnection connection_;
  std::vector<std::string> keys_;
};

}  // namespace

std::unique_ptr<Store> MakeRedisStore(const RedisStoreOptions& options) {
  return std::make_unique<RedisStore>(options);
}

}  // namespace holdfast::rendezvous
