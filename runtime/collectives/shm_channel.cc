#include "runtime/collectives/shm_channel.h"

#include <emmintrin.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/status.h"

namespace holdfast {
namespace {

// Looking for news before going to sleep, where every member can have a core of its own.
constexpr int64_t kSpinUs = 15;
// Several inputs are added in blocks that stay in the first-level cache with the sum.
constexpr size_t kSumBlock = 8 << 10;

int Cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// out = parts[0] + parts[1] + ..., in this order. `out` may be parts[0].
void SumParts(Arithmetic add, std::byte* out, std::span<const std::byte* const> parts,
              size_t bytes) {
  for (size_t at = 0; at < bytes; at += kSumBlock) {
    const size_t size = std::min(kSumBlock, bytes - at);
    AddWords(add, out + at, parts[0] + at, parts[1] + at, size);
    for (size_t i = 2; i < parts.size(); ++i)
      AddWords(add, out + at, out + at, parts[i] + at, size);
  }
}

int64_t LongestSlice(const std::vector<int64_t>& borders) {
  int64_t longest = 0;
  for (size_t i = 0; i + 1 < borders.size(); ++i)
    longest = std::max(longest, borders[i + 1] - borders[i]);
  return longest;
}

}  // namespace

ShmChannel::ShmChannel(RingPosition at, SharedBlock segment, std::vector<const SharedBlock*> blocks,
                       WakeFd doorbell, std::vector<Peer> peers)
    : at_(at),
      segment_(std::move(segment)),
      control_(ControlOf(segment_)),
      blocks_(std::move(blocks)),
      doorbell_(std::move(doorbell)),
      peers_(std::move(peers)),
      rung_(peers_.size(), 0),
      may_spin_(at.world <= Cores()) {}

bool ShmChannel::Extent::Overlaps(const Extent& other) const {
  return bytes > 0 && other.bytes > 0 && data < other.data + other.bytes &&
         other.data < data + bytes;
}

void ShmChannel::Push(std::unique_ptr<Operation> op) {
  const int64_t total = op->borders.empty() ? 0 : op->borders.back();
  const int64_t mine =
      op->borders.size() > 2 ? op->borders[at_.rank + 1] - op->borders[at_.rank] : total;
  Step step;
  step.op = op.get();
  switch (op->kind) {
    case OpKind::kReduceScatter:
    case OpKind::kReduceScatterFloat:
      step.kind = Kind::kReduce;
      step.source = {op->in, total};
      step.out = {op->data, mine};
      AddStep(step);
      break;
    case OpKind::kAllReduce:
      step.source = {op->data, total};
      step.kind = op->direct ? Kind::kSum : Kind::kReduce;
      step.out = op->direct ? step.source : Extent{op->data + op->borders[at_.rank], mine};
      step.ends_op = op->direct;
      AddStep(step);
      if (op->direct) break;
      step.ends_op = true;
      [[fallthrough]];
    case OpKind::kAllGather:
      step.kind = Kind::kGather;
      step.source = {op->data + op->borders[at_.rank], mine};
      step.out = {op->data, total};
      AddStep(step);
      break;
    case OpKind::kBroadcast:
      step.kind = Kind::kBroadcast;
      (op->root == at_.rank ? step.source : step.out) = {op->data, total};
      AddStep(step);
      break;
    default:
      AddStep(step);
      break;
  }
  ops_.push_back(std::move(op));
}

void ShmChannel::AddStep(Step step) {
  const std::vector<int64_t>& borders = step.op->borders;
  int64_t longest = 0;
  if (step.kind == Kind::kReduce || step.kind == Kind::kGather) longest = LongestSlice(borders);
  if (step.kind == Kind::kSum || step.kind == Kind::kBroadcast) longest = borders.back();
  // A piece for every member must fit into a half; the grid is the same whether staged or not.
  if (step.kind == Kind::kReduce)
    step.piece = std::min(kShmPieceBytes, kShmHalfBytes / at_.world / 64 * 64);
  step.rounds = static_cast<uint32_t>((longest + step.piece - 1) / step.piece);
  if (step.source.bytes > 0 && step.kind != Kind::kSum) {  // a sum in place overwrites its input
    for (size_t b = 0; b < blocks_.size(); ++b) {
      if (blocks_[b]->fd() >= 0 && blocks_[b]->OffsetOf(step.source.data, step.source.bytes) >= 0)
        step.block = static_cast<int>(b);
    }
  }
  step.staging = step.source.bytes > 0 && step.block < 0;
  steps_.push_back(std::move(step));
  ++next_;
}

const ShmPost& ShmChannel::PostOf(int peer, uint64_t step) const {
  return ControlOf(peers_[peer].segment)->posts[step % kShmPosts];
}

int64_t ShmChannel::PieceBytes(const Step& step, int64_t begin, int64_t end, uint32_t round) const {
  return std::clamp<int64_t>(end - begin - round * step.piece, 0, step.piece);
}

uint64_t ShmChannel::LowestRead() const {
  uint64_t lowest = UINT64_MAX;
  for (int p = 0; p < at_.world; ++p) {
    if (p != at_.rank) lowest = std::min(lowest, ControlOf(peers_[p].segment)->read.load());
  }
  return lowest;
}

absl::Status ShmChannel::Progress(bool* moved) {
  if (stuck_ || steps_.empty()) return absl::OkStatus();
  lowest_read_ = LowestRead();
  Release(moved);
  Post(moved);
  Stage(moved);
  HF_RETURN_IF_ERROR(Read(moved));
  Release(moved);
  return absl::OkStatus();
}

void ShmChannel::Release(bool* moved) {
  while (!steps_.empty() && first_ < next_read_) {
    const Step& step = steps_.front();
    if (step.staging && next_stage_ <= first_) return;
    if (step.block >= 0 && lowest_read_ < ShmMark(first_ + 1, 0)) return;
    if (step.ends_op) {
      done_ = step.op->index;
      ops_.pop_front();
    }
    steps_.pop_front();
    ++first_;
    next_stage_ = std::max(next_stage_, first_);
    *moved = true;
  }
}

bool ShmChannel::MayPost(uint64_t number) const {
  if (number >= (lowest_read_ >> 24) + kShmPosts) return false;  // the place is still being read
  const Extent& source = steps_[number - first_].source;
  for (uint64_t before = next_read_; before < number; ++before) {
    if (source.Overlaps(steps_[before - first_].out)) return false;
  }
  return true;
}

void ShmChannel::Post(bool* moved) {
  bool posted = false;
  for (; next_post_ < next_ && MayPost(next_post_); ++next_post_) {
    Step& step = At(next_post_);
    ShmPost& post = control_->posts[next_post_ % kShmPosts];
    post.header = step.op->Header(FrameType::kAnnounce);
    post.block = step.block;
    post.offset =
        step.block < 0 ? 0 : blocks_[step.block]->OffsetOf(step.source.data, step.source.bytes);
    step.first_slot = post.first_slot = next_slot_;
    if (step.staging) next_slot_ = (next_slot_ + step.rounds) % 2;
    post.rounds.store(step.staging ? 0 : step.rounds);
    post.step.store(next_post_);
    posted = true;
  }
  if (posted) Ring();
  *moved |= posted;
}

void ShmChannel::Stage(bool* moved) {
  while (next_stage_ < next_post_ &&
         (!At(next_stage_).staging || At(next_stage_).staged == At(next_stage_).rounds)) {
    ++next_stage_;
  }
  if (next_stage_ == next_post_) return;
  Step& step = At(next_stage_);
  const uint32_t half = (step.first_slot + step.staged) % 2;
  if (lowest_read_ < half_free_at_[half]) return;
  std::byte* to = segment_.data() + kShmControlBytes + half * kShmHalfBytes;
  const int64_t from = step.staged * step.piece;
  if (step.kind == Kind::kReduce) {
    const std::vector<int64_t>& borders = step.op->borders;
    for (int r = 0; r < at_.world; ++r) {
      if (r == at_.rank) continue;
      const int64_t bytes = PieceBytes(step, borders[r], borders[r + 1], step.staged);
      if (bytes > 0)
        std::memcpy(to + r * step.piece, step.source.data + borders[r] + from,
                    static_cast<size_t>(bytes));
    }
  } else {
    const int64_t bytes = PieceBytes(step, 0, step.source.bytes, step.staged);
    if (bytes > 0) std::memcpy(to, step.source.data + from, static_cast<size_t>(bytes));
  }
  ++step.staged;
  half_free_at_[half] = ShmMark(next_stage_, step.staged);
  control_->posts[next_stage_ % kShmPosts].rounds.store(step.staged);
  if (step.staged == step.rounds) ++next_stage_;
  Ring();
  *moved = true;
}

absl::Status ShmChannel::Match(uint64_t number, Step* step) {
  for (int p = 0; p < at_.world; ++p) {
    if (p == at_.rank) continue;
    const ShmPost& post = PostOf(p, number);
    if (post.step.load() != number) return absl::OkStatus();
    culprit_ = p;
    HF_RETURN_IF_ERROR(step->op->Match(post.header, peers_[p].name));
    culprit_ = -1;
  }
  step->matched = true;
  return absl::OkStatus();
}

// The output must not lie in what peers, or the staging, still read for earlier steps.
bool ShmChannel::MayWrite(uint64_t number) const {
  const Step& step = steps_[number - first_];
  if (step.kind == Kind::kSum && next_stage_ <= number) return false;
  for (uint64_t before = first_; before < number; ++before) {
    const Step& other = steps_[before - first_];
    const bool released = other.block >= 0 ? lowest_read_ >= ShmMark(before + 1, 0)
                                           : !other.staging || next_stage_ > before;
    if (!released && step.out.Overlaps(other.source)) return false;
  }
  return true;
}

absl::Status ShmChannel::Read(bool* moved) {
  if (next_read_ >= next_post_) return absl::OkStatus();
  Step& step = At(next_read_);
  if (!step.matched) {
    HF_RETURN_IF_ERROR(Match(next_read_, &step));
    if (!step.matched) return absl::OkStatus();
  }
  if (step.read == 0 && !MayWrite(next_read_)) return absl::OkStatus();
  if (step.read < step.rounds) {
    bool there = false;
    HF_RETURN_IF_ERROR(ReadRound(next_read_, step, &there));
    if (!there) return absl::OkStatus();
    ++step.read;
  }
  *moved = true;
  const bool whole = step.read == step.rounds;
  control_->read.store(whole ? ShmMark(next_read_ + 1, 0) : ShmMark(next_read_, step.read));
  Ring();
  if (!whole) return absl::OkStatus();
  stuck_ = AnyLeft();
  if (!stuck_) ++next_read_;
  return absl::OkStatus();
}

bool ShmChannel::AnyLeft() const {
  for (int p = 0; p < at_.world; ++p) {
    if (p != at_.rank && ControlOf(peers_[p].segment)->left.load() != 0) return true;
  }
  return false;
}

absl::Status ShmChannel::ReadRound(uint64_t number, const Step& step, bool* there) {
  for (int p = 0; p < at_.world; ++p) {
    if (p == at_.rank || (step.kind == Kind::kBroadcast && p != step.op->root)) continue;
    // Who has nothing to send has posted no round.
    const std::vector<int64_t>& borders = step.op->borders;
    const bool empty = step.kind == Kind::kGather
                           ? PieceBytes(step, borders[p], borders[p + 1], step.read) == 0
                           : false;
    if (!empty && PostOf(p, number).rounds.load() <= step.read) return absl::OkStatus();
  }
  *there = true;
  return step.kind == Kind::kReduce || step.kind == Kind::kSum ? Reduce(number, step)
                                                               : Copy(number, step);
}

// Where this step's round lies that this member reads from `peer`.
absl::StatusOr<const std::byte*> ShmChannel::Source(int peer, uint64_t number, const Step& step,
                                                    int64_t bytes) const {
  const ShmPost& post = PostOf(peer, number);
  const Peer& from = peers_[peer];
  const int block = post.block;
  if (block < 0) {
    const int64_t half = (post.first_slot + step.read) % 2;
    return from.segment.data() + kShmControlBytes + half * kShmHalfBytes +
           (step.kind == Kind::kReduce ? at_.rank * step.piece : 0);
  }
  int64_t offset = post.offset + step.read * step.piece;
  if (step.kind == Kind::kReduce) offset += step.op->borders[at_.rank];
  if (block >= static_cast<int>(from.blocks.size()) || post.offset < 0 ||
      offset > from.blocks[block].bytes() - bytes) {
    return absl::AbortedError(Cat(from.name, " posted memory that it has not shared"));
  }
  return from.blocks[block].data() + offset;
}

absl::Status ShmChannel::Reduce(uint64_t number, const Step& step) {
  const std::vector<int64_t>& borders = step.op->borders;
  const bool sum = step.kind == Kind::kSum;
  const int64_t begin = sum ? 0 : borders[at_.rank];
  const int64_t bytes =
      PieceBytes(step, begin, sum ? borders.back() : borders[at_.rank + 1], step.read);
  if (bytes == 0) return absl::OkStatus();
  std::array<const std::byte*, TcpEndpoint::kMaxWorldSize> parts;
  for (int p = 0; p < at_.world; ++p) {
    if (p == at_.rank) {
      parts[p] = step.source.data + begin + step.read * step.piece;
      continue;
    }
    culprit_ = p;
    HF_ASSIGN_OR_RETURN(parts[p], Source(p, number, step, bytes));
  }
  culprit_ = -1;
  std::byte* out = const_cast<std::byte*>(step.out.data) + step.read * step.piece;
  // In place (integers): the own part first, before it is overwritten.
  if (out == parts[at_.rank]) std::swap(parts[0], parts[at_.rank]);
  SumParts(step.op->kind == OpKind::kReduceScatterFloat ? Arithmetic::kFloat : Arithmetic::kInt64,
           out, {parts.data(), static_cast<size_t>(at_.world)}, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status ShmChannel::Copy(uint64_t number, const Step& step) {
  const std::vector<int64_t>& borders = step.op->borders;
  std::byte* out = const_cast<std::byte*>(step.out.data) + step.read * step.piece;
  // Each begins with the next rank: not all read from the same member at once.
  for (int distance = 1; distance < at_.world; ++distance) {
    const int p = (at_.rank + distance) % at_.world;
    const bool gather = step.kind == Kind::kGather;
    if (!gather && p != step.op->root) continue;
    const int64_t begin = gather ? borders[p] : 0;
    const int64_t bytes =
        PieceBytes(step, begin, gather ? borders[p + 1] : borders.back(), step.read);
    if (bytes == 0) continue;
    culprit_ = p;
    HF_ASSIGN_OR_RETURN(const std::byte* from, Source(p, number, step, bytes));
    std::memcpy(out + begin, from, static_cast<size_t>(bytes));
  }
  culprit_ = -1;
  return absl::OkStatus();
}

std::string ShmChannel::Missing() const {
  std::string who;
  for (int p = 0; p < at_.world && next_read_ < next_; ++p) {
    if (p != at_.rank && PostOf(p, next_read_).step.load() != next_read_)
      who += Cat(who.empty() ? "" : ", ", peers_[p].name);
  }
  return who;
}

void ShmChannel::Ring() {
  for (int p = 0; p < at_.world; ++p) {
    if (p == at_.rank) continue;
    const uint32_t asleep = ControlOf(peers_[p].segment)->asleep.load();
    if (asleep % 2 == 0 || asleep == rung_[p]) continue;
    rung_[p] = asleep;
    const uint64_t one = 1;
    // A full counter (EAGAIN) has rung already.
    [[maybe_unused]] const ssize_t n = write(peers_[p].doorbell.get(), &one, sizeof one);
  }
}

absl::Status ShmChannel::Doze(bool* asleep) {
  *asleep = false;
  bool moved = false;
  const int64_t spin_until_us = may_spin_ && !stuck_ ? BootUs() + kSpinUs : 0;
  while (!moved && BootUs() < spin_until_us) {
    for (int i = 0; i < 50; ++i) _mm_pause();
    HF_RETURN_IF_ERROR(Progress(&moved));
  }
  if (moved) return absl::OkStatus();
  control_->asleep.fetch_add(1);
  // What came before the flag was up.
  const absl::Status status = Progress(&moved);
  *asleep = status.ok() && !moved;
  if (!*asleep) Awake();
  return status;
}

void ShmChannel::Awake() { control_->asleep.fetch_add(1); }

void ShmChannel::Leave() { control_->left.store(1); }

}  // namespace holdfast
