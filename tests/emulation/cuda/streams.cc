#include <pthread.h>
#include <signal.h>
#include <xmmintrin.h>

#include <thread>
#include <utility>

#include "tests/emulation/cuda/runtime.h"
#include "tests/emulation/faults.h"

using holdfast::emulation::Acquire;
using holdfast::emulation::DeviceLost;
using holdfast::emulation::FaultAction;
using holdfast::emulation::InHostFunction;
using holdfast::emulation::Point;
using holdfast::emulation::ReachFaultPoint;
using holdfast::emulation::Release;
using holdfast::emulation::Returned;
using holdfast::emulation::Runtime;
using holdfast::emulation::StreamPointer;
using holdfast::emulation::Unseen;

namespace holdfast::emulation {

void Point::Reach() {
  {
    std::lock_guard lock(mutex_);
    when_ = std::chrono::steady_clock::now();
    reached_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

bool Point::reached() const {
  if (!reached_.load(std::memory_order_acquire)) return false;
  Acquire(this);
  return true;
}

void Point::Wait() {
  {
    const Unseen unseen;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reached_.load(std::memory_order_acquire); });
  }
  Acquire(this);
}

cudaError_t Submit(cudaStream_t handle, std::function<void()> work) {
  Runtime& runtime = Runtime::Instance();
  if (const cudaError_t entered = runtime.Enter(); entered != cudaSuccess) return entered;
  const StreamPointer stream = runtime.FindStream(handle);
  if (stream == nullptr || stream->device != CurrentDevice()) return cudaErrorInvalidResourceHandle;
  const FaultAction fault = ReachFaultPoint("cuda.launch");
  const int code = fault.code;
  switch (fault.kind) {
    case FaultAction::kError:
      return code != 0 ? static_cast<cudaError_t>(code) : cudaErrorLaunchOutOfResources;
    case FaultAction::kSticky:
      work = [device = stream->device, code] {
        Runtime::Instance().LoseDevice(device, code != 0 ? code : cudaErrorIllegalAddress);
      };
      break;
    case FaultAction::kHang:
      work = [] { HangForEver(); };
      break;
    case FaultAction::kNone:
      break;
  }
  runtime.Push(stream, std::move(work));
  return cudaSuccess;
}

void Enqueue(cudaStream_t stream, std::function<void()> work) {
  (void)Returned(Submit(stream, std::move(work)));
}

}  // namespace holdfast::emulation

// ---- CUstream_st

CUstream_st::CUstream_st(int of_device, unsigned with_flags, int with_priority, uint64_t serial)
    : device(of_device),
      flags(with_flags),
      priority(with_priority),
      delays_(Runtime::Instance().delay_seed() * 0x9e3779b97f4a7c15ull + serial) {}

void CUstream_st::Start() {
  sigset_t all, before;  // signals are for the program's threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([self = shared_from_this()] { self->Run(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void CUstream_st::Push(std::function<void()> work) {
  PushWork({std::move(work), nullptr, nullptr});
}

void CUstream_st::Push(std::shared_ptr<Point> point) {
  PushWork({nullptr, std::move(point), nullptr});
}

void CUstream_st::PushWork(Work work) {
  work.pushed = std::make_unique<char>();
  Release(work.pushed.get());
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    ++pushed_;
  }
  changed_.notify_all();
}

bool CUstream_st::idle() {
  {
    std::lock_guard lock(mutex_);
    if (done_ != pushed_) return false;
  }
  Acquire(&done_);
  return true;
}

void CUstream_st::Drain() {
  {
    std::unique_lock lock(mutex_);
    const uint64_t until = pushed_;
    changed_.wait(lock, [&] { return done_ >= until; });
  }
  Acquire(&done_);
}

