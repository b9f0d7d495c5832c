#include "rendezvous/seal.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <tuple>

#include "runtime/base/text.h"

namespace holdfast::rendezvous {
namespace {

constexpr int64_t kBackOffMs = 5000, kBackOffMaxMs = 160'000;

std::string Join(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < 8; ++i) out += Cat(i == 0 ? "" : ", ", names[i]);
  if (names.size() > 8) out += Cat(" and ", names.size() - 8, " more");
  return out;
}

Decision Wait(std::string why, int64_t until_ms = INT64_MAX) {
  Decision d;
  d.why = std::move(why);
  d.until_ms = until_ms;
  return d;
}

// The round, sorted out: who is in it and who is not.
struct Round {
  std::vector<const Waiting*> survivors;   // in their old order
  std::vector<const Waiting*> newcomers;   // by machine, slot, id
  std::vector<std::string> dropped;        // joined, then died
  std::vector<const Member*> uncertified;  // absent and not certified dead
  std::vector<std::string> awaited;    // of these: names of those whose lease has not lapsed yet
  std::vector<std::string> unsettled;  // joined, lease missing, but it is too early to count that
};

bool ByPlace(const Waiting* a, const Waiting* b) {
  return std::tie(a->machine, a->slot, a->id) < std::tie(b->machine, b->slot, b->id);
}

Round SortOut(const Record& record, const Observed& observed, int64_t now_ms) {
  Round round;
  const bool lapses_count = now_ms >= observed.lapses_count_from_ms;
  const auto usable = [&](const Waiting& w) {
    if (record.deaths.count(w.id) > 0) {
      round.dropped.push_back(w.id);
      return false;
    }
    if (record.Leased(w.id)) return true;
    if (lapses_count) {
      round.dropped.push_back(w.id);
    } else {
      round.unsettled.push_back(Name(w));
    }
    return !lapses_count;
  };
  for (const Member& member : record.sealed.members) {
    const auto it = record.joins.find(member.id);
    if (it != record.joins.end()) {
      if (usable(it->second)) round.survivors.push_back(&it->second);
      continue;
    }
    if (record.deaths.count(member.id) > 0) continue;
    round.uncertified.push_back(&member);
    if (record.Leased(member.id) || !lapses_count) round.awaited.push_back(Name(member));
  }
  for (const auto& [id, waiting] : record.joins) {
    if (record.FindMember(id) == nullptr && usable(waiting)) round.newcomers.push_back(&waiting);
  }
  std::sort(round.newcomers.begin(), round.newcomers.end(), ByPlace);
  return round;
}

// What all must equal: that of the sealed generation while one of its members is here, else what
// most bring of those who know the most branches. Whoever knows fewer has slept through a change:
// it must not bring the abandoned history back by number.
struct Reference {
  std::string fingerprint, fingerprint_text, probe, compute_class;
  Lineage lineage;
};

Reference FindReference(const Record& record, const Round& round) {
  if (!round.survivors.empty()) {
    const Sealed& s = record.sealed;
    return {s.fingerprint, s.fingerprint_text, s.probe, s.compute_class, s.lineage};
  }
  size_t branches = 0;
  for (const Waiting* w : round.newcomers) branches = std::max(branches, w->offer.lineage.size());
  std::map<std::pair<std::string, std::string>, int> votes;
  for (const Waiting* w : round.newcomers) ++votes[{w->offer.fingerprint, w->offer.probe}];
  const Waiting* best = nullptr;
  int best_votes = 0;
  for (const Waiting* w : round.newcomers) {  // in order of place, so ties go to the first
    if (w->offer.lineage.size() < branches) continue;
    const int n = votes[{w->offer.fingerprint, w->offer.probe}];
    if (n > best_votes) {
      best = w;
      best_votes = n;
    }
  }
  if (best == nullptr) return {};
  const Offer& o = best->offer;
  return {o.fingerprint, o.fingerprint_text, o.probe, o.compute_class, o.lineage};
}

std::optional<Refusal> CheckAgainst(const Reference& reference, const Waiting& w) {
  if (w.offer.fingerprint != reference.fingerprint) {
    return Refusal{w.id,
                   Cat("this run has other settings: ",
                       DescribeDifference(w.offer.fingerprint_text, reference.fingerprint_text),
                       ". Start this machine with the run's settings, or use another --run name")};
  }
  if (w.offer.probe != reference.probe) {
    return Refusal{w.id,
                   Cat("this machine computes other bits than the run's members: its class is \"",
                       w.offer.compute_class, "\", theirs is \"", reference.compute_class,
                       "\". Use machines of one class and the same libraries")};
  }
  if (!IsPrefix(w.offer.lineage, reference.lineage)) {
    return Refusal{w.id,
                   Cat("the checkpoints of this machine are of another history than the run's (",
                       ToString(w.offer.lineage), " here, ", ToString(reference.lineage),
                       " in the run). Set them aside with --fresh, or use another --dir")};
  }
  return std::nullopt;
}

// The lineage that goes on from `choice`: the reference's, with a new branch when the schedule that
// all have brought is not that of its newest one.
Lineage GoOn(const Lineage& known, const Offer& offer, const SourceChoice& choice) {
  Lineage lineage = known;
  if (lineage.empty()) {
    lineage.push_back({0, 0, offer.schedule});
  } else if (lineage.back().schedule != offer.schedule) {
    lineage.push_back({lineage.back().branch + 1, choice.step, offer.schedule});
  }
  return lineage;
}

// Failures after the newest generation: who is held back now, and the counts to be kept.
std::map<std::string, Failures> CountFailures(const Record& record, const Round& round) {
  std::map<std::string, Failures> out;
  for (const auto& [id, failures] : record.sealed.failures) {
    if (record.confirmed.count(id) == 0 && record.joins.count(id) > 0) out[id] = failures;
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  std::vector<std::string> order;
  for (const Member& member : record.sealed.members) {
    order.push_back(member.id);
    const auto it = record.joins.find(member.id);
    if (it == record.joins.end() || it->second.failed_generation != record.generation) continue;
    for (const std::string& other : it->second.unreachable) {
      // Who is dead explains the failure by itself.
      if (record.FindMember(other) != nullptr && record.joins.count(other) > 0) {
        pairs.emplace_back(member.id, other);
      }
    }
  }
  std::vector<std::string> blamed = CoverBadPairs(pairs, order);
  // A newcomer that alone did not confirm, while somebody else did.
  for (const Waiting* w : round.survivors) {
    if (!record.confirmed.empty() && record.confirmed.count(w->id) == 0 &&
        record.sealed.newcomers.count(w->id) > 0 &&
        std::find(blamed.begin(), blamed.end(), w->id) == blamed.end()) {
      blamed.push_back(w->id);
    }
  }
  for (const std::string& id : blamed) {
    Failures& f = out[id];
    ++f.count;
    // A newcomer is held back at once; a survivor, whose state and work the run has, only when it
    // fails again.
    const int excess = f.count - (record.sealed.newcomers.count(id) > 0 ? 1 : 2);
    if (excess < 0) continue;
    const int64_t back_off =
        excess >= 5 ? kBackOffMaxMs : std::min(kBackOffMs << excess, kBackOffMaxMs);
    f.until_store_ms = record.store_ms + back_off;
  }
  return out;
}

struct Admission {
  std::vector<const Waiting*> eligible;  // everybody present, for the choice of the state
  std::vector<const Waiting*> admitted;  // in rank order
  std::vector<std::string> left_out;     // names, with reasons
};

bool HeldBack(const std::map<std::string, Failures>& failures, const std::string& id,
              int64_t store_ms) {
  const auto it = failures.find(id);
  return it != failures.end() && it->second.until_store_ms > store_ms;
}

// Survivors in their order, newcomers by place; those held back and the spares only to fill up to
// min_workers.
Admission Admit(const Record& record, const Round& round, const SealOptions& options,
                const std::map<std::string, Failures>& failures) {
  Admission out;
  std::vector<const Waiting*> all = round.survivors;
  all.insert(all.end(), round.newcomers.begin(), round.newcomers.end());
  out.eligible = all;
  std::vector<const Waiting*> reserve;
  std::set<const Waiting*> taken;
  for (const Waiting* w : all) {
    const bool held_back = HeldBack(failures, w->id, record.store_ms);
    if (held_back || w->offer.spare_only) {
      reserve.push_back(w);
      if (held_back) out.left_out.push_back(Cat(Name(*w), " (its last builds failed)"));
    } else if (static_cast<int>(taken.size()) < options.max_workers) {
      taken.insert(w);
    }
  }
  for (const Waiting* w : reserve) {
    if (static_cast<int>(taken.size()) < options.min_workers) taken.insert(w);
  }
  for (const Waiting* w : all) {
    if (taken.count(w) > 0) out.admitted.push_back(w);
  }
  return out;
}

bool AdmittedSuffice(const std::vector<const Waiting*>& admitted, const SourceChoice& choice) {
  if (choice.source == Source::kFresh) return true;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const Waiting* w : admitted) {
    if (HoldsState(w->offer, choice)) return true;
    if (choice.source != Source::kCheckpoint) continue;
    for (const auto& range : HeldRanges(w->offer, choice.checkpoint)) ranges.push_back(range);
  }
  return choice.source == Source::kCheckpoint && Covers(ranges, choice.checkpoint.chunks);
}

// When only processes that would be spares hold the state, they take the places of those who hold
// nothing of it.
void AdmitHolders(const SourceChoice& choice, Admission* admission) {
  if (AdmittedSuffice(admission->admitted, choice)) return;
  const size_t places = admission->admitted.size();
  const auto holds = [&choice](const Waiting* w) {
    return HoldsState(w->offer, choice) || (choice.source == Source::kCheckpoint &&
                                            !HeldRanges(w->offer, choice.checkpoint).empty());
  };
  std::set<const Waiting*> taken;
  for (const Waiting* w : admission->eligible) {
    if (holds(w) && taken.size() < places) taken.insert(w);
  }
  for (const Waiting* w : admission->admitted) {
    if (taken.size() < places) taken.insert(w);
  }
  admission->admitted.clear();
  for (const Waiting* w : admission->eligible) {
    if (taken.count(w) > 0) admission->admitted.push_back(w);
  }
}

// The highest step that anything in the record proves. Also what processes said that cannot take
// part any more: progress that one of them has seen does not end with its lease.
int64_t ProvenStep(const Record& record) {
  int64_t step = std::max(record.sealed.progress, record.sealed.step);
  for (const auto& [id, w] : record.joins) {
    step = std::max({step, w.offer.progress, w.offer.has_state ? w.offer.step : 0});
    for (const HeldCheckpoint& c : w.offer.checkpoints) step = std::max(step, c.step);
  }
  return step;
}

SealPlan MakePlan(const Record& record, const Round& round, const Admission& admission,
                  const SourceChoice& choice, const Lineage& known,
                  std::map<std::string, Failures> failures) {
  SealPlan plan;
  plan.generation = record.generation;
  for (const auto& [id, w] : record.joins) {
    plan.generation = std::max(plan.generation, w.known_generation);
  }
  ++plan.generation;
  plan.dropped = round.dropped;
  Sealed& s = plan.sealed;
  std::vector<std::vector<std::pair<int64_t, int64_t>>> held;
  for (const Waiting* w : admission.admitted) {
    Member m;
    m.id = w->id;
    m.machine = w->machine;
    m.slot = w->slot;
    m.address = w->offer.address;
    m.port = w->offer.port;
    m.has_state = HoldsState(w->offer, choice);
    s.members.push_back(std::move(m));
    const bool confirmed_before =
        record.FindMember(w->id) != nullptr &&
        (record.sealed.newcomers.count(w->id) == 0 || record.confirmed.count(w->id) > 0);
    if (!confirmed_before) s.newcomers.insert(w->id);
    if (choice.source == Source::kCheckpoint)
      held.push_back(HeldRanges(w->offer, choice.checkpoint));
  }
  if (choice.source == Source::kCheckpoint) {
    auto assigned = AssignRanges(held, choice.checkpoint.chunks);
    for (size_t i = 0; i < assigned.size(); ++i) s.members[i].ranges = std::move(assigned[i]);
  }
  s.source = choice.source;
  s.lineage = GoOn(known, admission.admitted.front()->offer, choice);
  s.branch = std::max(choice.branch, NewestBranch(s.lineage));
  s.step = choice.step;
  s.digest = choice.digest;
  s.checkpoint = choice.checkpoint;
  s.checkpoint.ranges = {{0, choice.checkpoint.chunks}};
  const Offer& model = admission.admitted.front()->offer;
  s.fingerprint = model.fingerprint;
  s.fingerprint_text = model.fingerprint_text;
  s.probe = model.probe;
  s.compute_class = model.compute_class;
  s.progress = std::max(ProvenStep(record), choice.step);
  s.failures = std::move(failures);
  s.note = choice.why;
  if (!admission.left_out.empty()) {
    s.note += Cat(s.note.empty() ? "" : "; ", "left out: ", Join(admission.left_out));
  }
  return plan;
}

// Rules of membership alone: may this round be sealed? Fills take_over and cold.
std::optional<Decision> Forbidden(const Record& record, const Observed& observed,
                                  const Round& round, SealPlan* plan) {
  if (!round.survivors.empty()) {
    if (round.awaited.empty()) return std::nullopt;
    return Wait(Cat("waiting for ", Join(round.awaited), " to leave generation ", record.generation,
                    ", to die or to miss its lease"),
                observed.lapses_count_from_ms);
  }
  plan->cold = true;
  if (round.uncertified.empty()) return std::nullopt;  // also: no generation yet
  if (!record.alive) {
    plan->take_over = true;
    return std::nullopt;
  }
  std::vector<std::string> names;
  for (const Member* m : round.uncertified) names.push_back(Name(*m));
  return Wait(round.awaited.empty()
                  ? Cat("generation ", record.generation, " may still be running on ", Join(names),
                        ", which cannot reach Redis: it is taken over when it has been silent for "
                        "redis_outage, or when its supervisor reports its death")
                  : Cat("generation ", record.generation,
                        " is running; its members take newcomers in "
                        "at a step boundary"));
}

// A first round, and the first after a total loss, gather the workers that were started together.
std::optional<Decision> StillGathering(const Round& round, const Observed& observed,
                                       const SealOptions& options, int64_t now_ms) {
  const int64_t until_ms = observed.open_since_ms + options.gather_ms;
  if (now_ms >= until_ms) return std::nullopt;
  std::map<std::string, std::pair<int, int>> machines;  // arrived, expected
  for (const Waiting* w : round.newcomers) {
    auto& [arrived, expected] = machines[w->machine];
    ++arrived;
    expected = std::max(expected, w->offer.expected_local_workers);
  }
  for (const auto& [machine, counts] : machines) {
    if (counts.first < counts.second) {
      return Wait(Cat("waiting for ", counts.second - counts.first, " more of the ", counts.second,
                      " workers of ", machine),
                  until_ms);
    }
  }
  return std::nullopt;
}

}  // namespace

