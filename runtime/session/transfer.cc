#include "runtime/session/transfer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/digest.h"
#include "runtime/base/failpoint.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {

using rendezvous::Roster;
using rendezvous::Source;

constexpr int64_t kPieceWords = 1 << 20;  // 4 MiB a broadcast
constexpr int32_t kTransferBucket = 1 << 22;

class Transfer {
 public:
  Transfer(Communicator& comm, const Roster& roster, const TransferOptions& options, State& state)
      : comm_(comm), roster_(roster), options_(options), state_(state) {}

  absl::Status FromMemory();
  absl::Status FromCheckpoint(HeldCheckpoints& held);

 private:
  OpTag NextTag() { return {roster_.step, 0, kTransferBucket + piece_++}; }
  absl::Status Wait(Ticket ticket) {
    return comm_.Wait(ticket, Deadline::After(options_.stall_ms));
  }
  // A piece of the state's arrays, from `root` to all.
  absl::Status Piece(float* data, int64_t words, int root) {
    Communicator& lane = comm_.OnDevice();
    const Ticket ticket =
        lane.Broadcast(std::as_writable_bytes(std::span<float>(data, words)), root, NextTag());
    return lane.Wait(ticket, Deadline::After(options_.stall_ms));
  }
  absl::Status Scalars(int root, std::string* bytes);
  absl::Status CheckAndClear(const std::string& scalars);
  absl::Status ReadOwn(HeldCheckpoints& held, const storage::CheckpointId& id);

  Communicator& comm_;
  const Roster& roster_;
  const TransferOptions& options_;
  State& state_;
  int32_t piece_ = 0;
};

// The root's encoded scalars, to all.
absl::Status Transfer::Scalars(int root, std::string* bytes) {
  int64_t size = comm_.rank() == root ? static_cast<int64_t>(bytes->size()) : 0;
  HF_RETURN_IF_ERROR(
      Wait(comm_.Broadcast(std::as_writable_bytes(std::span<int64_t>(&size, 1)), root, NextTag())));
  if (size < 0 || size > (64 << 20))
    return absl::AbortedError("state transfer: impossible size of the scalars");
  bytes->resize(static_cast<size_t>(size));
  return Wait(comm_.Broadcast(std::as_writable_bytes(std::span<char>(bytes->data(), bytes->size())),
                              root, NextTag()));
}

absl::Status Transfer::CheckAndClear(const std::string& scalars) {
  HF_ASSIGN_OR_RETURN(state_.scalars, StateScalars::Decode(scalars, state_.plan().trained.size()));
  HF_RETURN_IF_ERROR(state_.Redigest());
  if (state_.scalars.step != roster_.step || state_.Digest() != roster_.digest) {
    return absl::AbortedError(Cat("state transfer: got step ", state_.scalars.step, ", digest ",
                                  Hex64(state_.Digest()), "; the roster names step ", roster_.step,
                                  ", digest ", Hex64(roster_.digest)));
  }
  state_.marked = false;
  state_.valid = true;
  return absl::OkStatus();
}

absl::Status Transfer::FromMemory() {
  std::vector<int> holders;
  for (size_t r = 0; r < roster_.members.size(); ++r) {
    if (roster_.members[r].has_state) holders.push_back(static_cast<int>(r));
  }
  if (holders.size() == roster_.members.size()) return absl::OkStatus();
  if (holders.empty())
    return absl::InternalError("the roster names memory as the source, but no holder");
  const bool needy = !roster_.members[comm_.rank()].has_state;
  if (needy) state_.marked = true;
  std::string scalars = needy ? "" : state_.scalars.Encode();
  HF_RETURN_IF_ERROR(Scalars(holders[0], &scalars));
  // Holders take turns as senders; what they receive themselves goes to a scratch piece, so that a
  // transfer that breaks off leaves their state whole.
  HF_ASSIGN_OR_RETURN(kernels::Buffer memory,
                      state_.device().Allocate(needy ? 0 : kPieceWords * 4));
  auto* scratch = memory.as<float>();
  comm_.OnDevice().Keep(std::move(memory));
  comm_.OnDevice().After(state_.stream().Record());
  const auto& regions = state_.grid().regions();
  int turn = 0;
  for (size_t i = 0; i < regions.size(); ++i) {
    for (int64_t first = 0; first < regions[i].words; first += kPieceWords) {
      const int root = holders[turn++ % holders.size()];
      const int64_t words = std::min(kPieceWords, regions[i].words - first);
      float* mine = state_.RegionData(static_cast<int64_t>(i)) + first;
      HF_RETURN_IF_ERROR(Piece(needy || comm_.rank() == root ? mine : scratch, words, root));
      Failpoint("transfer.piece", roster_.step);
    }
  }
  return needy ? CheckAndClear(scalars) : absl::OkStatus();
}

