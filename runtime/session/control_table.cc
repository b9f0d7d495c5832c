#include "runtime/session/control_table.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "runtime/base/digest.h"
#include "runtime/base/text.h"

namespace holdfast {
namespace {

std::string Ranks(const std::vector<int>& ranks) {
  std::string text;
  for (const int r : ranks) text += Cat(text.empty() ? "" : ", ", r);
  return text;
}

// Ranks whose digest is not that of a strict majority; all of them when there is none. A rank that
// knows itself to be bad does not vote.
std::vector<int> Minority(std::span<const ControlRow> rows, uint64_t ControlRow::*digest) {
  std::map<uint64_t, int> votes;
  int voters = 0;
  for (const ControlRow& row : rows) {
    if (row.flags & kRowSelfBad) continue;
    ++votes[row.*digest];
    ++voters;
  }
  uint64_t winner = 0;
  bool majority = false;
  for (const auto& [value, count] : votes) {
    if (2 * count > voters) winner = value, majority = true;
  }
  std::vector<int> bad;
  for (size_t r = 0; r < rows.size(); ++r) {
    const bool self_bad = rows[r].flags & kRowSelfBad;
    if (self_bad || !majority || rows[r].*digest != winner) bad.push_back(static_cast<int>(r));
  }
  return bad;
}

void JudgeStep(std::span<const ControlRow> rows, const TableExpectation& expected, Verdict& v) {
  std::vector<int> bad = Minority(rows, &ControlRow::state_digest), all;
  const std::vector<int> used_other = Minority(rows, &ControlRow::parameter_digest);
  std::set_union(bad.begin(), bad.end(), used_other.begin(), used_other.end(),
                 std::back_inserter(all));
  bad = std::move(all);
  if (!bad.empty()) {
    v.decision = Decision::kHeal;
    v.bad_ranks = bad;
    v.text = Cat("replicas differ at step ", expected.step, ": rank ", Ranks(bad),
                 bad.size() == rows.size() ? " (no majority: the newest checkpoint decides)" : "");
    return;
  }
  if (!expected.is_step) return;
  int64_t count = 0;
  uint64_t work = 0, contributed = 0, reduced = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const ControlRow& row = rows[r];
    count += row.work_count;
    work += row.work_hash;
    contributed += row.contributed;
    reduced += row.reduced;
    v.samples_hash += row.samples_hash;
    v.nonfinite_count += row.nonfinite_count;
    v.nonfinite_hash += row.nonfinite_hash;
    if (row.nonfinite_first >= 0 &&
        (v.nonfinite_first < 0 || row.nonfinite_first < v.nonfinite_first)) {
      v.nonfinite_first = row.nonfinite_first;
      v.nonfinite_rank = static_cast<int>(r);
    }
  }
  if (count != expected.micro_batches || work != expected.work_hash) {
    v.decision = Decision::kRetryWork;
    v.text = Cat("the ledger of step ", expected.step + 1, " holds ", count, " micro-batches of ",
                 expected.micro_batches, " or not the right ones");
    return;
  }
  bool gathered_equal = true, out_of_range = false;
  for (const ControlRow& row : rows) {
    gathered_equal &= row.gradient_digest == rows[0].gradient_digest &&
                      row.scalars_digest == rows[0].scalars_digest;
    out_of_range |= (row.flags & kRowOutOfRange) != 0;
  }
  if ((expected.check_sums && contributed != reduced) || !gathered_equal) {
    v.decision = Decision::kRetrySums;
    v.text = Cat("the reduction of step ", expected.step + 1,
                 gathered_equal ? " lost or changed words" : " gave ranks different gradients");
    return;
  }
  if (v.nonfinite_count > 0) {
    const bool again =
        expected.recheck_count == v.nonfinite_count && expected.recheck_hash == v.nonfinite_hash;
    v.decision = again ? Decision::kSkip : Decision::kRecheck;
    v.text =
        Cat("step ", expected.step + 1, ": ", v.nonfinite_count,
            " micro-batch(es) not finite, first ", v.nonfinite_first,
            again ? "; the same bits when computed again: skipped by all" : "; computed again");
    return;
  }
  if (out_of_range) {
    v.decision = Decision::kRetryRange;
    v.text = Cat("step ", expected.step + 1,
                 ": a gradient was too large for its fixed-point scale; computed again at a "
                 "smaller one");
    return;
  }
  v.decision = Decision::kApply;
}

void JudgeSave(std::span<const ControlRow> rows, const TableExpectation& expected, Verdict& v) {
  bool idle = true, durable = true, manifest = true, failed = false;
  uint64_t digest = 0;
  for (const ControlRow& row : rows) {
    const bool same = row.save_step == expected.save_step;
    idle &= (row.flags & kRowSaverIdle) != 0;
    durable &= same && (row.flags & kRowShardDurable);
    manifest &= same && (row.flags & kRowManifestDurable);
    failed |= (row.flags & kRowSaveFailed) != 0;
    digest += row.shard_digest;
  }
  if (expected.save_step < 0) {
    // Begun at a boundary only: when the step is taken, or when there was none.
    const bool boundary = v.decision == Decision::kApply || v.decision == Decision::kSkip ||
                          v.decision == Decision::kNone;
    if (boundary && (v.intents & kIntentSave) && idle) v.save = SaveDecision::kBegin;
    return;
  }
  if (failed) {
    v.save = SaveDecision::kFailed;
  } else if (manifest) {
    v.save = SaveDecision::kSaved;
  } else if (durable) {
    v.save = digest == expected.save_digest ? SaveDecision::kWriteManifest : SaveDecision::kFailed;
  }
}

void JudgeMembership(std::span<const ControlRow> rows, const TableExpectation& expected,
                     Verdict& v) {
  const int world = static_cast<int>(rows.size());
  if (v.intents & (kIntentStop | kIntentStoreLost)) {
    v.end = (v.intents & kIntentStop) ? EndReason::kStop : EndReason::kStoreLost;
    for (int r = 0; r < world; ++r) v.leavers.push_back(r);
    v.farewell = true;
    return;
  }
  bool contact = true;
  for (const ControlRow& row : rows) contact &= row.contact_age_ms <= expected.contact_limit_ms;
  for (int r = 0; r < world; ++r) {
    bool leaves = rows[r].intents & kIntentDrain;
    for (const ControlRow& other : rows) {
      leaves |= (other.intents & kIntentDrainMachine) && other.machine == rows[r].machine;
    }
    if (leaves) v.leavers.push_back(r);
  }
  if (!v.leavers.empty()) {
    const int stay = world - static_cast<int>(v.leavers.size());
    v.farewell = stay < expected.min_workers || 2 * stay < world;
    // Without the store the rest cannot shrink: all save first, and the leavers go last.
    v.farewell |= !contact;
    v.end = EndReason::kDrain;
    return;
  }
  // A wish that can wait does: a save under way would be given up with the generation.
  const bool saving = expected.save_step >= 0 || v.save == SaveDecision::kBegin;
  const bool still = v.save == SaveDecision::kSaved || v.save == SaveDecision::kFailed;
  if ((v.intents & kIntentAdmit) && contact && (!saving || still)) v.end = EndReason::kAdmit;
}

}  // namespace

