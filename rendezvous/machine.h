// One Join as a pure state machine: events in, one action out. No I/O, no clock, no threads, no
// randomness; the worker (membership.cc) and a simulator run the same object code and differ only
// in who carries out the actions. Every action boundary is a point at which the process may die
// without harm: that is what the protocol must bear.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "rendezvous/record.h"
#include "rendezvous/seal.h"
#include "rendezvous/store.h"

namespace holdfast::rendezvous {

// What this process knows of the run; it only grows.
struct Known {
  std::string uuid, store_id;          // empty: has met no record yet
  uint64_t generation = 0, nonce = 0;  // newest sealed one seen
  uint64_t member_of = 0;              // newest generation that it entered, as member
  // From the durable marks of earlier processes in this slot: the newest generation confirmed here,
  // 0 for none, and whether all its members were on this machine (so that nobody else can still be
  // running it).
  std::string marked_uuid;
  uint64_t marked_generation = 0;
  bool marked_all_local = false;
  std::string stale_stop_id;  // a stop request that was meant for workers which have all gone
};

// Takes over what `record` shows. False, with the reason in *why, when the store must not be
// trusted: it was emptied, replaced, or holds less than this process knows. `known` is then
// unchanged.
bool Learn(const Record& record, Known* known, std::string* why);
// The marks in a slot's store, as JSON text.
std::string EncodeMark(std::string_view uuid, uint64_t generation, uint64_t nonce, bool all_local);
bool DecodeMark(std::string_view text, std::string* uuid, uint64_t* generation, bool* all_local);

struct JoinOptions {
  std::string id, machine;
  int slot = 0;
  SealOptions seal;
  bool may_found = false;
  bool fresh = false;  // a "finished" that was there before this process does not count
  int64_t lease_ms = 3000, found_window_ms = 3000, redis_outage_ms = 600'000;
  int64_t target_step = 0;
};

struct JoinEvent {
  enum class Kind : uint8_t { kStart, kRecord, kOutcome, kStoreFailed, kWokeUp, kMarked };
  Kind kind = Kind::kStart;
  const Record* record = nullptr;       // kRecord
  Outcome outcome = Outcome::kApplied;  // kOutcome, of the change asked for last
};

struct JoinAction {
  enum class Kind : uint8_t {
    kRead,      // -> kRecord or kStoreFailed
    kFound,     // draw uuid and secret; -> kOutcome or kStoreFailed. `generation`: base
    kMarkLeft,  // make "left `generation`" durable in the slot; -> kMarked
    kJoin,      // `waiting`
    kSeal,      // draw the nonce; `plan`, `seq`
    kRefuse,    // `refusals`, `seq`
    kEnter,     // the generation of `fence`
    kSleep,     // until `until_ms`; -> kWokeUp
    kReturn,    // `record` of the last kRecord holds the roster: done
    kFail,      // `status`: done
  };
  Kind kind = Kind::kRead;
  Fence fence;
  uint64_t seq = 0, generation = 0;
  Waiting waiting;
  SealPlan plan;
  std::vector<Refusal> refusals;
  int64_t until_ms = 0;
  absl::Status status;
};

class JoinMachine {
 public:
  // `failed_generation`/`unreachable`: what ReportFailedBuild has collected.
  // `lapses_count_from_ms`: see Observed.
  JoinMachine(JoinOptions options, Known known, Offer offer, std::string reason,
              uint64_t failed_generation, std::vector<std::string> unreachable,
              int64_t lapses_count_from_ms);

  JoinAction On(const JoinEvent& event, int64_t now_ms);

  const Known& known() const { return known_; }
  // For the log and the message at the deadline.
  const std::string& waiting_for() const { return waiting_for_; }

 private:
  JoinAction OnRecord(const Record& record, int64_t now_ms);
  JoinAction OnNoRecord(const Record& record, int64_t now_ms);
  std::optional<absl::Status> Ended(const Record& record) const;
  JoinAction SendJoin(const Record& record);
  JoinAction Sleep(int64_t now_ms, int64_t until_ms, std::string why);
  JoinAction Act(JoinAction::Kind kind) const;

  const JoinOptions options_;
  Known known_;
  Waiting waiting_;
  Observed observed_;
  int64_t last_answer_ms_ = -1;
  int64_t first_absent_ms_ = -1;  // since when the store has answered that there is no record
  uint64_t marked_left_ = 0;      // newest generation whose "left" mark is durable
  uint64_t last_seq_ = 0;
  int64_t poll_ms_ = 0;
  bool entering_ = false;
  std::string waiting_for_ = "the first answer of Redis";
};

}  // namespace holdfast::rendezvous
