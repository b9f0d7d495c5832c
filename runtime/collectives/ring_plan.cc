#include "runtime/collectives/ring_plan.h"

#include <algorithm>

namespace holdfast {
namespace {

// One member's view of the ring while its plan is laid.
class Planner {
 public:
  Planner(RingPosition at, std::span<const int64_t> borders) : at_(at), borders_(borders) {}

  int Slice(int number) const { return ((number % at_.world) + at_.world) % at_.world; }
  // Bytes of round `round` of a slice, and where they begin.
  int64_t RoundBegin(int slice, int64_t round) const {
    return borders_[slice] + round * kRoundBytes;
  }
  int64_t RoundBytes(int slice, int64_t round) const {
    return std::clamp<int64_t>(borders_[slice + 1] - RoundBegin(slice, round), 0, kRoundBytes);
  }
  int64_t Rounds() const {
    int64_t longest = 0;
    for (int s = 0; s < at_.world; ++s) longest = std::max(longest, borders_[s + 1] - borders_[s]);
    return (longest + kRoundBytes - 1) / kRoundBytes;
  }

  // One step: first its sends, then its receives are added to the plan; each step knows where the
  // one before began.
  void BeginStep() {
    last_send_begin_ = send_begin_;
    last_receive_begin_ = receive_begin_;
    send_begin_ = static_cast<uint32_t>(plan.sends.size());
    receive_begin_ = static_cast<uint32_t>(plan.receives.size());
  }
  // `relayed`: chunk c of these bytes is chunk c received in the step before.
  void Send(const std::byte* data, int64_t bytes, bool relayed) {
    for (int64_t at = 0, c = 1; at < bytes; at += kChunkBytes, ++c) {
      const uint32_t need = relayed ? last_receive_begin_ + static_cast<uint32_t>(c) : 0;
      plan.sends.push_back({data + at, ChunkBytes(bytes, at), need});
    }
  }
  // The place of chunk c is scratch that held what was sent as chunk c of the step before.
  uint32_t ScratchFree(int64_t chunk) const {
    return std::min(last_send_begin_ + static_cast<uint32_t>(chunk) + 1, send_begin_);
  }
  static uint32_t ChunkBytes(int64_t bytes, int64_t at) {
    return static_cast<uint32_t>(std::min(kChunkBytes, bytes - at));
  }

  RingPlan plan;

