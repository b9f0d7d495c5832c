#include "tests/collectives/nccl_operations.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "tests/collectives/world.h"

namespace holdfast {
namespace {

using kernels::Buffer;
using kernels::Device;
using kernels::Stream;

class Checker {
 public:
  Checker(Communicator& members, Device& device, uint64_t seed)
      : lane_(members.OnDevice()),
        device_(device),
        compute_(device.NewStream()),
        seed_(seed),
        rank_(lane_.rank()),
        world_(lane_.world_size()) {}

  // Parts of `count` elements: even, by grains, and lopsided with empty ones.
  std::vector<std::vector<int64_t>> Borders(int64_t count) const {
    std::vector<std::vector<int64_t>> all = {Communicator::Slices(count, 1, world_),
                                             Communicator::Slices(count, 1024, world_)};
    std::vector<int64_t> lopsided(static_cast<size_t>(world_) + 1, count);
    lopsided[0] = 0;
    for (int r = 1; r < world_; ++r) lopsided[r] = r % 2 == 1 ? count / 3 : count / 3 * 2;
    std::sort(lopsided.begin(), lopsided.end());
    all.push_back(lopsided);
    return all;
  }

  absl::Status ReduceScatter(int64_t count, const std::vector<int64_t>& borders) {
    std::vector<int64_t> in(count);
    for (int64_t i = 0; i < count; ++i) in[i] = Value(rank_, i, seed_);
    const int64_t begin = borders[rank_], size = borders[rank_ + 1] - begin;
    HF_ASSIGN_OR_RETURN(Buffer from, Upload(in));
    HF_ASSIGN_OR_RETURN(Buffer to, device_.Allocate(size * 8));
    const Ticket ticket =
        lane_.ReduceScatter(std::span<const int64_t>(from.as<int64_t>(), in.size()), borders,
                            std::span<int64_t>(to.as<int64_t>(), static_cast<size_t>(size)), Tag());
    HF_RETURN_IF_ERROR(lane_.Wait(ticket, Long()));
    HF_ASSIGN_OR_RETURN(const std::vector<int64_t> out, Download<int64_t>(to, size));
    for (int64_t i = 0; i < size; ++i) {
      if (out[i] != SumOfValues(world_, begin + i, seed_)) return Wrong("reduce-scatter", count, i);
    }
    HF_ASSIGN_OR_RETURN(const std::vector<int64_t> after, Download<int64_t>(from, count));
    return after == in ? absl::OkStatus() : absl::InternalError("reduce-scatter wrote its input");
  }

  // Small integers: every order of additions gives the same float.
  absl::Status ReduceScatterFloat(int64_t count, const std::vector<int64_t>& borders) {
    std::vector<float> in(count);
    for (int64_t i = 0; i < count; ++i) in[i] = static_cast<float>((rank_ + 1) * (i % 1000));
    const int64_t begin = borders[rank_], size = borders[rank_ + 1] - begin;
    HF_ASSIGN_OR_RETURN(Buffer from, Upload(in));
    HF_ASSIGN_OR_RETURN(Buffer to, device_.Allocate(size * 4));
    const Ticket ticket =
        lane_.ReduceScatter(std::span<const float>(from.as<float>(), in.size()), borders,
                            std::span<float>(to.as<float>(), static_cast<size_t>(size)), Tag());
    HF_RETURN_IF_ERROR(lane_.Wait(ticket, Long()));
    HF_ASSIGN_OR_RETURN(const std::vector<float> out, Download<float>(to, size));
    for (int64_t i = 0; i < size; ++i) {
      const int64_t right = world_ * (world_ + 1) / 2 * ((begin + i) % 1000);
      if (out[i] != static_cast<float>(right)) return Wrong("float reduce-scatter", count, i);
    }
    return absl::OkStatus();
  }

