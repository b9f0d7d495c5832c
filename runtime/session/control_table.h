// The control table: one fixed row per rank, gathered by all after the reduction of a step (and in
// rounds without a step). The verdict is a pure function of the table, equal on all ranks, and
// nothing of the state is touched before it. Source of the rules: PROTOCOL.md, "The step".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace holdfast {

enum Intent : uint32_t {
  kIntentStop = 1,          // a person asked the run to stop
  kIntentDrain = 2,         // this worker shall leave
  kIntentDrainMachine = 4,  // all workers of this row's machine shall leave
  kIntentAdmit = 8,         // ready joiners were seen, and it is time
  kIntentSave = 16,         // a checkpoint is wanted
  kIntentStoreLost = 32,    // the store was emptied or replaced: save and stop
};

enum RowFlag : uint32_t {
  kRowStep = 1,          // this table ends a step attempt (else: a round without a step)
  kRowSelfBad = 2,       // the parameters as used are not those that the last update left
  kRowSaverIdle = 4,     // ready to begin a save
  kRowShardDurable = 8,  // of save_step
  kRowManifestDurable = 16,
  kRowSaveFailed = 32,
  kRowOutOfRange = 64,  // a gradient was too large for its fixed-point scale
};

// 184 bytes, copied as it is (little-endian).
struct ControlRow {
  uint64_t generation = 0;
  int64_t step = 0;  // held step: the attempt computes step + 1
  int32_t attempt = 0;
  uint32_t flags = 0, intents = 0;
  int32_t work_count = 0;                             // micro-batches in this rank's sums
  uint64_t work_hash = 0;                             // sum of LedgerHash over them
  uint64_t samples_hash = 0;                          // likewise, over the contents read
  uint64_t contributed = 0;                           // sum mod 2^64 of the words contributed
  uint64_t reduced = 0;                               // and of the reduced words held
  uint64_t gradient_digest = 0;                       // of the whole gathered gradient
  uint64_t parameter_digest = 0;                      // as used, taken after the last backward
  uint64_t state_digest = 0;                          // of the held state
  int32_t nonfinite_count = 0, nonfinite_first = -1;  // micro-batches
  uint64_t nonfinite_hash = 0;                        // sum over them of a hash of (index, bits)
  uint64_t machine = 0;                               // hash of the machine id
  uint64_t store_id = 0;
  uint32_t contact_age_ms = 0;  // of the store
  uint32_t compute_us = 0;      // time of this rank's computation
  int64_t save_step = -1;
  uint64_t shard_digest = 0;
  int64_t shard_bytes = 0;
  uint64_t scalars_digest = 0;  // of the reduced scalars and cursors held
  uint64_t reserved = 0;
};
static_assert(sizeof(ControlRow) <= 256);

// What a table ought to say; equal on all ranks.
struct TableExpectation {
  uint64_t generation = 0;
  int64_t step = 0;
  int32_t attempt = 0;
  bool is_step = true;
  int32_t micro_batches = 0;
  uint64_t work_hash = 0;  // of all micro-batches of the step
  bool check_sums = true;  // off in `fast` mode
  // Of the previous attempt of the same step, to compare a recheck with.
  int32_t recheck_count = 0;
  uint64_t recheck_hash = 0;
  // Membership.
  int min_workers = 1;
  uint32_t contact_limit_ms = 3000;
  // Saving.
  int64_t save_step = -1;    // of the save in flight; -1: none
  uint64_t save_digest = 0;  // regions' digest of the state being saved
};

enum class Decision : uint8_t {
  kNone,  // a round without a step
  kApply,
  kSkip,        // non-finite twice with the same bits: everybody skips
  kRetrySums,   // the reduction went wrong: reduce again
  kRetryWork,   // the ledger is not whole: compute everything again
  kRecheck,     // non-finite: compute the step again, elsewhere
  kRetryRange,  // out of range: compute the step again at a smaller scale
  kHeal,        // replicas differ: `bad_ranks` have lost their state
};

enum class SaveDecision : uint8_t { kNone, kBegin, kWriteManifest, kSaved, kFailed };

enum class EndReason : uint8_t { kNone, kAdmit, kDrain, kStop, kStoreLost };

struct Verdict {
  Decision decision = Decision::kNone;
  std::vector<int> bad_ranks;  // kHeal; all ranks when no strict majority exists
  SaveDecision save = SaveDecision::kNone;
  EndReason end = EndReason::kNone;  // the generation ends at this boundary
  std::vector<int> leavers;          // ranks that leave (kDrain, kStop, kStoreLost)
  bool farewell = false;             // save before anybody goes
  uint32_t intents = 0;              // of all rows
  uint64_t samples_hash = 0;
  int32_t nonfinite_first = -1;
  int nonfinite_rank = -1;  // the one that computed nonfinite_first
  int32_t nonfinite_count = 0;
  uint64_t nonfinite_hash = 0;
  std::string text;  // why, for people; empty for a plain apply
};

// False when a row is not of this (generation, step, attempt): a protocol error.
bool SameRound(std::span<const ControlRow> rows, const TableExpectation& expected,
               std::string* why);
Verdict Judge(std::span<const ControlRow> rows, const TableExpectation& expected);

// The ledger's entry of micro-batch j of step s: sum over all j is a step's expected work hash.
uint64_t LedgerHash(uint64_t seed, int64_t step, int64_t micro_batch);
uint64_t ExpectedWorkHash(uint64_t seed, int64_t step, int64_t micro_batches);

}  // namespace holdfast
