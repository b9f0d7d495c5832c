// May the next generation be sealed now, by whom is it made, and from which state does it start? A
// pure function of the record, what this process has observed over time, and now: the same answer
// in the worker and in a simulator. Why the rules are as they are: PROTOCOL.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/record.h"
#include "rendezvous/source.h"

namespace holdfast::rendezvous {

struct SealOptions {
  int min_workers = 1, max_workers = 64;
  int64_t restore_wait_ms = 60'000;
  int64_t gather_ms = 2000;
};

// What one process has seen of the round so far, on its own clock.
struct Observed {
  int64_t open_since_ms =
      0;  // since when this process is in the round and no running generation stands against it
  // From when on a missing lease counts as lapsed: a store that was away, or that this process has
  // only just reached, has not given the others time to renew.
  int64_t lapses_count_from_ms = 0;
};

struct Refusal {
  std::string id;
  std::string why;
};

struct SealPlan {
  uint64_t generation = 0;
  Sealed sealed;                     // the nonce is drawn by who executes the plan
  std::vector<std::string> dropped;  // joins of dead processes, to be removed
  // No member of the former generation takes part and not all are certified dead: the store must
  // check, in the same script, that none has renewed within redis_outage.
  bool take_over = false;
  // Nobody of the former generation is left: an old stop request and an old "finished" have been
  // served.
  bool cold = false;
};

struct Decision {
  enum class Kind : uint8_t { kSeal, kWait, kRefuse };
  Kind kind = Kind::kWait;
  std::string why;                // kWait: for people
  int64_t until_ms = INT64_MAX;   // kWait: look again then even if the record does not change
  bool blocked = false;           // kWait: a generation that may be running stands against it
  SealPlan plan;                  // kSeal
  std::vector<Refusal> refusals;  // kRefuse
};

Decision DecideSeal(const Record& record, const Observed& observed, const SealOptions& options,
                    int64_t now_ms);

// Who waits, ready and not held back, and could be taken in: for the members' notice.
int CountJoiners(const Record& record, int max_workers);

// Names what differs between two texts of "key = value" lines: "learning_rate is 0.1 here, 0.2
// there; ...", at most three.
std::string DescribeDifference(std::string_view mine, std::string_view theirs);

// The fewest processes that cover all bad pairs (exact up to 16 processes involved, greedy above);
// ties: later in `order`.
std::vector<std::string> CoverBadPairs(
    const std::vector<std::pair<std::string, std::string>>& pairs,
    const std::vector<std::string>& order);

}  // namespace holdfast::rendezvous