  absl::Status AllGather(int64_t count, const std::vector<int64_t>& borders) {
    std::vector<uint8_t> bytes(count, 0xEE);
    for (int64_t i = borders[rank_]; i < borders[rank_ + 1]; ++i) bytes[i] = ByteOf(rank_, i);
    HF_ASSIGN_OR_RETURN(Buffer data, Upload(bytes));
    HF_RETURN_IF_ERROR(lane_.Wait(lane_.AllGather(BytesOf(data), borders, Tag()), Long()));
    HF_ASSIGN_OR_RETURN(const std::vector<uint8_t> out, Download<uint8_t>(data, count));
    for (int r = 0; r < world_; ++r) {
      for (int64_t i = borders[r]; i < borders[r + 1]; ++i) {
        if (out[i] != ByteOf(r, i)) return Wrong("all-gather", count, i);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Broadcast(int64_t count, int root) {
    std::vector<uint8_t> bytes(count, 0xEE);
    for (int64_t i = 0; i < count && rank_ == root; ++i) bytes[i] = ByteOf(root, i);
    HF_ASSIGN_OR_RETURN(Buffer data, Upload(bytes));
    HF_RETURN_IF_ERROR(lane_.Wait(lane_.Broadcast(BytesOf(data), root, Tag()), Long()));
    HF_ASSIGN_OR_RETURN(const std::vector<uint8_t> out, Download<uint8_t>(data, count));
    for (int64_t i = 0; i < count; ++i) {
      if (out[i] != ByteOf(root, i)) return Wrong("broadcast", count, i);
    }
    return absl::OkStatus();
  }

  // Many operations under way at once, each on what the one before has left; waited for together.
  absl::Status Queue() {
    constexpr int64_t kCount = 5000;
    constexpr int kRounds = 20;
    std::vector<int64_t> words(kCount);
    for (int64_t i = 0; i < kCount; ++i) words[i] = Value(rank_, i, seed_);
    HF_ASSIGN_OR_RETURN(Buffer data, Upload(words));
    const std::span<int64_t> all(data.as<int64_t>(), words.size());
    std::vector<Ticket> tickets;
    for (int k = 0; k < kRounds; ++k) {
      tickets.push_back(lane_.AllReduce(all, Tag()));
      tickets.push_back(lane_.Barrier(Tag()));
    }
    HF_RETURN_IF_ERROR(lane_.Wait(tickets.back(), Long()));
    for (const Ticket ticket : tickets) {
      if (!lane_.Finished(ticket)) return absl::InternalError("an earlier ticket is not finished");
    }
    if (lane_.Finished(tickets.back() + 1)) return absl::InternalError("finished before queued");
    HF_ASSIGN_OR_RETURN(const std::vector<int64_t> out, Download<int64_t>(data, kCount));
    for (int64_t i = 0; i < kCount; ++i) {
      auto right = static_cast<uint64_t>(SumOfValues(world_, i, seed_));
      for (int k = 1; k < kRounds; ++k) right *= static_cast<uint64_t>(world_);
      if (out[i] != static_cast<int64_t>(right)) return Wrong("queued all-reduce", kCount, i);
    }
    return absl::OkStatus();
  }

 private:
  static uint8_t ByteOf(int rank, int64_t i) { return static_cast<uint8_t>(Value(rank, i) >> 7); }
  static std::span<std::byte> BytesOf(Buffer& data) {
    return {data.as<std::byte>(), static_cast<size_t>(data.bytes())};
  }
  absl::Status Wrong(const char* what, int64_t count, int64_t at) const {
    return absl::InternalError(Cat(what, " of ", count, " over ", world_, ": wrong at ", at));
  }
  OpTag Tag() { return {.step = ++step_}; }

  // Written by another stream than NCCL's; nobody but the lane waits for it.
  template <typename T>
  absl::StatusOr<Buffer> Upload(const std::vector<T>& words) {
    const auto bytes = static_cast<int64_t>(words.size() * sizeof(T));
    HF_ASSIGN_OR_RETURN(host_, device_.AllocateHost(bytes));
    std::memcpy(host_.data(), words.data(), static_cast<size_t>(bytes));
    HF_ASSIGN_OR_RETURN(Buffer data, device_.Allocate(bytes));
    device_.Copy(*compute_, data.data(), host_.data(), bytes);
    lane_.After(compute_->Record());
    return data;
  }
  template <typename T>
  absl::StatusOr<std::vector<T>> Download(const Buffer& data, int64_t count) {
    std::vector<T> words(static_cast<size_t>(count));
    device_.Copy(*compute_, words.data(), data.data(), count * static_cast<int64_t>(sizeof(T)));
    HF_RETURN_IF_ERROR(compute_->Synchronize(Long()));
    return words;
  }

  Communicator& lane_;
  Device& device_;
  std::unique_ptr<Stream> compute_;
  const uint64_t seed_;
  const int rank_, world_;
  Buffer host_;
  int64_t step_ = 0;
};

// The host lane beside it: the links' own.
absl::Status CheckHostLane(Communicator& members, uint64_t seed) {
  std::vector<int64_t> words(3000);
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = Value(members.rank(), static_cast<int64_t>(i), seed);
  HF_RETURN_IF_ERROR(members.Wait(members.AllReduce(words, {.step = 1}), Long()));
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] != SumOfValues(members.world_size(), static_cast<int64_t>(i), seed))
      return absl::InternalError("host all-reduce: wrong");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOperations(Communicator& members, kernels::Device& device, uint64_t seed) {
  Checker checker(members, device, seed);
  for (const int64_t count : {1, 7, 4096, 4097, 12'288, 50'001}) {
    for (const std::vector<int64_t>& borders : checker.Borders(count)) {
      HF_RETURN_IF_ERROR(checker.ReduceScatter(count, borders));
      HF_RETURN_IF_ERROR(checker.ReduceScatterFloat(count, borders));
      HF_RETURN_IF_ERROR(checker.AllGather(count, borders));
    }
    for (int root = 0; root < members.world_size(); ++root)
      HF_RETURN_IF_ERROR(checker.Broadcast(count, root));
  }
  HF_RETURN_IF_ERROR(checker.Queue());
  return CheckHostLane(members, seed);
}

}  // namespace holdfast