bool SameRound(std::span<const ControlRow> rows, const TableExpectation& expected,
               std::string* why) {
  for (size_t r = 0; r < rows.size(); ++r) {
    const ControlRow& row = rows[r];
    const bool is_step = row.flags & kRowStep;
    if (row.generation == expected.generation && row.step == expected.step &&
        row.attempt == expected.attempt && is_step == expected.is_step) {
      continue;
    }
    *why = Cat("rank ", r, " is at (generation ", row.generation, ", step ", row.step, ", attempt ",
               row.attempt, is_step ? "" : ", round without a step", "), expected (",
               expected.generation, ", ", expected.step, ", ", expected.attempt,
               expected.is_step ? "" : ", without a step", ")");
    return false;
  }
  return true;
}

Verdict Judge(std::span<const ControlRow> rows, const TableExpectation& expected) {
  Verdict v;
  for (const ControlRow& row : rows) v.intents |= row.intents;
  JudgeStep(rows, expected, v);
  if (v.decision == Decision::kHeal) return v;
  JudgeSave(rows, expected, v);
  // Membership changes at a boundary only: when the step is taken, or when there was none.
  if (v.decision == Decision::kApply || v.decision == Decision::kSkip ||
      v.decision == Decision::kNone) {
    JudgeMembership(rows, expected, v);
  }
  return v;
}

uint64_t LedgerHash(uint64_t seed, int64_t step, int64_t micro_batch) {
  return Mix64(Mix64(Mix64(seed) ^ static_cast<uint64_t>(step)) ^
               static_cast<uint64_t>(micro_batch));
}

uint64_t ExpectedWorkHash(uint64_t seed, int64_t step, int64_t micro_batches) {
  uint64_t sum = 0;
  for (int64_t j = 0; j < micro_batches; ++j) sum += LedgerHash(seed, step, j);
  return sum;
}

}  // namespace holdfast