Decision DecideSeal(const Record& record, const Observed& observed, const SealOptions& options,
                    int64_t now_ms) {
  const Round round = SortOut(record, observed, now_ms);
  SealPlan plan;
  if (auto wait = Forbidden(record, observed, round, &plan)) {
    wait->blocked = true;
    return *wait;
  }
  if (!round.unsettled.empty()) {
    return Wait(Cat("the lease of ", Join(round.unsettled), " is missing; it has time to renew it"),
                observed.lapses_count_from_ms);
  }

  const Reference reference = FindReference(record, round);
  Decision refuse;
  refuse.kind = Decision::Kind::kRefuse;
  for (const Waiting* w : round.newcomers) {
    if (auto refusal = CheckAgainst(reference, *w)) refuse.refusals.push_back(*refusal);
  }
  if (!refuse.refusals.empty()) return refuse;
  for (const Waiting* w : round.newcomers) {
    if (reference.lineage.size() < kMaxBranches ||
        reference.lineage.back().schedule == w->offer.schedule)
      continue;
    refuse.refusals.push_back({w->id, Cat("this run has had ", kMaxBranches - 1,
                                          " accepted changes, and no more are kept")});
  }
  if (!refuse.refusals.empty()) return refuse;

  const std::map<std::string, Failures> failures = CountFailures(record, round);
  Admission admission = Admit(record, round, options, failures);
  const int present = static_cast<int>(admission.admitted.size());
  if (present == 0 || present < options.min_workers) {
    return Wait(Cat(std::max(options.min_workers, 1) - present,
                    " more needed to reach --min-workers ", options.min_workers, " (", present,
                    " present)"));
  }
  if (plan.cold) {
    if (auto wait = StillGathering(round, observed, options, now_ms)) return *wait;
  }

  std::set<std::string> in_generation;
  for (const Member& m : record.sealed.members) in_generation.insert(m.id);
  const int64_t restore_until_ms = observed.open_since_ms + options.restore_wait_ms;
  const SourceChoice choice = ChooseSource(admission.eligible, in_generation, ProvenStep(record),
                                           now_ms < restore_until_ms);
  if (choice.kind == SourceChoice::Kind::kWait) return Wait(choice.why, restore_until_ms);
  if (choice.kind == SourceChoice::Kind::kRefuse) {
    for (const Waiting* w : admission.eligible) refuse.refusals.push_back({w->id, choice.why});
    return refuse;
  }
  AdmitHolders(choice, &admission);

  Decision seal;
  seal.kind = Decision::Kind::kSeal;
  seal.plan = MakePlan(record, round, admission, choice, reference.lineage, failures);
  seal.plan.take_over = plan.take_over;
  seal.plan.cold = plan.cold;
  return seal;
}

