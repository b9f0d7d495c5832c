// The run's record as one snapshot: what the store holds about a run at one moment, decoded. Plain
// data; the decisions in seal.h and machine.h read it and nothing else. Encodings (JSON, 64-bit
// numbers as 16 hexadecimal digits) are those of PROTOCOL.md. Decoding never throws and never
// trusts: a damaged document is kDataLoss. Units: *_ms milliseconds. Containers are ordered, so
// that every process decides alike.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "rendezvous/membership.h"

namespace holdfast::rendezvous {

// One process that waits for the next generation.
struct Waiting {
  std::string id, machine;
  int slot = 0;
  Offer offer;
  uint64_t known_generation = 0;         // newest that its marks or its record name
  std::string reason;                    // for people
  uint64_t failed_generation = 0;        // a build of this generation failed here ...
  std::vector<std::string> unreachable;  // ... and these members could not be reached
};

// Builds or confirmations that failed because of one process, in a row.
struct Failures {
  int count = 0;
  int64_t until_store_ms = 0;  // left out until then, on the store's clock
};

// The newest sealed generation.
struct Sealed {
  std::vector<Member> members;
  std::set<std::string> newcomers;  // those that were in no generation before
  Source source = Source::kFresh;
  uint32_t branch = 0;
  Lineage lineage;  // branch is its newest
  int64_t step = 0;
  uint64_t digest = 0;
  HeldCheckpoint checkpoint;
  std::string note;
  std::string fingerprint, fingerprint_text, probe, compute_class;  // what a joiner must equal
  int64_t progress = 0;  // highest step that any offer so far has proved
  std::map<std::string, Failures> failures;
};

struct Record {
  bool exists = false;
  std::string store_id;      // run_id of the store that answered
  int64_t store_ms = 0;      // its clock; for back-off only
  std::string uuid, secret;  // of the run
  std::string founded_at;    // run_id of the store that the record was founded on
  uint64_t seq = 0;          // changes with everything that a decision reads, leases excepted
  uint64_t generation = 0, nonce = 0;
  uint64_t round = 0;  // number of the open round, 0: none
  Sealed sealed;
  std::map<std::string, Waiting> joins;
  std::map<std::string, std::string> deaths;  // id -> how; also who left on request
  std::set<std::string> confirmed;
  std::string refused;  // why the asking process was refused; empty: it was not
  std::map<std::string, int64_t> lease_left_ms;  // of members and joiners; absent: lapsed
  bool alive = false;                            // a member has renewed within redis_outage
  bool finished = false;
  int64_t finished_step = 0;
  uint64_t finished_digest = 0;
  // What an ended run leaves for a while: its uuid and the highest generation it used. `finished`
  // may be set beside it.
  std::string ended_uuid;
  uint64_t ended_generation = 0;
  std::string stop_id, stop_reason;
  std::map<std::string, std::string> status;  // id -> JSON, when it was asked for

  const Member* FindMember(std::string_view id) const;
  bool Leased(const std::string& id) const { return lease_left_ms.count(id) > 0; }
};

inline constexpr char kLeftOnRequest[] = "left on request";

std::string EncodeWaiting(const Waiting& waiting);
absl::StatusOr<Waiting> DecodeWaiting(std::string_view text);
std::string EncodeSealed(const Sealed& sealed);
absl::StatusOr<Sealed> DecodeSealed(std::string_view text);

// "machine/slot", as people read it.
std::string Name(const Member& member);
std::string Name(const Waiting& waiting);

}  // namespace holdfast::rendezvous
