#include "rendezvous/source.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "runtime/base/digest.h"
#include "runtime/base/text.h"

namespace holdfast::rendezvous {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

// One state that somebody holds in memory.
struct Group {
  int64_t step = 0;
  uint64_t digest = 0;
  int holders = 0;
  bool vouched = false;
  bool by_member = false;  // held by a member of the newest generation
};

std::vector<Group> GroupStates(const std::vector<const Waiting*>& joiners,
                               const std::set<std::string>& in_generation, uint32_t branch) {
  std::map<std::pair<int64_t, uint64_t>, Group> groups;
  for (const Waiting* w : joiners) {
    if (!w->offer.has_state || w->offer.branch != branch) continue;
    Group& group = groups[{w->offer.step, w->offer.digest}];
    group.step = w->offer.step;
    group.digest = w->offer.digest;
    ++group.holders;
    group.vouched = group.vouched || w->offer.vouched || group.holders >= 2;
    group.by_member = group.by_member || in_generation.count(w->id) > 0;
  }
  for (const Waiting* w : joiners) {
    if (w->offer.branch != branch) continue;
    const auto it = groups.find({w->offer.agreed_step, w->offer.agreed_digest});
    if (it != groups.end()) it->second.vouched = true;
  }
  std::vector<Group> out;
  for (const auto& [key, group] : groups) out.push_back(group);
  return out;  // ascending by step, then digest
}

struct MemoryChoice {
  std::optional<Group> group;
  std::string note;
};

// Several vouched digests at one step: only a strict majority of the holders decides.
MemoryChoice MajorityAt(const std::vector<Group>& groups, int64_t step, bool vouched_only) {
  int total = 0;
  const Group* best = nullptr;
  for (const Group& group : groups) {
    if (group.step != step || (vouched_only && !group.vouched)) continue;
    total += group.holders;
    if (best == nullptr || group.holders > best->holders) best = &group;
  }
  if (best == nullptr) return {};
  if (best->holders == total) return {*best, ""};
  if (2 * best->holders > total) {
    return {*best, Cat("digests differ at step ", step, ": the majority's ", Hex64(best->digest),
                       " is taken")};
  }
  return {std::nullopt, Cat("digests differ at step ", step,
                            " without a majority: the newest checkpoint decides")};
}

MemoryChoice ChooseMemory(const std::vector<Group>& groups) {
  if (groups.empty()) return {};
  int64_t vouched_step = -1;
  for (const Group& g : groups) {
    if (g.vouched) vouched_step = std::max(vouched_step, g.step);
  }
  const int64_t top = groups.back().step;
  if (top <= vouched_step) return MajorityAt(groups, vouched_step, /*vouched_only=*/true);
  // Above everything vouched there is a state that nobody cross-checked. Whoever applied `top` saw
  // the table in which all agreed on top - 1, so a holder of top - 1 is the safe choice: one step
  // is done again.
  const bool have_previous = std::any_of(groups.begin(), groups.end(),
                                         [top](const Group& g) { return g.step == top - 1; });
  if (have_previous) {
    MemoryChoice choice = MajorityAt(groups, top - 1, vouched_step == top - 1);
    if (choice.group) {
      choice.note = Cat("step ", top, " is held by one process only and is done again");
    }
    return choice;
  }
  MemoryChoice lone = MajorityAt(groups, top, /*vouched_only=*/false);
  const bool trusted = lone.group && (lone.group->by_member || vouched_step < 0);
  if (trusted) {
    lone.note = Cat("step ", top, " is held by one process only and could not be cross-checked");
    return lone;
  }
  if (vouched_step >= 0) return MajorityAt(groups, vouched_step, /*vouched_only=*/true);
  return lone;
}

// All checkpoints that anybody of the newest branch offers, each once with the union of what is
// held; newest first.
std::vector<HeldCheckpoint> Checkpoints(const std::vector<const Waiting*>& joiners,
                                        uint32_t branch) {
  std::vector<HeldCheckpoint> out;
  for (const bool newest_branch : {true, false}) {
    for (const Waiting* w : joiners) {
      if ((w->offer.branch == branch) != newest_branch) continue;
      for (const HeldCheckpoint& c : w->offer.checkpoints) {
        auto it = std::find_if(out.begin(), out.end(),
                               [&c](const HeldCheckpoint& o) { return SameCheckpoint(o, c); });
        if (it == out.end()) {
          // What only an older branch's process knows may lie beyond the fork: not a candidate.
          if (!newest_branch && c.branch != branch) continue;
          out.push_back(c);
          continue;
        }
        it->ranges.insert(it->ranges.end(), c.ranges.begin(), c.ranges.end());
        for (const std::string& host : c.hosts) {
          if (std::find(it->hosts.begin(), it->hosts.end(), host) == it->hosts.end()) {
            it->hosts.push_back(host);
          }
        }
      }
    }
  }
  for (HeldCheckpoint& c : out) std::sort(c.hosts.begin(), c.hosts.end());
  std::sort(out.begin(), out.end(), [](const HeldCheckpoint& a, const HeldCheckpoint& b) {
    return std::tie(a.branch, a.step, a.generation, a.state_digest, a.chunks) >
           std::tie(b.branch, b.step, b.generation, b.state_digest, b.chunks);
  });
  return out;
}

std::string AbsentHosts(const HeldCheckpoint& c, const std::vector<const Waiting*>& joiners) {
  std::string out;
  for (const std::string& host : c.hosts) {
    const bool present = std::any_of(joiners.begin(), joiners.end(),
                                     [&host](const Waiting* w) { return w->machine == host; });
    if (!present) out += Cat(out.empty() ? "" : ", ", host);
  }
  return out.empty() ? "damaged or missing files on the machines present" : out;
}

SourceChoice NotYet(SourceChoice::Kind kind, std::string why) {
  SourceChoice out;
  out.kind = kind;
  out.why = std::move(why);
  return out;
}

SourceChoice UseMemory(const MemoryChoice& memory, uint32_t branch) {
  SourceChoice out;
  out.source = Source::kMemory;
  out.branch = branch;
  out.step = memory.group->step;
  out.digest = memory.group->digest;
  out.why = memory.note;
  return out;
}

SourceChoice UseCheckpoint(const HeldCheckpoint& c, std::string why) {
  SourceChoice out;
  out.source = Source::kCheckpoint;
  out.branch = c.branch;
  out.step = c.step;
  out.digest = c.state_digest;
  out.checkpoint = c;
  out.why = std::move(why);
  return out;
}

}  // namespace