int CountJoiners(const Record& record, int max_workers) {
  int waiting = 0;
  for (const auto& [id, w] : record.joins) {
    if (record.FindMember(id) != nullptr || w.offer.spare_only) continue;
    if (!record.Leased(id) || record.deaths.count(id) > 0) continue;
    if (HeldBack(record.sealed.failures, id, record.store_ms)) continue;
    ++waiting;
  }
  int world = 0;
  for (const Member& m : record.sealed.members) world += record.deaths.count(m.id) > 0 ? 0 : 1;
  return std::max(0, std::min(waiting, max_workers - world));
}

std::string DescribeDifference(std::string_view mine, std::string_view theirs) {
  const auto parse = [](std::string_view text) {
    std::map<std::string, std::string> out;
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, end);
      const size_t equals = line.find(" = ");
      if (equals != std::string_view::npos) {
        out[std::string(line.substr(0, equals))] = std::string(line.substr(equals + 3));
      }
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return out;
  };
  const auto a = parse(mine), b = parse(theirs);
  std::vector<std::string> parts;
  for (const auto& [key, value] : a) {
    const auto it = b.find(key);
    if (it == b.end()) {
      parts.push_back(Cat(key, " is ", value, " here and not set in the run"));
    } else if (it->second != value) {
      parts.push_back(Cat(key, " is ", value, " here, ", it->second, " in the run"));
    }
  }
  for (const auto& [key, value] : b) {
    if (a.count(key) == 0) parts.push_back(Cat(key, " is not set here, ", value, " in the run"));
  }
  if (parts.empty()) return "the fingerprints differ, but no named setting does";
  std::string out;
  for (size_t i = 0; i < parts.size() && i < 3; ++i) out += Cat(i == 0 ? "" : "; ", parts[i]);
  if (parts.size() > 3) out += Cat("; and ", parts.size() - 3, " more");
  return out;
}

