// What ThreadSanitizer is told of the stand-ins. Work of two streams is ordered by what the program
// asked for (the order of a stream, events, waiting), and by nothing else: what a stream's thread
// does with locks, counters and sockets beside its work would order it, too, by chance, and hide a
// wait that was forgotten. So that is hidden (Unseen), and each order that CUDA promises is said
// (Release, Acquire). All of this is nothing in other builds.
//
// Threads: any.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void __tsan_acquire(void* at);
void __tsan_release(void* at);
void __tsan_read_range(void* from, unsigned long bytes);
void __tsan_write_range(void* to, unsigned long bytes);
}
#define HF_EMULATION_TSAN 1
#else
#define HF_EMULATION_TSAN 0
#endif

namespace holdfast::emulation {

#if HF_EMULATION_TSAN

// While it lives: locks and atomics order nothing, accesses to memory are not looked at.
class Unseen {
 public:
  Unseen() {
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

// Not inside Unseen. What came before a Release is before what follows an Acquire of the same
// address.
inline void Release(const void* at) { __tsan_release(const_cast<void*>(at)); }
inline void Acquire(const void* at) { __tsan_acquire(const_cast<void*>(at)); }
// Accesses that it does not see by itself.
inline void Reads(const void* from, size_t bytes) {
  __tsan_read_range(const_cast<void*>(from), bytes);
}
inline void Writes(void* to, size_t bytes) { __tsan_write_range(to, bytes); }

#else

class Unseen {
 public:
  Unseen() {}
  ~Unseen() {}
};
inline void Release(const void*) {}
inline void Acquire(const void*) {}
inline void Reads(const void*, size_t) {}
inline void Writes(void*, size_t) {}

#endif

}  // namespace holdfast::emulation