absl::Status Transfer::ReadOwn(HeldCheckpoints& held, const storage::CheckpointId& id) {
  std::vector<float> chunk;
  for (const auto& [first, last] : roster_.members[comm_.rank()].ranges) {
    for (int64_t ordinal = first; ordinal < last; ++ordinal) {
      const storage::Chunk& c = state_.grid().chunk(ordinal);
      chunk.resize(c.words);
      const absl::Status read =
          held.Read(id, state_.grid(), ordinal,
                    std::span<uint32_t>(reinterpret_cast<uint32_t*>(chunk.data()), c.words));
      if (read.ok()) {
        HF_RETURN_IF_ERROR(state_.Write(state_.RegionData(c.region) + c.first, chunk));
        continue;
      }
      held.MarkBad(id, StdView(read.message()));
      const absl::Status bad = absl::DataLossError(
          Cat("checkpoint of step ", id.step, " skipped: ", StdView(read.message())));
      comm_.Abort(bad);
      return bad;
    }
  }
  return absl::OkStatus();
}

absl::Status Transfer::FromCheckpoint(HeldCheckpoints& held) {
  const storage::CheckpointId id{roster_.checkpoint.branch, roster_.checkpoint.step,
                                 roster_.checkpoint.generation};
  state_.marked = true;
  state_.valid = false;
  HF_RETURN_IF_ERROR(ReadOwn(held, id));
  // Everybody has read his part: a damaged one would have aborted. Then each part goes to all.
  HF_RETURN_IF_ERROR(Wait(comm_.Barrier(NextTag())));
  comm_.OnDevice().After(state_.stream().Record());
  int manifest_root = -1;
  for (size_t r = 0; r < roster_.members.size(); ++r) {
    if (roster_.members[r].ranges.empty()) continue;
    if (manifest_root < 0) manifest_root = static_cast<int>(r);
    for (const auto& [first, last] : roster_.members[r].ranges) {
      for (int64_t ordinal = first; ordinal < last; ++ordinal) {
        const storage::Chunk& c = state_.grid().chunk(ordinal);
        HF_RETURN_IF_ERROR(
            Piece(state_.RegionData(c.region) + c.first, c.words, static_cast<int>(r)));
      }
    }
  }
  if (manifest_root < 0) return absl::InternalError("the roster names a checkpoint, but no reader");
  std::string scalars;
  if (comm_.rank() == manifest_root) {
    HF_ASSIGN_OR_RETURN(const storage::Manifest manifest, held.ManifestOf(id));
    scalars = manifest.scalars;
  }
  HF_RETURN_IF_ERROR(Scalars(manifest_root, &scalars));
  const absl::Status whole = CheckAndClear(scalars);
  if (!whole.ok())
    held.MarkBad(id, StdView(whole.message()));  // chunks that verify but do not make the state:
                                                 // never try this one again
  return whole;
}

}  // namespace

absl::Status TakeState(Communicator& comm, const Roster& roster, const TransferOptions& options,
                       HeldCheckpoints& held, State& state) {
  switch (roster.source) {
    case Source::kFresh:
      return state.Initialise(options.seed, options.streams, options.scales_loss);
    case Source::kMemory:
      return Transfer(comm, roster, options, state).FromMemory();
    case Source::kCheckpoint:
      return Transfer(comm, roster, options, state).FromCheckpoint(held);
  }
  return absl::InternalError("unknown state source");
}

}  // namespace holdfast