std::vector<std::string> CoverBadPairs(
    const std::vector<std::pair<std::string, std::string>>& pairs,
    const std::vector<std::string>& order) {
  std::vector<std::string> nodes;  // those involved, later ranks first
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const bool involved = std::any_of(pairs.begin(), pairs.end(), [&it](const auto& pair) {
      return pair.first == *it || pair.second == *it;
    });
    if (involved) nodes.push_back(*it);
  }
  const auto covered_by = [&](const std::set<std::string>& chosen) {
    return std::all_of(pairs.begin(), pairs.end(), [&chosen](const auto& pair) {
      return chosen.count(pair.first) > 0 || chosen.count(pair.second) > 0;
    });
  };
  std::set<std::string> best;
  if (nodes.size() <= 16) {
    // Masks in order of value: among covers of equal size the first has the lowest bits, which are
    // the later ranks.
    uint32_t best_mask = (1u << nodes.size()) - 1;
    for (uint32_t mask = 0; mask < (1u << nodes.size()); ++mask) {
      if (std::popcount(mask) >= std::popcount(best_mask)) continue;
      std::set<std::string> chosen;
      for (size_t i = 0; i < nodes.size(); ++i) {
        if ((mask >> i) & 1) chosen.insert(nodes[i]);
      }
      if (covered_by(chosen)) best_mask = mask;
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      if ((best_mask >> i) & 1) best.insert(nodes[i]);
    }
  } else {
    auto rest = pairs;
    while (!rest.empty()) {
      std::map<std::string, int> degree;
      for (const auto& [a, b] : rest) {
        ++degree[a];
        if (b != a) ++degree[b];
      }
      std::string top;
      for (const std::string& node : nodes) {
        if (top.empty() || degree[node] > degree[top]) top = node;
      }
      best.insert(top);
      std::erase_if(rest, [&top](const auto& p) { return p.first == top || p.second == top; });
    }
  }
  std::vector<std::string> out;
  for (const std::string& id : order) {
    if (best.count(id) > 0) out.push_back(id);
  }
  return out;
}

}  // namespace holdfast::rendezvous