bool SameCheckpoint(const HeldCheckpoint& a, const HeldCheckpoint& b) {
  return a.branch == b.branch && a.step == b.step && a.generation == b.generation &&
         a.state_digest == b.state_digest && a.chunks == b.chunks;
}

bool HoldsState(const Offer& offer, const SourceChoice& choice) {
  return choice.source == Source::kMemory && offer.has_state && offer.branch == choice.branch &&
         offer.step == choice.step && offer.digest == choice.digest;
}

Ranges HeldRanges(const Offer& offer, const HeldCheckpoint& checkpoint) {
  for (const HeldCheckpoint& c : offer.checkpoints) {
    if (SameCheckpoint(c, checkpoint)) return c.ranges;
  }
  return {};
}

bool Covers(Ranges ranges, int64_t chunks) {
  std::sort(ranges.begin(), ranges.end());
  int64_t reached = 0;
  for (const auto& [first, last] : ranges) {
    if (first > reached) return false;
    reached = std::max(reached, last);
  }
  return reached >= chunks;
}

SourceChoice ChooseSource(const std::vector<const Waiting*>& joiners,
                          const std::set<std::string>& in_generation, int64_t recorded_progress,
                          bool may_wait) {
  uint32_t branch = 0;
  for (const Waiting* w : joiners) {
    branch = std::max(branch, w->offer.branch);
    for (const HeldCheckpoint& c : w->offer.checkpoints) branch = std::max(branch, c.branch);
  }
  const MemoryChoice memory = ChooseMemory(GroupStates(joiners, in_generation, branch));
  const std::vector<HeldCheckpoint> checkpoints = Checkpoints(joiners, branch);

  std::string passed_over = memory.note;
  for (const HeldCheckpoint& c : checkpoints) {
    if (memory.group && c.step <= memory.group->step) break;
    if (Covers(c.ranges, c.chunks)) {
      if (memory.group) {
        passed_over = Cat("the states in memory are older (step ", memory.group->step,
                          ") than the checkpoint of step ", c.step);
      }
      return UseCheckpoint(c, passed_over);
    }
    const std::string missing = Cat("checkpoint of step ", c.step, " (branch ", c.branch,
                                    ") is not complete here, missing: ", AbsentHosts(c, joiners));
    if (memory.group) continue;  // a state in memory is at hand: nobody is waited for
    if (may_wait) return NotYet(SourceChoice::Kind::kWait, missing);
    passed_over += Cat(passed_over.empty() ? "" : "; ", missing, ": an older one is taken");
  }
  if (memory.group) return UseMemory(memory, branch);

  int64_t progress = recorded_progress;
  for (const Waiting* w : joiners) {
    progress = std::max(progress, w->offer.progress);
    if (w->offer.has_state) progress = std::max(progress, w->offer.step);
    for (const HeldCheckpoint& c : w->offer.checkpoints) progress = std::max(progress, c.step);
  }
  if (progress == 0 && checkpoints.empty()) return {};
  const std::string why =
      Cat("the run has reached step ", progress, ", but no state of it is usable here",
          passed_over.empty() ? "" : " (", passed_over, passed_over.empty() ? "" : ")");
  if (may_wait) return NotYet(SourceChoice::Kind::kWait, why);
  return NotYet(SourceChoice::Kind::kRefuse,
                Cat(kNoUsableState, why,
                    "; start the machines that hold its checkpoints, or begin anew with --fresh"));
}

