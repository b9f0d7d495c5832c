// The scheduler behind simt.h: runs the threads of one block after the other as fibers of the
// calling OS thread. Used by simt.cc only; one Executor belongs to one OS thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/emulation/fiber.h"
#include "tests/emulation/simt.h"

namespace holdfast::emulation {

inline constexpr int kLanes = 32;

// A fiber takes the threads that have not started one after the other; when the one on it waits,
// another fiber goes on. Threads that need not wait any more go before new ones, so that a warp's
// work stays together.
class Executor {
 public:
  // The calling OS thread's own.
  static Executor& Mine();

  // For the blocks that follow: their threads start in this order (a permutation of 0..n-1), each
  // runs `body`. Both must stay while blocks run.
  void Begin(const std::vector<int>& order, const std::function<void()>& body,
             int64_t shared_bytes);
  // One block: the built-in variables but threadIdx are set. kInternal says what the kernel does
  // wrong.
  [[nodiscard]] absl::Status RunBlock();
  [[nodiscard]] bool running() const { return running_; }

  // From inside a kernel.
  [[nodiscard]] int lane() const { return current_->number % kLanes; }
  [[nodiscard]] void* shared() { return shared_.data(); }
  void Barrier(Site site);
  void Meet(unsigned mask, const char* name, Exchange exchange, void* mine, Site site);
  void SyncWarp(unsigned mask, Site site);

 private:
  enum class State : uint8_t { kNotStarted, kRunning, kAtBarrier, kInWarp, kDone };
  struct Thread {
    State state = State::kNotStarted;
    int number = 0;  // in the block
    uint3 index{};
    Fiber* fiber = nullptr;
    // Where it waits; mask, name and mine in a warp operation only.
    Site site;
    unsigned mask = 0;
    const char* name = nullptr;
    void* mine = nullptr;
  };
  struct Warp {
    unsigned arrived = 0;  // lanes that wait in a warp operation
    char synced = 0;       // an address for ThreadSanitizer
  };

  static void FiberMain();
  void RunThread(Thread& thread);
  Thread* Next();                 // null: the block is over, or has failed
  void Suspend();                 // the current thread waits; returns when it goes on
  void SwitchTo(Thread* thread);  // null: to RunBlock
  void Wake(Thread& thread);
  [[noreturn]] void Fail(std::string message);
  std::string Waiting() const;
  std::string Disagreement(unsigned mask, const Thread& me, int first) const;
  Fiber* FreeFiber();
  void GiveUp();

  Fiber main_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;

  const std::function<void()>* body_ = nullptr;
  const int* order_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned char> shared_;
  size_t shared_bytes_ = 0;

  // The block that runs.
  int count_ = 0, started_ = 0, done_ = 0, at_barrier_ = 0;
  std::vector<Thread*> ready_;  // a ring: no thread is in it twice
  int ready_begin_ = 0, ready_count_ = 0;
  Fiber* on_ = nullptr;
  Thread* current_ = nullptr;
  bool running_ = false;
  std::string failure_;
  // Addresses for ThreadSanitizer: the order that a block's begin, end and barriers make.
  char begin_ = 0, end_ = 0, phases_[2] = {};
  int phase_ = 0;
};

}  // namespace holdfast::emulation