 private:
  RingPosition at_;
  std::span<const int64_t> borders_;
  uint32_t send_begin_ = 0, receive_begin_ = 0, last_send_begin_ = 0, last_receive_begin_ = 0;
};

struct Reduction {
  const std::byte* in;
  std::byte* out;  // slice `rank` only
  std::byte* scratch;
  Arithmetic add;
  bool through_scratch;  // `out` is `in`'s own slice: the last step must not receive over it
};

void LayReduceScatter(RingPosition at, std::span<const int64_t> borders, const Reduction& r,
                      Planner* p) {
  const int steps = at.world - 1;
  const int64_t rounds = p->Rounds();
  int64_t t = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    for (int step = 0; step < steps; ++step, ++t) {
      const int send_slice = p->Slice(at.rank - 1 - step), slice = p->Slice(at.rank - 2 - step);
      const bool last = step == steps - 1;
      p->BeginStep();
      const std::byte* source = step == 0 ? r.in + p->RoundBegin(send_slice, round)
                                          : r.scratch + (t + 1) % 2 * kRoundBytes;
      p->Send(source, p->RoundBytes(send_slice, round), step > 0);
      const int64_t bytes = p->RoundBytes(slice, round), begin = p->RoundBegin(slice, round);
      for (int64_t done = 0; done < bytes; done += kChunkBytes) {
        std::byte* half = r.scratch + t % 2 * kRoundBytes + done;
        std::byte* out = last ? r.out + (begin - borders[slice]) + done : half;
        ReceiveChunk chunk;
        chunk.place = last && !r.through_scratch ? out : half;
        chunk.bytes = Planner::ChunkBytes(bytes, done);
        chunk.need_sent = chunk.place == half ? p->ScratchFree(done / kChunkBytes) : 0;
        chunk.add = r.add;
        chunk.addend = r.in + begin + done;
        chunk.sum = out;
        p->plan.receives.push_back(chunk);
      }
    }
  }
}

void LayAllGather(RingPosition at, std::span<const int64_t> borders, std::byte* data, Planner* p) {
  const uint32_t sent_before = static_cast<uint32_t>(p->plan.sends.size());
  for (int step = 0; step < at.world - 1; ++step) {
    const int send_slice = p->Slice(at.rank - step), slice = p->Slice(at.rank - 1 - step);
    const size_t first_send = p->plan.sends.size();
    const uint32_t own_ready = static_cast<uint32_t>(p->plan.receives.size());
    p->BeginStep();
    p->Send(data + borders[send_slice], borders[send_slice + 1] - borders[send_slice], step > 0);
    // After a reduce-scatter, the own slice is whole when all of it was received.
    if (step == 0) {
      for (size_t i = first_send; i < p->plan.sends.size(); ++i)
        p->plan.sends[i].need_received = own_ready;
    }
    const int64_t bytes = borders[slice + 1] - borders[slice];
    for (int64_t done = 0; done < bytes; done += kChunkBytes) {
      ReceiveChunk chunk;
      chunk.place = data + borders[slice] + done;
      chunk.bytes = Planner::ChunkBytes(bytes, done);
      chunk.need_sent =
          sent_before;  // nothing of the data may be overwritten before it was sent to be reduced
      p->plan.receives.push_back(chunk);
    }
  }
}

template <typename T>
void AddArrays(std::byte* sum, const std::byte* a, const std::byte* b, size_t bytes) {
  T* s = reinterpret_cast<T*>(sum);
  const T* x = reinterpret_cast<const T*>(a);
  const T* y = reinterpret_cast<const T*>(b);
  const size_t count = bytes / sizeof(T);
  for (size_t i = 0; i < count; ++i) s[i] = x[i] + y[i];
}

}  // namespace

RingPlan PlanReduceScatter(RingPosition at, std::span<const int64_t> borders, const std::byte* in,
                           std::byte* out, std::byte* scratch, Arithmetic add) {
  Planner planner(at, borders);
  LayReduceScatter(at, borders, {in, out, scratch, add, false}, &planner);
  return std::move(planner.plan);
}

RingPlan PlanAllGather(RingPosition at, std::span<const int64_t> borders, std::byte* data) {
  Planner planner(at, borders);
  LayAllGather(at, borders, data, &planner);
  return std::move(planner.plan);
}

RingPlan PlanAllReduce(RingPosition at, std::span<const int64_t> borders, std::byte* data,
                       std::byte* scratch) {
  Planner planner(at, borders);
  LayReduceScatter(at, borders, {data, data + borders[at.rank], scratch, Arithmetic::kInt64, true},
                   &planner);
  LayAllGather(at, borders, data, &planner);
  return std::move(planner.plan);
}

RingPlan PlanBroadcast(RingPosition at, int root, std::byte* data, int64_t bytes) {
  RingPlan plan;
  const int distance = (at.rank - root + at.world) % at.world;
  uint32_t number = 0;
  for (int64_t done = 0; done < bytes; done += kChunkBytes) {
    const uint32_t size = Planner::ChunkBytes(bytes, done);
    ++number;
    if (distance > 0) {
      ReceiveChunk chunk;
      chunk.place = data + done;
      chunk.bytes = size;
      plan.receives.push_back(chunk);
    }
    if (distance < at.world - 1)
      plan.sends.push_back({data + done, size, distance > 0 ? number : 0});
  }
  return plan;
}

void AddWords(Arithmetic add, std::byte* sum, const std::byte* a, const std::byte* b,
              size_t bytes) {
  if (add == Arithmetic::kInt64) AddArrays<uint64_t>(sum, a, b, bytes);
  if (add == Arithmetic::kFloat) AddArrays<float>(sum, a, b, bytes);
}

void AddChunk(const ReceiveChunk& chunk) {
  AddWords(chunk.add, chunk.sum, chunk.place, chunk.addend, chunk.bytes);
}

}  // namespace holdfast
