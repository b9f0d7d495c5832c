// A stack of its own for code that stops in the middle and goes on later, in the same OS thread.
// A switch saves what the ABI makes a called function keep (rbx, rbp, r12-r15, rsp); MXCSR and the
// x87 control word belong to the OS thread: no kernel changes them, and RunGrid sets them once.
// Sanitizers are told of every switch.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__)
#error "fibers of the emulated device are written for x86-64 only"
#endif

#if defined(__SANITIZE_ADDRESS__)
#define HF_FIBER_ASAN 1
#else
#define HF_FIBER_ASAN 0
#endif
// simt.cc itself is compiled without TSan's instrumentation, so CMake has to say it.
#if !defined(HF_FIBER_TSAN)
#define HF_FIBER_TSAN 0
#endif

namespace holdfast::emulation {

class Fiber {
 public:
  // The stack that the OS thread came with.
  Fiber();
  // `main` runs at the first switch to the fiber, and must not return. Ends the process when there
  // is no memory for the stack.
  explicit Fiber(void (*main)());
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  // Forgets where the fiber stopped: the next switch to it runs `main` again. What lies on its
  // stack is not destroyed.
  void Restart();
  // From `from`, which is running, to `to`. Returns when something switches back to `from`.
  static void Switch(Fiber& from, Fiber& to);

 private:
  static void Arrived();  // first thing on the stack that was switched to
  static void Entry();

  void (*const main_)() = nullptr;
  void* stack_pointer_ = nullptr;
  void* memory_ = nullptr;  // guard page, then the stack
  const void* bottom_ = nullptr;
  size_t bytes_ = 0;
  void* asan_stack_ = nullptr;
  void* tsan_ = nullptr;
};

}  // namespace holdfast::emulation
