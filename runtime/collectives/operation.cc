#include "runtime/collectives/operation.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/bytes.h"
#include "runtime/base/digest.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {

// A direct operation sends at most this much in all from one member.
constexpr int64_t kMaxDirectSent = 128 << 10;

std::string_view KindText(OpKind kind) {
  switch (kind) {
    case OpKind::kReduceScatter:
      return "reduce-scatter";
    case OpKind::kReduceScatterFloat:
      return "reduce-scatter of floats";
    case OpKind::kAllReduce:
      return "all-reduce";
    case OpKind::kAllGather:
      return "all-gather";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kBarrier:
      return "barrier";
    case OpKind::kClose:
      return "close";
  }
  return "unknown";
}

int64_t LongestPart(const Operation& op) {
  int64_t longest = 0;
  if (op.kind == OpKind::kAllReduce) return op.borders.back();
  for (size_t i = 0; i + 1 < op.borders.size(); ++i)
    longest = std::max(longest, op.borders[i + 1] - op.borders[i]);
  return longest;
}

Arithmetic ArithmeticOf(OpKind kind) {
  if (kind == OpKind::kReduceScatter || kind == OpKind::kAllReduce) return Arithmetic::kInt64;
  return kind == OpKind::kReduceScatterFloat ? Arithmetic::kFloat : Arithmetic::kNone;
}

}  // namespace

void FixShape(Operation* op, int world) {
  ByteWriter w;
  w.Put(op->kind);
  w.Put(op->root);
  for (const int64_t border : op->borders) w.Put(border);
  op->shape = Hash64(w.bytes());
  const int64_t longest = LongestPart(*op);
  op->direct = longest <= kMaxDirectBytes && longest * (world - 1) <= kMaxDirectSent;
}

FrameHeader Operation::Header(FrameType type) const {
  FrameHeader header;
  header.type = type;
  header.kind = static_cast<uint8_t>(kind);
  header.step = tag.step;
  header.attempt = tag.attempt;
  header.bucket = tag.bucket;
  header.op = index;
  header.shape = shape;
  return header;
}

std::string Operation::Text() const {
  return Cat("operation ", index, " (", KindText(kind), ", step ", tag.step, " attempt ",
             tag.attempt, " bucket ", tag.bucket, ")");
}

absl::Status Operation::Match(const FrameHeader& header, const std::string& peer) const {
  const bool same_tag =
      header.step == tag.step && header.attempt == tag.attempt && header.bucket == tag.bucket;
  if (header.op == index && header.kind == static_cast<uint8_t>(kind) && header.shape == shape &&
      same_tag) {
    return absl::OkStatus();
  }
  Operation theirs;
  theirs.kind = static_cast<OpKind>(header.kind);
  theirs.index = header.op;
  theirs.tag = {header.step, header.attempt, header.bucket};
  const std::string_view sizes =
      theirs.Text() == Text() ? " with other sizes: all members must queue the same operations"
                              : "";
  return absl::AbortedError(Cat(peer, " is in ", theirs.Text(), sizes, ", this rank in ", Text()));
}

std::span<const std::byte> Operation::DirectPart(RingPosition at, int to) const {
  switch (kind) {
    case OpKind::kReduceScatter:
    case OpKind::kReduceScatterFloat:
      return {in + borders[to], static_cast<size_t>(borders[to + 1] - borders[to])};
    case OpKind::kAllReduce:
      return {data, static_cast<size_t>(borders.back())};
    case OpKind::kAllGather:
      return {data + borders[at.rank],
              static_cast<size_t>(borders[at.rank + 1] - borders[at.rank])};
    case OpKind::kBroadcast:
      return at.rank == root ? std::span<const std::byte>(data, static_cast<size_t>(borders.back()))
                             : std::span<const std::byte>();
    default:
      return {};
  }
}

uint32_t Operation::DirectLength(RingPosition at, int from) const {
  switch (kind) {
    case OpKind::kReduceScatter:
    case OpKind::kReduceScatterFloat:
      return static_cast<uint32_t>(borders[at.rank + 1] - borders[at.rank]);
    case OpKind::kAllReduce:
      return static_cast<uint32_t>(borders.back());
    case OpKind::kAllGather:
      return static_cast<uint32_t>(borders[from + 1] - borders[from]);
    case OpKind::kBroadcast:
      return from == root ? static_cast<uint32_t>(borders.back()) : 0;
    default:
      return 0;
  }
}

void Operation::Finish(RingPosition at, const std::vector<const std::byte*>& parts) const {
  const Arithmetic add = ArithmeticOf(kind);
  if (add != Arithmetic::kNone) {
    // Rank order, also for floats: the same sums on every member, whatever arrived first.
    const size_t bytes = DirectLength(at, at.rank);
    const std::byte* own = kind == OpKind::kAllReduce ? data : in + borders[at.rank];
    if (bytes == 0) return;
    std::vector<std::byte> sum(bytes);
    for (int r = 0; r < at.world; ++r) {
      const std::byte* part = r == at.rank ? own : parts[r];
      if (r == 0) std::memcpy(sum.data(), part, bytes);
      if (r > 0) AddWords(add, sum.data(), sum.data(), part, bytes);
    }
    std::memcpy(data, sum.data(), bytes);
    return;
  }
  for (int r = 0; r < at.world; ++r) {
    const size_t bytes = r == at.rank ? 0 : DirectLength(at, r);
    if (bytes == 0) continue;
    std::memcpy(kind == OpKind::kAllGather ? data + borders[r] : data, parts[r], bytes);
  }
}

RingPlan Operation::Plan(RingPosition at, std::byte* scratch) const {
  switch (kind) {
    case OpKind::kReduceScatter:
    case OpKind::kReduceScatterFloat:
      return PlanReduceScatter(at, borders, in, data, scratch, ArithmeticOf(kind));
    case OpKind::kAllReduce:
      return PlanAllReduce(at, borders, data, scratch);
    case OpKind::kAllGather:
      return PlanAllGather(at, borders, data);
    default:
      return PlanBroadcast(at, root, data, borders.back());
  }
}

}  // namespace holdfast
