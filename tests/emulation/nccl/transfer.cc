#include "tests/emulation/nccl/transfer.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/text.h"
#include "tests/emulation/cuda/runtime.h"
#include "tests/emulation/nccl/reduce.h"
#include "tests/emulation/tsan.h"

namespace holdfast::emulation {
namespace {

constexpr uint32_t kMagic = 0x61746164;
constexpr size_t kReadMost = 4 << 20;  // from one peer before the others have their turn

bool IsMessage(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kReceive; }

// The sockets of a process order nothing (to ThreadSanitizer all are one).
ssize_t ReadSome(int fd, char* to, size_t bytes) {
  ssize_t got = 0;
  {
    const Unseen unseen;
    got = recv(fd, to, bytes, MSG_DONTWAIT);
  }
  if (got > 0) Writes(to, static_cast<size_t>(got));
  return got;
}

bool GoOn(ssize_t done) { return done < 0 && (errno == EAGAIN || errno == EINTR); }

}  // namespace

const char* NameOf(OpKind kind) {
  constexpr std::array names = {"all-reduce", "reduce", "reduce-scatter", "all-gather",
                                "broadcast",  "send",   "receive"};
  return names[static_cast<size_t>(kind)];
}

std::pair<size_t, size_t> OwnedSlice(size_t count, int n, int r) {
  const size_t each = (count + static_cast<size_t>(n) - 1) / static_cast<size_t>(n);
  return {std::min(count, each * static_cast<size_t>(r)),
          std::min(count, each * (static_cast<size_t>(r) + 1))};
}

Transfer::Transfer(int rank, std::vector<DataLink>& links, std::vector<Operation> operations,
                   uint64_t sum_seed)
    : rank_(rank),
      links_(links),
      sum_seed_(sum_seed),
      pieces_(links.size()),
      bodies_(links.size(), nullptr),
      held_(links.size(), false) {
  for (Operation& operation : operations) {
    states_.emplace_back();
    states_.back().op = operation;
  }
}

void Transfer::Put(int to, const State& state, DataHeader::What what, const void* body,
                   size_t bytes) {
  if (bytes == 0 && what != DataHeader::kArrive) return;
  Piece piece;
  piece.header = {.magic = kMagic,
                  .what = what,
                  .kind = state.op.kind,
                  .type = static_cast<uint8_t>(state.op.type),
                  .op = static_cast<uint8_t>(state.op.op),
                  .root = state.op.root,
                  .unused = 0,
                  .serial = state.op.serial,
                  .count = state.op.count,
                  .bytes = bytes};
  piece.body = static_cast<const char*>(body);
  pieces_[static_cast<size_t>(to)].push_back(piece);
}

void Transfer::PutAll(const State& state, DataHeader::What what, const void* body, size_t bytes) {
  for (int r = 0; r < ranks(); ++r) {
    if (r != rank_) Put(r, state, what, body, bytes);
  }
}

void Transfer::Announce() {
  for (State& state : states_) {
    if (IsMessage(state.op.kind)) continue;
    state.arrived = 1;
    PutAll(state, DataHeader::kArrive, nullptr, 0);
  }
  for (int r = 0; r < ranks(); ++r) Send(r);
}

// What this rank has to give; and how much it waits for.
void Transfer::Begin(State& state) {
  const Operation& op = state.op;
  const size_t size = SizeOfType(op.type);
  state.part_bytes = op.count * size;
  char* const out = static_cast<char*>(op.out);
  switch (op.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kReduceScatter:
      BeginReduction(state);
      break;
    case OpKind::kAllGather:
      if (state.part_bytes == 0) break;
      std::memmove(out + static_cast<size_t>(rank_) * state.part_bytes, op.in, state.part_bytes);
      PutAll(state, DataHeader::kPart, op.in, state.part_bytes);
      state.parts_missing = ranks() - 1;
      break;
    case OpKind::kBroadcast:
      if (state.part_bytes == 0) break;
      if (op.root == rank_) {
        if (out != op.in && out != nullptr) std::memmove(out, op.in, state.part_bytes);
        PutAll(state, DataHeader::kPart, op.in, state.part_bytes);
      } else {
        state.parts_missing = 1;
      }
      break;
    case OpKind::kSend:
      if (op.root != rank_) Put(op.root, state, DataHeader::kMessage, op.in, state.part_bytes);
      break;
    case OpKind::kReceive:
      if (op.root != rank_) {
        state.parts_missing = state.part_bytes > 0 ? 1 : 0;
        break;
      }
      for (const State& other : states_) {  // to itself
        if (other.op.kind == OpKind::kSend && other.op.root == rank_ &&
            other.op.serial == op.serial)
          std::memmove(out, other.op.in, state.part_bytes);
      }
      break;
    case OpKind::kKinds:
      break;
  }
}

// Which part of the input rank r reduces.
std::pair<size_t, size_t> PartOf(const Operation& op, int n, int r) {
  const auto at = static_cast<size_t>(r);
  if (op.kind == OpKind::kReduceScatter) return {op.count * at, op.count * (at + 1)};
  if (op.kind == OpKind::kReduce)
    return r == op.root ? std::pair<size_t, size_t>{0, op.count} : std::pair<size_t, size_t>{0, 0};
  return OwnedSlice(op.count, n, r);
}

void Transfer::BeginReduction(State& state) {
  const Operation& op = state.op;
  const size_t size = SizeOfType(op.type);
  state.reduces = true;
  for (int r = 0; r < ranks(); ++r) {
    const auto [begin, end] = PartOf(op, ranks(), r);
    if (r == rank_) {
      state.part_bytes = (end - begin) * size;
      state.parts.resize(links_.size());
      if (end > begin) state.parts_missing = ranks() - 1;
    } else {
      Put(r, state, DataHeader::kPart, static_cast<const char*>(op.in) + begin * size,
          (end - begin) * size);
      if (op.kind == OpKind::kAllReduce && end > begin) ++state.results_missing;
    }
  }
}

void Transfer::FinishReduction(State& state) {
  state.reduced = true;
  const Operation& op = state.op;
  if (state.part_bytes == 0) return;
  const size_t size = SizeOfType(op.type);
  const auto [begin, end] = PartOf(op, ranks(), rank_);
  const char* const mine = static_cast<const char*>(op.in) + begin * size;
  std::vector<const void*> parts;
  for (const int r : SumOrder(ranks(), sum_seed_, op.serial, static_cast<uint64_t>(rank_)))
    parts.push_back(r == rank_ ? mine : state.parts[static_cast<size_t>(r)].data());
  state.result.resize(state.part_bytes);
  Reduce(parts, state.result.data(), end - begin, op.type, op.op);
  char* const out = static_cast<char*>(op.out);
  const size_t at = op.kind == OpKind::kAllReduce ? begin * size : 0;
  std::memcpy(out + at, state.result.data(), state.part_bytes);
  if (op.kind == OpKind::kAllReduce)
    PutAll(state, DataHeader::kResult, state.result.data(), state.part_bytes);
}

bool Transfer::Run(const Stops& stops, int device) {
  for (State& state : states_) Begin(state);
  // What the operation before has read of this one, and held, may be all that comes: no poll would
  // wake for it.
  for (int r = 0; r < ranks(); ++r) {
    if (links_[static_cast<size_t>(r)].header_got > 0) Receive(r);
  }
  while (!stops.any() && !DeviceLost(device)) {
    for (State& state : states_) {
      if (state.reduces && !state.reduced && state.parts_missing == 0) FinishReduction(state);
    }
    for (int r = 0; r < ranks(); ++r) Send(r);
    if (Over()) return true;
    std::vector<pollfd> fds;
    for (size_t r = 0; r < links_.size(); ++r) {
      const bool reads = !held_[r], writes = !pieces_[r].empty();
      const int fd = links_[r].dead || (!reads && !writes) ? -1 : links_[r].fd;
      fds.push_back({fd, static_cast<int16_t>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)), 0});
    }
    stops.AddTo(fds);
    (void)poll(fds.data(), fds.size(), 100);
    for (int r = 0; r < ranks(); ++r) {
      if ((fds[static_cast<size_t>(r)].revents & (POLLIN | POLLHUP | POLLERR)) != 0) Receive(r);
    }
  }
  return false;
}

