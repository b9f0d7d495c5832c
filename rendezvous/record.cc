#include "rendezvous/record.h"

#include <nlohmann/json.hpp>

#include "runtime/base/digest.h"
#include "runtime/base/status.h"

namespace holdfast::rendezvous {
namespace {

using Json = nlohmann::json;

// A document is read through this: a member that is missing or of another type fails the whole
// document.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object), ok_(object.is_object()) {}
  int64_t Int(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr || !value->is_number_integer()) return Fail<int64_t>();
    return value->get<int64_t>();
  }
  std::string Text(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr || !value->is_string()) return Fail<std::string>();
    return value->get<std::string>();
  }
  uint64_t Word(const char* key) {
    uint64_t word = 0;
    if (!ParseHex64(Text(key), &word)) return Fail<uint64_t>();
    return word;
  }
  bool Flag(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr || !value->is_boolean()) return Fail<bool>();
    return value->get<bool>();
  }
  const Json& List(const char* key) {
    static const Json kEmpty = Json::array();
    const Json* value = Find(key);
    if (value == nullptr || !value->is_array()) {
      ok_ = false;
      return kEmpty;
    }
    return *value;
  }
  const Json& Object(const char* key) {
    static const Json kEmpty = Json::object();
    const Json* value = Find(key);
    if (value == nullptr || !value->is_object()) {
      ok_ = false;
      return kEmpty;
    }
    return *value;
  }
  std::vector<std::string> Texts(const char* key) {
    std::vector<std::string> out;
    for (const Json& item : List(key)) {
      if (!item.is_string()) return Fail<std::vector<std::string>>();
      out.push_back(item.get<std::string>());
    }
    return out;
  }
  // Half-open ranges [[first, last], ...]: ascending inside, never negative.
  std::vector<std::pair<int64_t, int64_t>> Ranges(const char* key) {
    std::vector<std::pair<int64_t, int64_t>> out;
    for (const Json& item : List(key)) {
      if (!item.is_array() || item.size() != 2 || !item[0].is_number_integer() ||
          !item[1].is_number_integer()) {
        return Fail<std::vector<std::pair<int64_t, int64_t>>>();
      }
      const int64_t first = item[0].get<int64_t>(), last = item[1].get<int64_t>();
      if (first < 0 || last < first) return Fail<std::vector<std::pair<int64_t, int64_t>>>();
      out.emplace_back(first, last);
    }
    return out;
  }
  void Require(bool condition) { ok_ = ok_ && condition; }
  bool ok() const { return ok_; }

 private:
  template <typename T>
  T Fail() {
    ok_ = false;
    return T();
  }
  const Json* Find(const char* key) {
    if (!object_.is_object()) return nullptr;
    const auto it = object_.find(key);
    return it == object_.end() ? nullptr : &*it;
  }
  const Json& object_;
  bool ok_;
};

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json ToJson(const HeldCheckpoint& c) {
  return {{"branch", c.branch},
          {"step", c.step},
          {"generation", Hex64(c.generation)},
          {"state_digest", Hex64(c.state_digest)},
          {"chunks", c.chunks},
          {"ranges", c.ranges},
          {"hosts", c.hosts}};
}

HeldCheckpoint CheckpointFrom(const Json& json, bool* ok) {
  Fields f(json);
  HeldCheckpoint c;
  c.branch = static_cast<uint32_t>(f.Int("branch"));
  c.step = f.Int("step");
  c.generation = f.Word("generation");
  c.state_digest = f.Word("state_digest");
  c.chunks = f.Int("chunks");
  c.ranges = f.Ranges("ranges");
  c.hosts = f.Texts("hosts");
  f.Require(c.chunks >= 0);
  *ok = *ok && f.ok();
  return c;
}

Json ToJson(const Lineage& lineage) {
  Json json = Json::array();
  for (const Fork& fork : lineage) json.push_back({fork.branch, fork.step, fork.schedule});
  return json;
}

Lineage LineageFrom(const Json& json, bool* ok) {
  Lineage lineage;
  for (const Json& item : json) {
    if (!item.is_array() || item.size() != 3 || !item[0].is_number_unsigned() ||
        !item[1].is_number_integer() || !item[2].is_string() || lineage.size() >= kMaxBranches) {
      *ok = false;
      return {};
    }
    lineage.push_back(
        {item[0].get<uint32_t>(), item[1].get<int64_t>(), item[2].get<std::string>()});
  }
  return lineage;
}

Json ToJson(const Offer& o) {
  Json checkpoints = Json::array();
  for (const HeldCheckpoint& c : o.checkpoints) checkpoints.push_back(ToJson(c));
  return {{"address", o.address},
          {"port", o.port},
          {"fingerprint", o.fingerprint},
          {"fingerprint_text", o.fingerprint_text},
          {"probe", o.probe},
          {"compute_class", o.compute_class},
          {"branch", o.branch},
          {"lineage", ToJson(o.lineage)},
          {"schedule", o.schedule},
          {"has_state", o.has_state},
          {"step", o.step},
          {"digest", Hex64(o.digest)},
          {"vouched", o.vouched},
          {"checkpoints", checkpoints},
          {"progress", o.progress},
          {"spare_only", o.spare_only},
          {"expected", o.expected_local_workers},
          {"agreed_step", o.agreed_step},
          {"agreed_digest", Hex64(o.agreed_digest)}};
}

