// Membership as the training session and the supervisor see it: leave a generation, join the next
// round, enter the sealed roster; notices in between. The rules (who may seal, which state is the
// source) are in PROTOCOL.md; the decisions are taken by a pure state machine (machine.h). Join
// carries out its actions in the caller's thread, on a connection of its own; a control thread
// renews the lease and gathers the notices on a second one.
//
// Threads: Join, Confirm, Leave and Finish block and belong to the worker's main thread; notices()
// and the setters are cheap and may be called from any thread. Errors: kUnavailable: the store
// cannot be reached (the state is intact, try again); kFailedPrecondition: this worker may not take
// part (the message names the key, digest or run that differs, and what to do); kCancelled;
// kDeadlineExceeded.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/lineage.h"
#include "runtime/base/clock.h"

namespace holdfast::rendezvous {

// A checkpoint that a worker can read from the stores it looks after (its own, and those of its
// machine that have no worker now): which chunk ordinals, as half-open ranges.
struct HeldCheckpoint {
  uint32_t branch = 0;
  int64_t step = 0;
  uint64_t generation = 0;
  uint64_t state_digest = 0;
  int64_t chunks = 0;                               // of the whole checkpoint
  std::vector<std::pair<int64_t, int64_t>> ranges;  // [first, last)
  std::vector<std::string> hosts;                   // machines that the manifest names as writers
};

// What a worker brings into a round.
struct Offer {
  std::string address;  // where its TcpEndpoint listens
  int port = 0;
  std::string fingerprint;       // of everything that moves bits: must be equal
  std::string fingerprint_text;  // "key = value" lines, to name the one that differs
  std::string probe;             // digest of the probe computation: equal = same compute class
  std::string compute_class;     // names, to explain a refusal
  uint32_t branch = 0;           // the newest of `lineage`
  Lineage lineage;               // what this process's stores know of the run's branches
  std::string schedule;          // that it wants from now on; part of the fingerprint too
  bool has_state = false;        // an unmarked state in memory
  int64_t step = 0;              // of that state
  uint64_t digest = 0;
  bool vouched = false;                     // its digest was agreed in a table
  std::vector<HeldCheckpoint> checkpoints;  // on the lineage of `branch` only, newest first
  int64_t progress = 0;     // highest step that any record it knows of proves (logs, manifests)
  bool spare_only = false;  // taken in only when the world would be below min_workers without it
  // How many workers this machine's supervisor started together: the first round (and the first one
  // after a total loss) waits up to 2 s for all of them. 0: unknown.
  int expected_local_workers = 0;
  // The newest (step, digest) that this process saw agreed in a table, -1 for none: it vouches for
  // any holder of it.
  int64_t agreed_step = -1;
  uint64_t agreed_digest = 0;
};

struct Member {
  std::string id;       // one process incarnation
  std::string machine;  // one supervisor
  int slot = 0;         // worker number on its machine
  std::string address;
  int port = 0;
  bool has_state = false;  // holds exactly the roster's (step, digest) in memory
  std::vector<std::pair<int64_t, int64_t>>
      ranges;  // source checkpoint: chunks that this member shall read
};

enum class Source : uint8_t { kFresh, kMemory, kCheckpoint };

struct Roster {
  std::string run;     // run uuid
  std::string secret;  // for the communicator's hello; never logged
  uint64_t generation = 0, nonce = 0;
  std::vector<Member> members;  // index = rank: survivors in their old order, then newcomers
  int rank = -1;                // of this process; -1: not a member, a spare
  Source source = Source::kFresh;
  uint32_t branch = 0;        // the newest of `lineage`: what is done from here on belongs to it
  Lineage lineage;            // to be made durable before the generation is confirmed
  int64_t step = 0;           // of the source state
  uint64_t digest = 0;        // of the source state; 0 for kFresh
  HeldCheckpoint checkpoint;  // source kCheckpoint
  std::string note;           // for people: why this source, who was left out and why
};

// What the control thread knows now. Monotone within a generation except for the counters and ages.
struct Notices {
  int joiners =
      0;  // processes that wait, ready, for the next generation (0 when the world is full)
  bool stop = false;          // `holdfast stop`, a person's wish: sticky
  bool round_open = false;    // somebody has proposed a later generation: this one has ended
  bool finished = false;      // the run is recorded as finished
  int64_t finished_step = 0;  // where it ended and with which state, once Enter has said so
  uint64_t finished_digest = 0;
  bool store_replaced = false;  // emptied, replaced or older than known: save and stop
  std::string store_text;       // about store_replaced or the last error
  int64_t contact_age_ms = 0;   // since the last answer of the store
  uint64_t store_id = 0;        // hash of the store's run_id
};

struct MembershipOptions {
  std::string redis_host = "127.0.0.1";
  int redis_port = 6379;
  std::string redis_password, redis_user;  // never logged
  std::string run;                         // its name
  std::string member_id, machine;
  int slot = 0, pid = 0;
  int min_workers = 1, max_workers = 64;
  int64_t lease_ms = 3000, renew_ms = 1000;
  int64_t restore_wait_ms = 60'000;
  int64_t redis_outage_ms = 600'000;
  int64_t rendezvous_ms = 120'000;
  bool may_found = false;  // this supervisor started the store, so an empty one means a new run
  int64_t key_ttl_ms = 86'400'000;               // every key expires so long after the last touch
  int64_t connect_ms = 1000, command_ms = 1000;  // bounds of one connection attempt, of one command
  int64_t found_window_ms =
      3000;  // an empty store that this supervisor did not start is watched so long before founding
  int64_t gather_ms = 2000;  // a first round waits so long for expected_local_workers
  // The run's last step: a record "finished" of a smaller step does not end the run. 0: any
  // finished record ends it.
  int64_t target_step = 0;
  bool fresh = false;  // begin anew although a run of this name is recorded as finished
};

// Durable marks of one slot, written (synced) by the worker's store before the act that they
// announce.
class SlotMarks {
 public:
  virtual ~SlotMarks() = default;
  [[nodiscard]] virtual absl::Status Put(std::string_view key, std::string_view value) = 0;
  virtual absl::StatusOr<std::string> Get(std::string_view key) const = 0;  // kNotFound
};

class Membership {
 public:
  // Connects, registers the lease, starts the control thread. kUnavailable when the store is not
  // there (retried until `deadline`, one log line a second at most), kUnauthenticated /
  // kFailedPrecondition for a wrong password, a replica, a full disk.
  static absl::StatusOr<std::unique_ptr<Membership>> Start(const MembershipOptions& options,
                                                           SlotMarks* marks, Deadline deadline);
  virtual ~Membership() = default;