bool Transfer::Over() const {
  if (std::any_of(pieces_.begin(), pieces_.end(), [](const auto& p) { return !p.empty(); }))
    return false;
  return std::all_of(states_.begin(), states_.end(), [this](const State& s) {
    return (IsMessage(s.op.kind) || s.arrived == ranks()) && s.parts_missing == 0 &&
           s.results_missing == 0 && s.reduces == s.reduced;
  });
}

void Transfer::Send(int to) {
  auto& pieces = pieces_[static_cast<size_t>(to)];
  DataLink& link = links_[static_cast<size_t>(to)];
  while (!pieces.empty() && !link.dead) {
    Piece& piece = pieces.front();
    const bool head = piece.sent < sizeof piece.header;
    const char* from = head ? reinterpret_cast<const char*>(&piece.header) + piece.sent
                            : piece.body + (piece.sent - sizeof piece.header);
    const size_t left =
        (head ? sizeof piece.header : sizeof piece.header + piece.header.bytes) - piece.sent;
    if (left > 0) {
      const ssize_t sent = [&] {
        const Unseen unseen;
        return send(link.fd, from, left, MSG_NOSIGNAL | MSG_DONTWAIT);
      }();
      if (sent > 0 && !head) Reads(from, static_cast<size_t>(sent));
      if (GoOn(sent)) return;
      if (sent < 0) {
        link.dead = true;
        return;
      }
      piece.sent += static_cast<size_t>(sent);
    }
    if (piece.sent == sizeof piece.header + piece.header.bytes) pieces.pop_front();
  }
}

