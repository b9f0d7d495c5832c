// What the protocol needs of a store: reading the record, and a handful of atomic, fenced,
// repeatable changes to it. One object is one connection's worth of work: not thread-safe, one per
// thread.
//
// Every call is bounded in time. An error status means that the outcome is unknown (a reply may
// have been lost): read the record again before deciding anything; each change may safely be sent
// twice.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/record.h"
#include "rendezvous/seal.h"

namespace holdfast::rendezvous {

// What a change must find to be applied.
struct Fence {
  std::string uuid;
  std::string store_id;
  uint64_t generation = 0, nonce = 0;
};

enum class Outcome : uint8_t {
  kApplied,    // or had been applied before by the same request
  kConflict,   // the record has moved on: read it again
  kUntrusted,  // another run, another store, or no record
  kDead,       // the asking process is certified dead
};

class Store {
 public:
  virtual ~Store() = default;
  // `asking`: whose refusal to look up; may be empty. `with_status`: also what the workers say
  // about themselves.
  virtual absl::StatusOr<Record> Read(std::string_view asking, bool with_status) = 0;
  // Renews the lease of `id` and, for a member of the fenced generation, the run's "alive" mark;
  // then reads.
  virtual absl::StatusOr<Record> Beat(const Fence& fence, std::string_view id,
                                      std::string_view status) = 0;
  // Makes the record when there is none. `generation`: highest number ever used by a lost record of
  // this run.
  virtual absl::StatusOr<Outcome> Found(std::string_view uuid, std::string_view secret,
                                        uint64_t generation) = 0;
  virtual absl::StatusOr<Outcome> Join(const Fence& fence, const Waiting& waiting) = 0;
  virtual absl::StatusOr<Outcome> Seal(const Fence& fence, uint64_t seq, const SealPlan& plan,
                                       uint64_t new_nonce) = 0;
  virtual absl::StatusOr<Outcome> Refuse(const Fence& fence, uint64_t seq,
                                         const std::vector<Refusal>& refusals) = 0;
  virtual absl::StatusOr<Outcome> Enter(const Fence& fence, std::string_view id) = 0;
  virtual absl::StatusOr<Outcome> Confirm(const Fence& fence, std::string_view id) = 0;
  // Final for `id`: it is never waited for again.
  virtual absl::StatusOr<Outcome> Leave(const Fence& fence, std::string_view id) = 0;
  virtual absl::StatusOr<Outcome> Finish(const Fence& fence, int64_t step, uint64_t digest) = 0;
  virtual absl::StatusOr<Outcome> Certify(const Fence& fence, const std::vector<std::string>& ids,
                                          std::string_view how) = 0;
  virtual absl::StatusOr<Outcome> Stop(const Fence& fence, std::string_view stop_id,
                                       std::string_view reason) = 0;
  // Removes what these processes left; with nobody left anywhere, the whole record except
  // "finished".
  virtual absl::StatusOr<Outcome> CleanUp(const Fence& fence,
                                          const std::vector<std::string>& ids) = 0;
};

}  // namespace holdfast::rendezvous