std::vector<Ranges> AssignRanges(const std::vector<Ranges>& held, int64_t chunks) {
  std::set<int64_t> cuts = {0, chunks};
  for (const Ranges& ranges : held) {
    for (const auto& [first, last] : ranges) {
      if (first < chunks) cuts.insert(first);
      if (last < chunks) cuts.insert(last);
    }
  }
  struct Stretch {
    int64_t first, last;
    std::vector<size_t> holders;
  };
  std::vector<Stretch> stretches;
  for (auto it = cuts.begin(); std::next(it) != cuts.end(); ++it) {
    Stretch s{*it, *std::next(it), {}};
    for (size_t i = 0; i < held.size(); ++i) {
      const bool has = std::any_of(held[i].begin(), held[i].end(), [&s](const auto& range) {
        return range.first <= s.first && s.last <= range.second;
      });
      if (has) s.holders.push_back(i);
    }
    if (!s.holders.empty()) stretches.push_back(std::move(s));
  }
  std::stable_sort(stretches.begin(), stretches.end(), [](const Stretch& a, const Stretch& b) {
    return a.holders.size() < b.holders.size();
  });
  std::vector<int64_t> load(held.size(), 0);
  std::vector<Ranges> out(held.size());
  for (Stretch& s : stretches) {
    std::stable_sort(s.holders.begin(), s.holders.end(),
                     [&load](size_t a, size_t b) { return load[a] < load[b]; });
    // Pour the stretch like water: raise the k lowest holders to one level, k as large as the water
    // reaches.
    int64_t water = s.last - s.first;
    size_t k = 1;
    int64_t sum = load[s.holders[0]];
    while (k < s.holders.size() && load[s.holders[k]] * static_cast<int64_t>(k) - sum < water) {
      sum += load[s.holders[k++]];
    }
    const int64_t level = (sum + water) / static_cast<int64_t>(k);
    int64_t extra = (sum + water) % static_cast<int64_t>(k);
    int64_t at = s.first;
    for (size_t j = 0; j < k; ++j) {
      const size_t reader = s.holders[j];
      const int64_t take = level + (extra-- > 0 ? 1 : 0) - load[reader];
      if (take <= 0) continue;
      out[reader].emplace_back(at, at + take);
      load[reader] += take;
      at += take;
    }
  }
  for (Ranges& ranges : out) {
    std::sort(ranges.begin(), ranges.end());
    Ranges merged;
    for (const auto& range : ranges) {
      if (!merged.empty() && merged.back().second == range.first) {
        merged.back().second = range.second;
      } else {
        merged.push_back(range);
      }
    }
    ranges = std::move(merged);
  }
  return out;
}

}  // namespace holdfast::rendezvous
