// The Join machine under virtual time and faults drawn from a seed: crashes at any action, replies
// lost, requests that arrive late, links to the store cut, certificates late or never, partial
// steps, newcomers. After every event: never two generations with all members inside, no number
// used twice, no state lost that a member holds. After healing: everybody alive is in one
// generation. HOLDFAST_SEEDS sets how many seeds are run, HOLDFAST_SEED a single one.
#include <cstdlib>
#include <functional>
#include <memory>
#include <queue>

#include "gtest/gtest.h"
#include "rendezvous/machine.h"
#include "runtime/base/digest.h"
#include "tests/rendezvous/builders.h"
#include "tests/rendezvous/model_store.h"

namespace holdfast::rendezvous {
namespace {

constexpr int64_t kLease = 3000, kOutage = 20'000, kMargin = 4000;

struct Process {
  std::string id;
  int slot = 0;
  bool alive = true, cut = false, joining = false;
  uint64_t inside = 0;  // generation entered and not left, 0: none
  int64_t step = 0, contact_ms = 0;
  bool has_state = false, vouched = false;
  uint64_t epoch = 0;  // events of an earlier Join are ignored
  Known known;
  std::unique_ptr<JoinMachine> machine;
  Record record;
};

class World {
 public:
  explicit World(uint64_t seed) : rng_(seed), store_(&now_, kLease, kOutage) {
    faults_ = {Draw(2) == 0, Draw(2) == 0, Draw(2) == 0, Draw(2) == 0, Draw(2) == 0};
    slots_ = 2 + static_cast<int>(Draw(4));
    for (int slot = 0; slot < slots_; ++slot) Spawn(slot);
    At(20, [this] { Tick(); });
    At(100, [this] { Beats(); });
    At(50, [this] { Chaos(); });
  }

