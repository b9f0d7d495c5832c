// The members of a generation with GPUs. Two lanes: this object is the host lane, whose operations
// go to the links as they are; OnDevice() is the device lane, whose operations run on the GPUs by
// NCCL, on a stream of their own.
//
// The links are the one place where an error is first: an error of NCCL aborts them, so that it
// reaches all members; a dead or silent peer is found by them, and ends the waiting for NCCL. Then
// nothing is done to NCCL's communicator here: its factory shrinks or aborts it when the next
// generation is joined. Until then what was queued may still read and write its device buffers.
//
// NCCL knows no tags: on the device lane operations meet in the order in which they were queued.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "runtime/collectives/communicator.h"
#include "runtime/collectives/nccl/group.h"

namespace holdfast {

// What the links say after NCCL reported an error. A moment is left to them: what NCCL calls a
// network error is often the death of a peer, and they know whose.
absl::Status LinksWord(const Communicator& links);

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> links, std::shared_ptr<NcclGroup> group,
                   std::shared_ptr<const NcclContext> context);
  ~NcclCommunicator() override;

  int rank() const override { return links_->rank(); }
  int world_size() const override { return links_->world_size(); }
  std::string Carrier() const override;

  Ticket ReduceScatter(std::span<const int64_t> in, std::span<const int64_t> borders,
                       std::span<int64_t> out, OpTag tag) override {
    return links_->ReduceScatter(in, borders, out, tag);
  }
  Ticket ReduceScatter(std::span<const float> in, std::span<const int64_t> borders,
                       std::span<float> out, OpTag tag) override {
    return links_->ReduceScatter(in, borders, out, tag);
  }
  Ticket AllReduce(std::span<int64_t> data, OpTag tag) override {
    return links_->AllReduce(data, tag);
  }
  Ticket AllGather(std::span<std::byte> data, std::span<const int64_t> borders,
                   OpTag tag) override {
    return links_->AllGather(data, borders, tag);
  }
  Ticket Broadcast(std::span<std::byte> data, int root, OpTag tag) override {
    return links_->Broadcast(data, root, tag);
  }
  Ticket Barrier(OpTag tag) override { return links_->Barrier(tag); }
  absl::Status Wait(Ticket ticket, Deadline deadline) override;
  bool Finished(Ticket ticket) const override;
  absl::Status Health() const override;
  int FailedRank() const override { return links_->FailedRank(); }
  void Abort(const absl::Status& why) override { links_->Abort(why); }
  Communicator& OnDevice() override;
  // Host memory that a stream still writes: waits here until it is written.
  void After(const kernels::Event& event) override;
  void Keep(kernels::Buffer buffer) override { group_->Keep(std::move(buffer)); }
  absl::Status Close(Deadline deadline) override;

 private:
  class DeviceLane;
  absl::Status Fail(const absl::Status& status) const;
  bool OwnersThread() const { return std::this_thread::get_id() == owner_; }

  const std::shared_ptr<const NcclContext> context_;
  const std::thread::id owner_ = std::this_thread::get_id();
  const std::unique_ptr<Communicator> links_;
  const std::shared_ptr<NcclGroup> group_;
  std::unique_ptr<DeviceLane> device_lane_;
  mutable std::mutex mu_;
  mutable absl::Status error_;  // an error of this member's own, with its code; under mu_
  mutable int64_t polled_ms_ = 0;
};

// Operations on device memory.
class NcclCommunicator::DeviceLane final : public Communicator {
 public:
  explicit DeviceLane(NcclCommunicator* both) : both_(*both), group_(*both->group_) {}

  int rank() const override { return both_.rank(); }
  int world_size() const override { return both_.world_size(); }
  std::string Carrier() const override { return both_.Carrier(); }
  Ticket ReduceScatter(std::span<const int64_t> in, std::span<const int64_t> borders,
                       std::span<int64_t> out, OpTag tag) override;
  Ticket ReduceScatter(std::span<const float> in, std::span<const int64_t> borders,
                       std::span<float> out, OpTag tag) override;
  Ticket AllReduce(std::span<int64_t> data, OpTag tag) override;
  Ticket AllGather(std::span<std::byte> data, std::span<const int64_t> borders, OpTag tag) override;
  Ticket Broadcast(std::span<std::byte> data, int root, OpTag tag) override;
  Ticket Barrier(OpTag tag) override;
  absl::Status Wait(Ticket ticket, Deadline deadline) override;
  bool Finished(Ticket ticket) const override;
  absl::Status Health() const override { return both_.Health(); }
  int FailedRank() const override { return both_.FailedRank(); }
  void Abort(const absl::Status& why) override { both_.Abort(why); }
  void After(const kernels::Event& event) override { group_.stream().Wait(event); }
  void Keep(kernels::Buffer buffer) override { both_.Keep(std::move(buffer)); }
  absl::Status Close(Deadline deadline) override { return both_.Close(deadline); }

  // Waits for all that was queued, and takes no more.
  absl::Status Drain(Deadline deadline);

 private:
  struct Pending {
    Ticket ticket;
    kernels::Event end;
    std::string text;
  };
  Ticket Queue(const char* what, OpTag tag, absl::Status valid, NcclGroup::Operation operation);
  template <typename T>
  Ticket QueueReduceScatter(ncclDataType_t type, std::span<const T> in,
                            std::span<const int64_t> borders, std::span<T> out, OpTag tag);
  // Counts what is complete, unless there is an error: the first of the two wins.
  absl::Status Turn() const;

  NcclCommunicator& both_;
  NcclGroup& group_;
  Ticket queued_ = 0;
  bool closed_ = false;
  mutable std::deque<Pending> pending_;
  mutable Ticket done_ = 0;
};

}  // namespace holdfast
