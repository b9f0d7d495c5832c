#include "tests/emulation/executor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runtime/base/text.h"

#if HF_FIBER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{};
constinit thread_local dim3 gridDim{};

namespace holdfast::emulation {
namespace {

// Behind dynamic shared memory; AddressSanitizer sees for itself what is beyond.
constexpr size_t kCanaryBytes = HF_FIBER_ASAN ? 0 : 64;
constexpr unsigned char kPoison = 0xff;  // floats of it are NaN
constexpr int kToldThreads = 4;

// What ThreadSanitizer is told of the order between the threads of a block.
void Release([[maybe_unused]] void* at) {
#if HF_FIBER_TSAN
  __tsan_release(at);
#endif
}
void Acquire([[maybe_unused]] void* at) {
#if HF_FIBER_TSAN
  __tsan_acquire(at);
#endif
}

std::string Where(Site site) { return Cat(site.file, ":", site.line); }
std::string Text(uint3 i) { return Cat("(", i.x, ",", i.y, ",", i.z, ")"); }
bool Same(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

}  // namespace

Executor& Executor::Mine() {
  // Asked for at every step of a kernel: the pointer alone needs no guard.
  constinit thread_local Executor* known = nullptr;
  if (known == nullptr) {
    thread_local std::unique_ptr<Executor> mine = std::make_unique<Executor>();
    known = mine.get();
  }
  return *known;
}

void Executor::Begin(const std::vector<int>& order, const std::function<void()>& body,
                     int64_t shared_bytes) {
  body_ = &body;
  order_ = order.data();
  count_ = static_cast<int>(order.size());
  threads_.resize(order.size());
  ready_.resize(order.size());
  ready_begin_ = ready_count_ = 0;
  // A list that a fiber lets grow would look like a race of the kernel's to ThreadSanitizer.
  const size_t fibers = std::max(fibers_.size(), order.size());
  fibers_.reserve(fibers);
  free_.reserve(fibers);
  warps_.assign((order.size() + kLanes - 1) / kLanes, {});
  for (int i = 0; i < count_; ++i) {
    const auto n = static_cast<unsigned>(i);
    threads_[i].number = i;
    threads_[i].index = {n % blockDim.x, n / blockDim.x % blockDim.y, n / blockDim.x / blockDim.y};
  }
  shared_bytes_ = static_cast<size_t>(shared_bytes);
  // New memory of exactly this size: AddressSanitizer then knows where it ends.
  shared_ = std::vector<unsigned char>(shared_bytes_ + kCanaryBytes);
}

absl::Status Executor::RunBlock() {
  started_ = done_ = at_barrier_ = 0;
  for (Thread& thread : threads_) thread.state = State::kNotStarted;
  std::fill(shared_.begin(), shared_.end(), kPoison);
  running_ = true;
  on_ = &main_;
  Release(&begin_);
  SwitchTo(Next());
  Acquire(&end_);
  running_ = false;
  const auto spoilt = [](unsigned char c) { return c != kPoison; };
  if (failure_.empty() && std::any_of(shared_.begin() + shared_bytes_, shared_.end(), spoilt))
    failure_ = "a thread wrote behind the end of dynamic shared memory";
  if (failure_.empty()) return absl::OkStatus();
  GiveUp();
  return absl::InternalError(std::exchange(failure_, ""));
}

// Threads that stopped half-way do not go on.
void Executor::GiveUp() {
  ready_begin_ = ready_count_ = 0;
  for (Warp& warp : warps_) warp.arrived = 0;
  for (const auto& fiber : fibers_) {
    if (std::find(free_.begin(), free_.end(), fiber.get()) != free_.end()) continue;
    fiber->Restart();
    free_.push_back(fiber.get());
  }
}

void Executor::FiberMain() {
  Executor& self = Mine();
  for (;;) {
    self.RunThread(*self.current_);
    Thread* next = self.Next();
    if (next == nullptr || next->state != State::kNotStarted) {
      self.free_.push_back(self.on_);
      self.SwitchTo(next);  // comes back with a thread that has not started
    } else {
      self.current_ = next;
    }
  }
}

void Executor::RunThread(Thread& thread) {
  thread.state = State::kRunning;
  thread.fiber = on_;
  threadIdx = thread.index;
  Acquire(&begin_);
  (*body_)();
  Release(&end_);
  thread.state = State::kDone;
  ++done_;
}

Executor::Thread* Executor::Next() {
  if (ready_count_ > 0) {
    Thread* next = ready_[ready_begin_];
    ready_begin_ = ready_begin_ + 1 == count_ ? 0 : ready_begin_ + 1;
    --ready_count_;
    return next;
  }
  if (started_ < count_) return &threads_[order_[started_++]];
  if (done_ < count_) failure_ = Waiting();
  return nullptr;
}

void Executor::Wake(Thread& thread) {
  thread.state = State::kRunning;
  int at = ready_begin_ + ready_count_++;
  if (at >= count_) at -= count_;
  ready_[at] = &thread;
}

Fiber* Executor::FreeFiber() {
  if (free_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>(&Executor::FiberMain));
    return fibers_.back().get();
  }
  Fiber* fiber = free_.back();
  free_.pop_back();
  return fiber;
}

void Executor::SwitchTo(Thread* thread) {
  Fiber* const from = on_;
  if (thread == nullptr) {
    on_ = &main_;
    Release(&end_);
  } else {
    on_ = thread->state == State::kNotStarted ? FreeFiber() : thread->fiber;
    threadIdx = thread->index;
  }
  current_ = thread;
  if (on_ != from) Fiber::Switch(*from, *on_);
}

void Executor::Suspend() {
  Release(&end_);  // it may be given up here
  SwitchTo(Next());
}

void Executor::Fail(std::string message) {
  failure_ = std::move(message);
  SwitchTo(nullptr);
  std::abort();  // a block that failed does not go on
}

std::string Executor::Waiting() const {
  std::string text;
  int told = 0;
  for (const Thread& t : threads_) {
    if (t.state == State::kDone || ++told > kToldThreads) continue;
    text += Cat(told == 1 ? "" : ", ", "thread ", Text(t.index), " in ",
                t.state == State::kAtBarrier ? "__syncthreads" : t.name, " at ", Where(t.site));
  }
  if (told > kToldThreads) text += Cat(" and ", told - kToldThreads, " more");
  return Cat("threads wait for others that never come: ", text, "; ", done_, " of ", count_,
             " have returned");
}

void Executor::Barrier(Site site) {
  Thread& me = *current_;
  me.site = site;
  char* const mark = &phases_[phase_];
  Release(mark);
  if (++at_barrier_ < count_) {
    me.state = State::kAtBarrier;
    Suspend();
  } else {
    at_barrier_ = 0;
    phase_ ^= 1;
    for (int i = 0; i < count_; ++i) {
      Thread& t = threads_[order_[i]];
      if (!Same(t.site, site)) {
        std::string wrong = Cat("__syncthreads: thread ", Text(t.index), " is at ", Where(t.site),
                                ", thread ", Text(me.index), " at ", Where(site));
        Fail(std::move(wrong));
      }
      if (&t != &me) Wake(t);
    }
  }
  Acquire(mark);
}

std::string Executor::Disagreement(unsigned mask, const Thread& me, int first) const {
  for (int l = 0; l < kLanes; ++l) {
    if ((mask >> l & 1u) == 0) continue;
    const Thread& other = threads_[first + l];
    if (other.mask == mask && other.name == me.name && Same(other.site, me.site)) continue;
    return Cat("thread ", Text(me.index), " is in ", me.name, " at ", Where(me.site), ", thread ",
               Text(other.index), " of its mask in ", other.name, " at ", Where(other.site),
               other.mask == mask ? "" : " with another mask");
  }
  return "";
}

void Executor::Meet(unsigned mask, const char* name, Exchange exchange, void* mine, Site site) {
  Thread& me = *current_;
  Warp& warp = warps_[me.number / kLanes];
  const int first = me.number / kLanes * kLanes, own = me.number - first;
  me.site = site;
  me.mask = mask;
  me.name = name;
  me.mine = mine;
  warp.arrived |= 1u << own;
  if ((mask >> own & 1u) != 0 && (warp.arrived & mask) != mask) {
    me.state = State::kInWarp;
    Suspend();
    return;
  }
  std::string wrong = (mask >> own & 1u) != 0 ? Disagreement(mask, me, first)
                                              : Cat(name, " at ", Where(site), ": thread ",
                                                    Text(me.index), " is not in its own mask");
  void* lanes[kLanes] = {};
  if (wrong.empty()) {
    for (int l = 0; l < kLanes; ++l) {
      if ((mask >> l & 1u) != 0) lanes[l] = threads_[first + l].mine;
    }
    if (const char* what = exchange(lanes)) wrong = Cat(name, " at ", Where(site), ": ", what);
  }
  if (!wrong.empty()) Fail(std::move(wrong));
  warp.arrived &= ~mask;
  for (int l = 0; l < kLanes; ++l) {
    if ((mask >> l & 1u) != 0 && l != own) Wake(threads_[first + l]);
  }
}

void Executor::SyncWarp(unsigned mask, Site site) {
  char* const mark = &warps_[current_->number / kLanes].synced;
  Release(mark);
  Meet(
      mask, "__syncwarp", [](void* const*) -> const char* { return nullptr; }, nullptr, site);
  Acquire(mark);
}

}  // namespace holdfast::emulation
