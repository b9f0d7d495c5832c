#include "tests/emulation/fiber.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#if HF_FIBER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if HF_FIBER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

// void hf_fiber_switch(void** save, void* load)
asm(R"(
.text
.globl hf_fiber_switch
.hidden hf_fiber_switch
.type hf_fiber_switch, @function
hf_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size hf_fiber_switch, .-hf_fiber_switch
)");
extern "C" void hf_fiber_switch(void** save, void* load);

namespace holdfast::emulation {
namespace {

constexpr size_t kPage = 4096;
constexpr int kSavedRegisters = 6;
// Frames under a sanitizer are several times as large.
constexpr size_t kStackBytes = HF_FIBER_ASAN || HF_FIBER_TSAN ? 256 * 1024 : 64 * 1024;

// Stacks that all begin at the same place in a page would fight for the same few lines of the
// first-level cache: each fiber of an OS thread begins at another line of its topmost page.
constexpr size_t kLine = 64;
thread_local size_t fibers_made = 0;
size_t NextBegin() { return fibers_made++ * 17 % (kPage / kLine) * kLine; }

// The switch that was made last in this OS thread.
thread_local Fiber* last_from = nullptr;
thread_local Fiber* last_to = nullptr;

}  // namespace

Fiber::Fiber() {
#if HF_FIBER_TSAN
  tsan_ = __tsan_get_current_fiber();
#endif
}

Fiber::Fiber(void (*main)()) : main_(main), bytes_(kStackBytes) {
  memory_ = mmap(nullptr, kPage + kStackBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory_ == MAP_FAILED || mprotect(memory_, kPage, PROT_NONE) != 0) {
    std::fputs("emulated device: no memory for the stack of a kernel's thread\n", stderr);
    std::abort();
  }
  bottom_ = static_cast<char*>(memory_) + kPage;
  bytes_ -= NextBegin();
  Restart();
}

Fiber::~Fiber() {
  if (memory_ == nullptr) return;
#if HF_FIBER_TSAN
  __tsan_destroy_fiber(tsan_);
#endif
  munmap(memory_, kPage + kStackBytes);
}

void Fiber::Restart() {
#if HF_FIBER_ASAN
  __asan_unpoison_memory_region(bottom_, bytes_);  // redzones of frames that were given up
  asan_stack_ = nullptr;
#endif
#if HF_FIBER_TSAN
  if (tsan_ != nullptr) __tsan_destroy_fiber(tsan_);
  tsan_ = __tsan_create_fiber(0);
#endif
  // As hf_fiber_switch leaves it: registers, where to return to. One word more, so that `main`
  // finds the stack as after a call.
  auto** top = reinterpret_cast<void**>(static_cast<char*>(memory_) + kPage + bytes_);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Fiber::Entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  stack_pointer_ = top;
}

void Fiber::Entry() {
  Arrived();
  last_to->main_();
  std::abort();
}

void Fiber::Arrived() {
#if HF_FIBER_ASAN
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(last_to->asan_stack_, &bottom, &bytes);
  if (last_from->memory_ == nullptr) {  // only now is it known where the OS thread's stack lies
    last_from->bottom_ = bottom;
    last_from->bytes_ = bytes;
  }
#endif
}

void Fiber::Switch(Fiber& from, Fiber& to) {
  last_from = &from;
  last_to = &to;
#if HF_FIBER_ASAN
  __sanitizer_start_switch_fiber(&from.asan_stack_, to.bottom_, to.bytes_);
#endif
#if HF_FIBER_TSAN
  __tsan_switch_to_fiber(to.tsan_, __tsan_switch_to_fiber_no_sync);
#endif
  hf_fiber_switch(&from.stack_pointer_, to.stack_pointer_);
  Arrived();
}

}  // namespace holdfast::emulation
