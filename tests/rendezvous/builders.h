// Small makers of records and offers for the tests of the pure rules.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/record.h"
#include "runtime/base/text.h"

namespace holdfast::rendezvous {

inline Waiting MakeWaiting(const std::string& id, const std::string& machine = "a", int slot = 0) {
  Waiting w;
  w.id = id;
  w.machine = machine;
  w.slot = slot;
  w.offer.fingerprint = std::string("f");
  w.offer.fingerprint_text = std::string("seed = 7\n");
  w.offer.probe = std::string("p");
  w.offer.compute_class = std::string("avx2");
  return w;
}

inline Waiting WithState(Waiting w, int64_t step, uint64_t digest, bool vouched) {
  w.offer.has_state = true;
  w.offer.step = step;
  w.offer.digest = digest;
  w.offer.vouched = vouched;
  w.offer.progress = step;
  return w;
}

inline HeldCheckpoint MakeCheckpoint(int64_t step, std::vector<std::pair<int64_t, int64_t>> ranges,
                                     int64_t chunks = 10) {
  HeldCheckpoint c;
  c.step = step;
  c.generation = 1;
  c.state_digest = static_cast<uint64_t>(step) + 1000;
  c.chunks = chunks;
  c.ranges = std::move(ranges);
  return c;
}

// Generation `generation` of the members `ids` (machine "a", slots in order), all with a lease,
// none in a round.
inline Record MakeRecord(uint64_t generation, const std::vector<std::string>& ids) {
  Record r;
  r.exists = true;
  r.store_id = r.founded_at = std::string("store");
  r.uuid = std::string("uuid");
  r.secret = std::string("secret");
  r.generation = generation;
  r.nonce = generation * 7 + 1;
  r.alive = true;
  r.seq = 1;
  r.sealed.fingerprint = std::string("f");
  r.sealed.fingerprint_text = std::string("seed = 7\n");
  r.sealed.probe = std::string("p");
  r.sealed.compute_class = std::string("avx2");
  int slot = 0;
  for (const std::string& id : ids) {
    Member m;
    m.id = id;
    m.machine = std::string("a");
    m.slot = slot++;
    r.sealed.members.push_back(m);
    r.lease_left_ms[id] = 1000;
    r.confirmed.insert(id);
  }
  return r;
}

inline void AddJoin(Record* r, const Waiting& w) {
  r->joins[w.id] = w;
  r->lease_left_ms[w.id] = 1000;
  if (r->FindMember(w.id) != nullptr) r->round = r->generation + 1;
  ++r->seq;
}

}  // namespace holdfast::rendezvous