  void Run() {
    RunUntil(40'000);
    healing_ = true;
    for (auto& p : processes_) p->cut = false;
    for (auto& p : processes_) {
      if (!p->alive) CertifyNow(p->id);
    }
    RunUntil(now_ + 60'000);
    std::set<uint64_t> generations;
    for (auto& p : processes_) {
      if (p->alive) generations.insert(p->inside);
    }
    EXPECT_EQ(generations.size(), 1u) << "not everybody is in one generation after healing";
    EXPECT_EQ(generations.count(0), 0u) << "somebody is in none: " << Stuck();
  }
  int64_t seals() const { return static_cast<int64_t>(rosters_.size()); }

 private:
  struct Event {
    int64_t at;
    uint64_t order;
    std::function<void()> run;
    bool operator>(const Event& o) const { return at != o.at ? at > o.at : order > o.order; }
  };
  struct Faults {
    bool crash, lost_reply, late_request, cut, late_certificate;
  };

  uint64_t Draw(uint64_t n) {
    rng_ = Mix64(rng_);
    return rng_ % n;
  }
  bool Chance(uint64_t per_mille) { return !healing_ && Draw(1000) < per_mille; }
  void At(int64_t delay, std::function<void()> run) {
    events_.push({now_ + delay, order_++, std::move(run)});
  }
  void RunUntil(int64_t end) {
    while (!events_.empty() && events_.top().at <= end && !testing::Test::HasFailure()) {
      Event e = events_.top();
      events_.pop();
      now_ = e.at;
      e.run();
      Check();
    }
    now_ = std::max(now_, end);
  }

  void Spawn(int slot) {
    auto p = std::make_unique<Process>();
    p->id = Cat("p", processes_.size());
    p->slot = slot;
    p->contact_ms = now_;
    processes_.push_back(std::move(p));
    StartJoin(processes_.back().get());
  }
  void CertifyNow(const std::string& id) {
    (void)store_.Certify(store_.CurrentFence(), {id}, "SIGKILL");
  }
  void Kill(Process* p) {
    p->alive = false;
    p->inside = 0;
    ++p->epoch;
    const std::string id = p->id;
    const int64_t delay =
        faults_.late_certificate && Draw(3) == 0 ? 8000 : 5 + static_cast<int64_t>(Draw(50));
    const int slot = p->slot;
    At(delay, [this, id] { CertifyNow(id); });
    At(delay + static_cast<int64_t>(Draw(3000)), [this, slot] { Spawn(slot); });
  }

  void StartJoin(Process* p) {
    if (!p->alive || p->joining) return;
    p->joining = true;
    p->inside = 0;  // the main thread has left
    ++p->epoch;
    JoinOptions o;
    o.id = p->id;
    o.machine = "m";
    o.slot = p->slot;
    o.seal.max_workers = 8;
    o.may_found = true;
    o.lease_ms = kLease;
    o.redis_outage_ms = kOutage;
    Offer offer = MakeWaiting(p->id).offer;
    offer.has_state = p->has_state;
    offer.step = offer.progress = p->step;
    offer.digest = Mix64(static_cast<uint64_t>(p->step));
    offer.vouched = p->vouched;
    offer.expected_local_workers = slots_;
    if (saved_ >= 0) offer.checkpoints = {MakeCheckpoint(saved_, {{0, 10}})};
    p->machine = std::make_unique<JoinMachine>(o, p->known, offer, "r", 0,
                                               std::vector<std::string>(), now_ + kLease);
    Drive(p, JoinEvent());
  }
  void Later(Process* p, int64_t delay, JoinEvent event) {
    const uint64_t epoch = p->epoch;
    At(delay, [this, p, epoch, event] {
      if (!p->alive || p->epoch != epoch) return;
      JoinEvent e = event;
      if (e.kind == JoinEvent::Kind::kRecord) e.record = &p->record;
      Drive(p, e);
    });
  }
  void Drive(Process* p, const JoinEvent& event) {
    if (faults_.crash && Chance(2)) return Kill(p);  // between any two actions
    const JoinAction a = p->machine->On(event, now_);
    p->known = p->machine->known();
    switch (a.kind) {
      case JoinAction::Kind::kSleep:
        return Later(p, a.until_ms - now_, {JoinEvent::Kind::kWokeUp});
      case JoinAction::Kind::kMarkLeft:
        return Later(p, 1, {JoinEvent::Kind::kMarked});
      case JoinAction::Kind::kReturn:
        return OnReturn(p);
      case JoinAction::Kind::kFail:
        // Declared dead while alive (a certificate is always true here) or refused: never expected.
        ADD_FAILURE() << p->id << " fails: " << a.status;
        return;
      default:
        return Ask(p, a);
    }
  }
  // The request travels, is applied once or (late) after the asker has given up, and the answer
  // travels back or is lost.
  void Ask(Process* p, const JoinAction& a) {
    int64_t there = 1 + static_cast<int64_t>(Draw(5));
    if (faults_.late_request && Chance(20)) there = 1500 + static_cast<int64_t>(Draw(3000));
    if (faults_.late_request && Chance(20)) there = static_cast<int64_t>(Draw(900));
    const int64_t back = 1 + static_cast<int64_t>(Draw(5));
    const bool lost = (faults_.lost_reply && Chance(30)) || there > 1000;
    if (p->cut && !healing_) return Later(p, 1000, {JoinEvent::Kind::kStoreFailed});
    const uint64_t epoch = p->epoch;
    At(there, [this, p, a, epoch, back, lost] {
      JoinEvent event;
      if (a.kind == JoinAction::Kind::kRead) {
        if (!p->alive || p->epoch != epoch) return;
        p->record = *store_.Read(p->id, false);
        event.kind = JoinEvent::Kind::kRecord;
      } else {
        event.kind = JoinEvent::Kind::kOutcome;
        event.outcome = Apply(p, a);
      }
      if (!lost) {
        p->contact_ms = now_;
        Later(p, back, event);
      }
    });
    if (lost) Later(p, 1000, {JoinEvent::Kind::kStoreFailed});
  }
  Outcome Apply(Process* p, const JoinAction& a) {
    switch (a.kind) {
      case JoinAction::Kind::kFound:
        return *store_.Found(Cat("run", Draw(1'000'000)), "secret", a.generation);
      case JoinAction::Kind::kJoin:
        return *store_.Join(a.fence, a.waiting);
      case JoinAction::Kind::kRefuse:
        return *store_.Refuse(a.fence, a.seq, a.refusals);
      case JoinAction::Kind::kEnter:
        return *store_.Enter(a.fence, p->id);
      case JoinAction::Kind::kSeal: {
        const uint64_t nonce = Draw(UINT64_MAX) | 1;
        const Outcome outcome = *store_.Seal(a.fence, a.seq, a.plan, nonce);
        if (outcome == Outcome::kApplied) OnSealed(a.plan);
        return outcome;
      }
      default:
        return Outcome::kConflict;
    }
  }
  void OnSealed(const SealPlan& plan) {
    EXPECT_EQ(rosters_.count(plan.generation), 0u)
        << "generation " << plan.generation << " used twice";
    if (!rosters_.empty()) {
      EXPECT_GT(plan.generation, rosters_.rbegin()->first);
    }
    std::vector<std::string> ids;
    int64_t held = -1;
    for (const Member& m : plan.sealed.members) {
      ids.push_back(m.id);
      for (auto& p : processes_) {
        if (p->id == m.id && p->has_state) held = std::max(held, p->step);
      }
    }
    EXPECT_GE(plan.sealed.step, held - 1) << "a state that a member holds was passed over";
    EXPECT_EQ(std::set<std::string>(ids.begin(), ids.end()).size(), ids.size());
    rosters_[plan.generation] = ids;
    saved_ = std::max<int64_t>(saved_, 0);  // a run saves its first state before it steps
  }
  void OnReturn(Process* p) {
    p->joining = false;
    p->inside = p->record.generation;
    p->step = p->record.sealed.step;
    p->has_state = true;
    p->vouched = p->record.sealed.source == Source::kMemory;
  }

  Process* Find(const std::string& id) {
    for (auto& p : processes_) {
      if (p->id == id) return p.get();
    }
    return nullptr;
  }
  bool AllInside(uint64_t generation) {
    const auto it = rosters_.find(generation);
    if (it == rosters_.end()) return false;
    return std::all_of(it->second.begin(), it->second.end(), [&](const std::string& id) {
      Process* p = Find(id);
      return p != nullptr && p->alive && p->inside == generation;
    });
  }
  // One step of every generation that is whole; the members of a broken one notice, sooner or
  // later.
  void Tick() {
    for (const auto& [generation, ids] : rosters_) {
      if (generation + 4 < rosters_.rbegin()->first) continue;
      int64_t youngest = 0;
      for (const std::string& id : ids) youngest = std::max(youngest, Find(id)->contact_ms);
      const bool whole = AllInside(generation);
      const bool own_clock = now_ - youngest > kOutage - kMargin;
      const bool partial = whole && Chance(5);
      // A communicator stands only when all have entered: then all confirm.
      for (const std::string& id : ids) {
        if (whole && !Find(id)->cut) (void)store_.Confirm(store_.CurrentFence(), id);
      }
      for (const std::string& id : ids) {
        Process* p = Find(id);
        if (!p->alive || p->inside != generation) continue;
        if (own_clock || (!whole && Draw(4) == 0 && now_ - p->contact_ms < 5000)) {
          StartJoin(p);
        } else if (whole && !partial) {
          p->vouched = false;
          ++p->step;
          if (p->step % 50 == 0 && p->step > saved_) saved_ = p->step;
        } else if (partial) {
          const bool applied = Draw(2) == 0;
          p->step += applied ? 1 : 0;
          p->vouched = false;
          StartJoin(p);
        }
      }
    }
    At(20, [this] { Tick(); });
  }
  void Beats() {
    for (size_t i = 0; i < processes_.size(); ++i) {
      Process* p = processes_[i].get();
      if (!p->alive || (p->cut && !healing_)) continue;
      Fence fence = store_.CurrentFence();
      const Record record = *store_.Beat(fence, p->id, "");
      p->contact_ms = now_;
      if (p->inside == 0 || p->joining) continue;
      const bool open = record.generation > p->inside || record.round > record.generation;
      if (open || (CountJoiners(record, 8) > 0 && Draw(4) == 0)) StartJoin(p);
    }
    At(500, [this] { Beats(); });
  }
  void Chaos() {
    if (!healing_ && !processes_.empty()) {
      Process* p = processes_[Draw(processes_.size())].get();
      if (p->alive && faults_.crash && Chance(15)) Kill(p);
      if (p->alive && faults_.cut && Chance(20)) {
        p->cut = true;
        At(static_cast<int64_t>(Draw(30'000)), [p] { p->cut = false; });
      }
    }
    At(50, [this] { Chaos(); });
  }
  void Check() {
    int whole = 0;
    for (const auto& [generation, ids] : rosters_) {
      if (generation + 8 < rosters_.rbegin()->first) continue;
      whole += AllInside(generation) ? 1 : 0;
    }
    EXPECT_LE(whole, 1) << "two generations with all members inside at " << now_;
  }
  std::string Stuck() {
    for (auto& p : processes_) {
      if (p->alive && p->inside == 0) return Cat(p->id, " waits for: ", p->machine->waiting_for());
    }
    return "";
  }

  uint64_t rng_;
  int64_t now_ = 1000;
  uint64_t order_ = 0;
  bool healing_ = false;
  int slots_ = 0;
  int64_t saved_ = -1;  // newest checkpoint, which everybody can read; -1: none yet
  Faults faults_;
  ModelStore store_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::map<uint64_t, std::vector<std::string>> rosters_;
};

TEST(ModelTest, RandomFaults) {
  const char* one = std::getenv("HOLDFAST_SEED");
  const char* many = std::getenv("HOLDFAST_SEEDS");
  const uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
  const uint64_t count = one != nullptr    ? 1
                         : many != nullptr ? std::strtoull(many, nullptr, 10)
                                           : 30;
  int64_t seals = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(Cat("HOLDFAST_SEED=", seed));
    World world(Mix64(seed));
    world.Run();
    seals += world.seals();
    if (HasFailure()) break;
  }
  std::printf("%d seeds, %d generations sealed\n", static_cast<int>(count),
              static_cast<int>(seals));
  EXPECT_GT(seals, static_cast<int64_t>(count));
}

}  // namespace
}  // namespace holdfast::rendezvous