void CUstream_st::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void CUstream_st::Pause() {
  const int64_t max_us = Runtime::Instance().delay_us_max();
  if (max_us == 0) return;
  const auto us = static_cast<int64_t>(delays_() % static_cast<uint64_t>(max_us + 1));
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

bool CUstream_st::Next(Work& work) {
  const Unseen unseen;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
  if (queue_.empty()) return false;
  work = std::move(queue_.front());
  queue_.pop_front();
  return true;
}

void CUstream_st::Finish(Work work) {
  Release(&done_);
  if (work.point != nullptr) Release(work.point.get());
  const Unseen unseen;
  work.run = nullptr;  // lets go of what it holds before it counts as done
  {
    std::lock_guard lock(mutex_);
    ++done_;
    if (work.point != nullptr) work.point->Reach();  // at once: both ways to ask agree
  }
  changed_.notify_all();
  work = {};
}

void CUstream_st::Run() {
  pthread_setname_np(pthread_self(), "emulated-stream");
  _mm_setcsr(0x1f80);  // as a GPU: to nearest, subnormals kept, nothing traps
  for (Work work; Next(work); Finish(std::move(work))) {
    Acquire(work.pushed.get());
    Pause();
    if (work.run != nullptr && !DeviceLost(device)) work.run();
  }
}

// ---- Calls on streams

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  HF_ENTER();
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  HF_ENTER();
  if (stream == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0)
    return Returned(cudaErrorInvalidValue);
  *stream = Runtime::Instance()
                .NewStream(holdfast::emulation::CurrentDevice(), flags,
                           priority > 0 ? 0 : (priority < -5 ? -5 : priority))
                .get();
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  HF_ENTER();
  const StreamPointer stream = Runtime::Instance().FindStream(handle);
  if (stream == nullptr) return Returned(cudaErrorInvalidResourceHandle);
  *priority = stream->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  HF_ENTER();
  const StreamPointer stream = handle == nullptr ? nullptr : Runtime::Instance().FindStream(handle);
  if (stream == nullptr || !Runtime::Instance().ForgetStream(handle))
    return Returned(cudaErrorInvalidResourceHandle);
  stream->Close();
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  HF_ENTER();
  const StreamPointer stream = Runtime::Instance().FindStream(handle);
  if (stream == nullptr) return Returned(cudaErrorInvalidResourceHandle);
  const bool idle = stream->idle();
  HF_ENTER();  // the work may have lost the device
  return idle ? cudaSuccess : Returned(cudaErrorNotReady);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  HF_ENTER();
  const StreamPointer stream = Runtime::Instance().FindStream(handle);
  if (stream == nullptr) return Returned(cudaErrorInvalidResourceHandle);
  stream->Drain();
  HF_ENTER();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int flags) {
  HF_ENTER();
  const StreamPointer stream = Runtime::Instance().FindStream(handle);
  if (stream == nullptr || event == nullptr) return Returned(cudaErrorInvalidResourceHandle);
  if (flags != cudaEventWaitDefault) return Returned(cudaErrorInvalidValue);
  std::shared_ptr<Point> point;
  {
    std::lock_guard lock(event->mutex);
    point = event->point;
  }
  if (point != nullptr) Runtime::Instance().Push(stream, [point] { point->Wait(); });
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t fn, void* user) {
  if (fn == nullptr) return Returned(cudaErrorInvalidValue);
  return Returned(holdfast::emulation::Submit(handle, [fn, user] {
    InHostFunction(true);
    fn(user);
    InHostFunction(false);
  }));
}

// ---- Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  HF_ENTER();
  if (event == nullptr || flags > 7) return Returned(cudaErrorInvalidValue);
  *event = new CUevent_st;
  (*event)->flags = flags;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return Returned(cudaErrorInvalidResourceHandle);
  delete event;  // on a lost device too
  HF_ENTER();
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  HF_ENTER();
  const StreamPointer stream = Runtime::Instance().FindStream(handle);
  if (stream == nullptr || event == nullptr) return Returned(cudaErrorInvalidResourceHandle);
  auto point = std::make_shared<Point>();
  {
    std::lock_guard lock(event->mutex);
    event->point = point;
  }
  Runtime::Instance().Push(stream, point);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  HF_ENTER();
  if (event == nullptr) return Returned(cudaErrorInvalidResourceHandle);
  bool reached = true;
  {
    std::lock_guard lock(event->mutex);
    reached = event->point == nullptr || event->point->reached();
  }
  HF_ENTER();
  return reached ? cudaSuccess : Returned(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  HF_ENTER();
  if (event == nullptr) return Returned(cudaErrorInvalidResourceHandle);
  std::shared_ptr<Point> point;
  {
    std::lock_guard lock(event->mutex);
    point = event->point;
  }
  if (point != nullptr) point->Wait();
  HF_ENTER();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  HF_ENTER();
  if (start == nullptr || end == nullptr) return Returned(cudaErrorInvalidResourceHandle);
  std::shared_ptr<Point> from, to;
  for (const auto& [event, point] : {std::pair{start, &from}, std::pair{end, &to}}) {
    std::lock_guard lock(event->mutex);
    if (event->point == nullptr || (event->flags & cudaEventDisableTiming) != 0)
      return Returned(cudaErrorInvalidResourceHandle);
    *point = event->point;
  }
  if (!from->reached() || !to->reached()) return Returned(cudaErrorNotReady);
  *ms = std::chrono::duration<float, std::milli>(to->when() - from->when()).count();
  return cudaSuccess;
}
