// The operations of Store as a model in memory, with the semantics of the Lua scripts and a virtual
// clock. For the tests of the protocol under faults; one process's calls at a time.
#pragma once

#include <map>
#include <set>
#include <string>

#include "rendezvous/store.h"

namespace holdfast::rendezvous {

class ModelStore : public Store {
 public:
  ModelStore(const int64_t* now_ms, int64_t lease_ms, int64_t outage_ms)
      : now_ms_(now_ms), lease_ms_(lease_ms), outage_ms_(outage_ms) {}

  absl::StatusOr<Record> Read(std::string_view asking, bool) override {
    Record out = record_;
    out.store_id = store_id;
    out.store_ms = *now_ms_;
    out.alive = *now_ms_ < alive_until_;
    const auto refused = refused_.find(std::string(asking));
    if (refused != refused_.end()) out.refused = refused->second;
    for (const auto& [id, until] : leases_) {
      const bool listed = record_.FindMember(id) != nullptr || record_.joins.count(id) > 0;
      if (listed && until > *now_ms_) out.lease_left_ms[id] = until - *now_ms_;
    }
    return out;
  }
  absl::StatusOr<Record> Beat(const Fence& fence, std::string_view id, std::string_view) override {
    const std::string name(id);
    if (!record_.exists) {
      Lease(name);
    } else if (Trusted(fence) && record_.deaths.count(name) == 0) {
      Lease(name);
      if (record_.FindMember(id) != nullptr) alive_until_ = *now_ms_ + outage_ms_;
    }
    return Read(id, false);
  }
  absl::StatusOr<Outcome> Found(std::string_view uuid, std::string_view secret,
                                uint64_t generation) override {
    if (record_.exists) return record_.uuid == uuid ? Outcome::kApplied : Outcome::kConflict;
    record_ = Record();
    record_.exists = true;
    record_.uuid = uuid;
    record_.secret = secret;
    record_.founded_at = store_id;
    record_.generation = generation;
    record_.seq = 1;
    return Outcome::kApplied;
  }
  absl::StatusOr<Outcome> Join(const Fence& fence, const Waiting& waiting) override {
    if (!Trusted(fence)) return Outcome::kUntrusted;
    if (record_.deaths.count(waiting.id) > 0) return Outcome::kDead;
    if (!SameGeneration(fence)) return Outcome::kConflict;
    Lease(waiting.id);
    const auto it = record_.joins.find(waiting.id);
    if (it != record_.joins.end() && EncodeWaiting(it->second) == EncodeWaiting(waiting)) {
      return Outcome::kApplied;
    }
    record_.joins[waiting.id] = waiting;
    refused_.erase(waiting.id);
    if (record_.FindMember(waiting.id) != nullptr) record_.round = record_.generation + 1;
    ++record_.seq;
    return Outcome::kApplied;
  }
  absl::StatusOr<Outcome> Seal(const Fence& fence, uint64_t seq, const SealPlan& plan,
                               uint64_t nonce) override {
    if (!Trusted(fence)) return Outcome::kUntrusted;
    if (record_.nonce == nonce) return Outcome::kApplied;
    if (!SameGeneration(fence) || record_.seq != seq) return Outcome::kConflict;
    if (plan.take_over && *now_ms_ < alive_until_) return Outcome::kConflict;
    record_.generation = plan.generation;
    record_.nonce = nonce;
    record_.sealed = plan.sealed;
    record_.round = 0;
    record_.confirmed.clear();
    record_.deaths.clear();
    for (const Member& m : plan.sealed.members) record_.joins.erase(m.id);
    for (const std::string& id : plan.dropped) record_.joins.erase(id);
    alive_until_ = *now_ms_ + outage_ms_;
    ++record_.seq;
    return Outcome::kApplied;
  }
  absl::StatusOr<Outcome> Refuse(const Fence& fence, uint64_t seq,
                                 const std::vector<Refusal>& refusals) override {
    if (!Trusted(fence)) return Outcome::kUntrusted;
    if (!SameGeneration(fence) || record_.seq != seq) return Outcome::kConflict;
    for (const Refusal& r : refusals) {
      refused_[r.id] = r.why;
      record_.joins.erase(r.id);
    }
    ++record_.seq;
    return Outcome::kApplied;
  }
  absl::StatusOr<Outcome> Enter(const Fence& fence, std::string_view id) override {
    return Be(fence, id, false);
  }
  absl::StatusOr<Outcome> Confirm(const Fence& fence, std::string_view id) override {
    return Be(fence, id, true);
  }
  absl::StatusOr<Outcome> Leave(const Fence& fence, std::string_view id) override {
    if (!Trusted(fence)) return Outcome::kUntrusted;
    const std::string name(id);
    if (record_.deaths.count(name) > 0) return Outcome::kApplied;
    if (!SameGeneration(fence)) return Outcome::kConflict;
    if (record_.FindMember(id) != nullptr) record_.round = record_.generation + 1;
    return Gone(name, kLeftOnRequest);
  }
  absl::StatusOr<Outcome> Finish(const Fence& fence, int64_t step, uint64_t digest) override {
    if (!Trusted(fence)) return Outcome::kUntrusted;
    record_.finished = true;
    record_.finished_step = step;
    record_.finished_digest = digest;
    return Outcome::kApplied;
  }
  absl::StatusOr<Outcome> Certify(const Fence& fence, const std::vector<std::string>& ids,
                                  std::string_view how) override {
    if (!Trusted(fence)) return Outcome::kUntrusted;
    for (const std::string& id : ids) {
      if (record_.deaths.count(id) == 0) (void)Gone(id, how);
    }
    return Outcome::kApplied;
  }
  absl::StatusOr<Outcome> Stop(const Fence& fence, std::string_view id,
                               std::string_view reason) override {
    if (!Trusted(fence)) return Outcome::kUntrusted;
    record_.stop_id = id;
    record_.stop_reason = reason;
    return Outcome::kApplied;
  }
  absl::StatusOr<Outcome> CleanUp(const Fence&, const std::vector<std::string>&) override {
    return Outcome::kApplied;
  }
  Fence CurrentFence() const { return {record_.uuid, store_id, record_.generation, record_.nonce}; }