  // Leaves the current generation for good ("left g" durable first), proposes or joins the next
  // round and waits until a roster is sealed that settles this process: as a member (rank >= 0). As
  // a spare it keeps waiting. kCancelled when *cancel becomes true; kFailedPrecondition when
  // refused; kDataLoss when the run has progress on record and no state of it is usable;
  // kAlreadyExists when the run is finished or was stopped.
  virtual absl::StatusOr<Roster> Join(const Offer& offer, std::string_view reason,
                                      const std::atomic<bool>& cancel, Deadline deadline) = 0;
  // After the communicator stands and the state's digest was checked: the generation is durable
  // here and confirmed there. kAborted: the round was superseded; Join again.
  [[nodiscard]] virtual absl::Status Confirm(const Roster& roster) = 0;
  // Build or state transfer failed: told to the next round (`unreachable`: ranks of `roster` that
  // could not be reached).
  virtual void ReportFailedBuild(const Roster& roster, const std::vector<int>& unreachable) = 0;
  // An orderly end of this process's membership: lease and waiting entries are removed, "left on
  // request" is recorded. Waits, at most until `deadline`, for a successor generation without this
  // process to be sealed (if others remain).
  virtual absl::Status Leave(Deadline deadline) = 0;
  // The final step and its manifest are durable on all: recorded, so that a newcomer hears
  // "finished". Idempotent.
  virtual absl::Status Finish(int64_t step, uint64_t digest) = 0;

  virtual Notices notices() const = 0;
  // For `holdfast status`: short text of what this worker does ("training", "saving", ...), and its
  // progress.
  virtual void SetStatus(std::string_view phase, int64_t step, int world_size, double loss) = 0;
};

// The supervisor's side, and the commands': no membership of its own.
class Observer {
 public:
  static absl::StatusOr<std::unique_ptr<Observer>> Connect(const MembershipOptions& options,
                                                           Deadline deadline);
  virtual ~Observer() = default;
  // The child `member_id` was reaped: its death certificate. Idempotent; `how` for people
  // ("SIGKILL").
  [[nodiscard]] virtual absl::Status CertifyDeath(std::string_view member_id,
                                                  std::string_view how) = 0;
  // All processes that `machine` ever had in this run are dead: to be called by a supervisor that
  // holds the lock of its
  // --dir, before it starts workers. Ends the waiting for those that an earlier supervisor could
  // not certify any more.
  [[nodiscard]] virtual absl::Status CertifyMachine(std::string_view machine,
                                                    std::string_view how) = 0;
  // A sticky wish of a person: all workers save and stop at a step boundary.
  [[nodiscard]] virtual absl::Status RequestStop(std::string_view reason) = 0;
  // The whole record and the leases as JSON, for `holdfast status`: {run, generation, members:
  // [{id, machine, slot, phase, step, lease_ms}], finished, ...}.
  virtual absl::StatusOr<std::string> StatusJson() = 0;
  // Removes what this machine's workers left (waiting entries, leases); with no live member left
  // anywhere all keys of the run.
  [[nodiscard]] virtual absl::Status CleanUp(std::string_view machine) = 0;
};

}  // namespace holdfast::rendezvous