bool Transfer::ReadHeader(DataLink& link) {
  while (link.header_got < sizeof link.header) {
    const ssize_t got = ReadSome(link.fd, reinterpret_cast<char*>(&link.header) + link.header_got,
                                 sizeof link.header - link.header_got);
    if (GoOn(got)) return false;
    if (got <= 0) {
      link.dead = true;
      return false;
    }
    link.header_got += static_cast<size_t>(got);
  }
  return true;
}

Transfer::State* Transfer::Find(int from, const DataHeader& header) {
  for (State& state : states_) {
    if (header.what == DataHeader::kMessage) {
      if (state.op.kind == OpKind::kReceive && state.op.root == from &&
          state.op.serial == header.serial)
        return &state;
    } else if (!IsMessage(state.op.kind) && state.op.serial == header.serial) {
      return &state;
    }
  }
  return nullptr;
}

char* Transfer::Target(State& state, int from, const DataHeader& header) {
  const Operation& op = state.op;
  char* const out = static_cast<char*>(op.out);
  if (header.what == DataHeader::kResult)
    return out + OwnedSlice(op.count, ranks(), from).first * SizeOfType(op.type);
  if (state.reduces) {
    auto& part = state.parts[static_cast<size_t>(from)];
    part.resize(header.bytes);
    return part.data();
  }
  return op.kind == OpKind::kAllGather ? out + static_cast<size_t>(from) * state.part_bytes : out;
}

void Transfer::Took(State& state, int from, const DataHeader& header) {
  if (header.what == DataHeader::kArrive) {
    ++state.arrived;
  } else if (header.what == DataHeader::kResult) {
    --state.results_missing;
  } else {
    --state.parts_missing;
  }
  DataLink& link = links_[static_cast<size_t>(from)];
  link.header_got = link.body_got = 0;
}

void Transfer::Check(const State& state, int from, const DataHeader& header) {
  const Operation& op = state.op;
  const bool message = header.what == DataHeader::kMessage;
  const bool agree = header.magic == kMagic && header.count == op.count &&
                     header.type == static_cast<uint8_t>(op.type) &&
                     (message || (header.kind == op.kind && header.root == op.root &&
                                  header.op == static_cast<uint8_t>(op.op)));
  if (agree || !contradiction_.empty()) return;
  const auto tell = [](OpKind kind, uint64_t count, int type, int redop, int root) {
    return Cat(NameOf(kind), " of ", count, " elements (type ", type, ", operation ", redop,
               ", root ", root, ")");
  };
  contradiction_ = Cat(
      "operation ", op.serial, ": rank ", rank_, " calls ",
      tell(op.kind, op.count, static_cast<int>(op.type), static_cast<int>(op.op), op.root),
      ", rank ", from, " ", tell(header.kind, header.count, header.type, header.op, header.root));
}

void Transfer::Receive(int from) {
  DataLink& link = links_[static_cast<size_t>(from)];
  for (size_t taken = 0; taken < kReadMost && !link.dead && ReadHeader(link);) {
    State* const state = Find(from, link.header);
    if (state == nullptr) {
      held_[static_cast<size_t>(from)] = true;
      return;
    }
    Check(*state, from, link.header);
    if (!contradiction_.empty()) {
      held_[static_cast<size_t>(from)] = true;  // it stands
      return;
    }
    char* const to =
        link.header.bytes > 0 && link.body_got == 0 ? Target(*state, from, link.header) : nullptr;
    if (to != nullptr) bodies_[static_cast<size_t>(from)] = to;
    while (link.body_got < link.header.bytes) {
      const ssize_t got = ReadSome(link.fd, bodies_[static_cast<size_t>(from)] + link.body_got,
                                   link.header.bytes - link.body_got);
      if (GoOn(got)) return;
      if (got <= 0) {
        link.dead = true;
        return;
      }
      link.body_got += static_cast<size_t>(got);
      taken += static_cast<size_t>(got);
    }
    Took(*state, from, link.header);
  }
}

void Transfer::Spoil() {
  for (const State& state : states_) {
    const Operation& op = state.op;
    if (op.out == nullptr || op.kind == OpKind::kSend) continue;
    if (op.kind == OpKind::kReduce && op.root != rank_) continue;
    const size_t bytes = op.count * SizeOfType(op.type);
    const size_t parts = op.kind == OpKind::kAllGather ? links_.size() : 1;
    std::memset(op.out, 0xff, bytes * parts);
  }
}

}  // namespace holdfast::emulation