  std::string store_id = "store-1";

 private:
  bool Trusted(const Fence& f) const {
    return record_.exists && record_.uuid == f.uuid && f.store_id == store_id &&
           record_.founded_at == store_id;
  }
  bool SameGeneration(const Fence& f) const {
    return record_.generation == f.generation && record_.nonce == f.nonce;
  }
  void Lease(const std::string& id) { leases_[id] = *now_ms_ + lease_ms_; }
  absl::StatusOr<Outcome> Be(const Fence& fence, std::string_view id, bool confirm) {
    const std::string name(id);
    if (!Trusted(fence)) return Outcome::kUntrusted;
    if (record_.deaths.count(name) > 0) return Outcome::kDead;
    if (!SameGeneration(fence) || record_.FindMember(id) == nullptr || record_.round != 0) {
      return Outcome::kConflict;
    }
    alive_until_ = *now_ms_ + outage_ms_;
    if (confirm && record_.confirmed.insert(name).second) ++record_.seq;
    return Outcome::kApplied;
  }
  absl::StatusOr<Outcome> Gone(const std::string& id, std::string_view how) {
    record_.deaths[id] = how;
    record_.joins.erase(id);
    leases_.erase(id);
    ++record_.seq;
    return Outcome::kApplied;
  }

  const int64_t* now_ms_;
  const int64_t lease_ms_, outage_ms_;
  Record record_;
  std::map<std::string, std::string> refused_;
  std::map<std::string, int64_t> leases_;
  int64_t alive_until_ = 0;
};

}  // namespace holdfast::rendezvous