Offer OfferFrom(const Json& json, bool* ok) {
  Fields f(json);
  Offer o;
  o.address = f.Text("address");
  o.port = static_cast<int>(f.Int("port"));
  o.fingerprint = f.Text("fingerprint");
  o.fingerprint_text = f.Text("fingerprint_text");
  o.probe = f.Text("probe");
  o.compute_class = f.Text("compute_class");
  o.branch = static_cast<uint32_t>(f.Int("branch"));
  bool inner_ok = true;
  o.lineage = LineageFrom(f.List("lineage"), &inner_ok);
  o.schedule = f.Text("schedule");
  o.has_state = f.Flag("has_state");
  o.step = f.Int("step");
  o.digest = f.Word("digest");
  o.vouched = f.Flag("vouched");
  for (const Json& c : f.List("checkpoints")) {
    o.checkpoints.push_back(CheckpointFrom(c, &inner_ok));
  }
  o.progress = f.Int("progress");
  o.spare_only = f.Flag("spare_only");
  o.expected_local_workers = static_cast<int>(f.Int("expected"));
  o.agreed_step = f.Int("agreed_step");
  o.agreed_digest = f.Word("agreed_digest");
  *ok = *ok && f.ok() && inner_ok;
  return o;
}

Json ToJson(const Member& m) {
  return {{"id", m.id},     {"machine", m.machine},     {"slot", m.slot},    {"address", m.address},
          {"port", m.port}, {"has_state", m.has_state}, {"ranges", m.ranges}};
}

Member MemberFrom(const Json& json, bool* ok) {
  Fields f(json);
  Member m;
  m.id = f.Text("id");
  m.machine = f.Text("machine");
  m.slot = static_cast<int>(f.Int("slot"));
  m.address = f.Text("address");
  m.port = static_cast<int>(f.Int("port"));
  m.has_state = f.Flag("has_state");
  m.ranges = f.Ranges("ranges");
  *ok = *ok && f.ok() && !m.id.empty();
  return m;
}

absl::Status Damaged(std::string_view what) {
  return absl::DataLossError(
      Cat("the run's record in Redis is damaged (", what,
          " cannot be read): another program writes under holdfast:{RUN}:, or versions differ"));
}

}  // namespace

const Member* Record::FindMember(std::string_view id) const {
  for (const Member& member : sealed.members) {
    if (member.id == id) return &member;
  }
  return nullptr;
}

std::string EncodeWaiting(const Waiting& w) {
  return Dump({{"id", w.id},
               {"machine", w.machine},
               {"slot", w.slot},
               {"offer", ToJson(w.offer)},
               {"known_generation", Hex64(w.known_generation)},
               {"reason", w.reason},
               {"failed_generation", Hex64(w.failed_generation)},
               {"unreachable", w.unreachable}});
}

absl::StatusOr<Waiting> DecodeWaiting(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Fields f(json);
  Waiting w;
  w.id = f.Text("id");
  w.machine = f.Text("machine");
  w.slot = static_cast<int>(f.Int("slot"));
  bool ok = true;
  w.offer = OfferFrom(f.Object("offer"), &ok);
  w.known_generation = f.Word("known_generation");
  w.reason = f.Text("reason");
  w.failed_generation = f.Word("failed_generation");
  w.unreachable = f.Texts("unreachable");
  if (!ok || !f.ok() || w.id.empty()) return Damaged("a join");
  return w;
}

std::string EncodeSealed(const Sealed& s) {
  Json members = Json::array(), failures = Json::object();
  for (const Member& m : s.members) members.push_back(ToJson(m));
  for (const auto& [id, f] : s.failures) failures[id] = {f.count, f.until_store_ms};
  return Dump({{"members", members},
               {"newcomers", s.newcomers},
               {"source", static_cast<int>(s.source)},
               {"branch", s.branch},
               {"lineage", ToJson(s.lineage)},
               {"step", s.step},
               {"digest", Hex64(s.digest)},
               {"checkpoint", ToJson(s.checkpoint)},
               {"note", s.note},
               {"fingerprint", s.fingerprint},
               {"fingerprint_text", s.fingerprint_text},
               {"probe", s.probe},
               {"compute_class", s.compute_class},
               {"progress", s.progress},
               {"failures", failures}});
}

absl::StatusOr<Sealed> DecodeSealed(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Fields f(json);
  Sealed s;
  bool ok = true;
  for (const Json& m : f.List("members")) s.members.push_back(MemberFrom(m, &ok));
  for (const std::string& id : f.Texts("newcomers")) s.newcomers.insert(id);
  const int64_t source = f.Int("source");
  ok = ok && source >= 0 && source <= static_cast<int64_t>(Source::kCheckpoint);
  s.source = static_cast<Source>(source);
  s.branch = static_cast<uint32_t>(f.Int("branch"));
  s.lineage = LineageFrom(f.List("lineage"), &ok);
  s.step = f.Int("step");
  s.digest = f.Word("digest");
  s.checkpoint = CheckpointFrom(f.Object("checkpoint"), &ok);
  s.note = f.Text("note");
  s.fingerprint = f.Text("fingerprint");
  s.fingerprint_text = f.Text("fingerprint_text");
  s.probe = f.Text("probe");
  s.compute_class = f.Text("compute_class");
  s.progress = f.Int("progress");
  for (const auto& [id, value] : f.Object("failures").items()) {
    if (!value.is_array() || value.size() != 2 || !value[0].is_number_integer() ||
        !value[1].is_number_integer()) {
      ok = false;
      break;
    }
    s.failures[id] = {value[0].get<int>(), value[1].get<int64_t>()};
  }
  if (!ok || !f.ok()) return Damaged("the sealed generation");
  return s;
}

std::string Name(const Member& m) { return Cat(m.machine, "/", m.slot); }
std::string Name(const Waiting& w) { return Cat(w.machine, "/", w.slot); }

}  // namespace holdfast::rendezvous
