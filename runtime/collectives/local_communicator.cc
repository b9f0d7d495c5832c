// World size 1: every operation is complete when it was queued, or, in a GPU's memory, when the
// lane's stream has done it.
#include <cstring>
#include <mutex>

#include "runtime/base/status.h"
#include "runtime/collectives/communicator.h"

namespace holdfast {
namespace {

class LocalCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::string Carrier() const override { return "local"; }

  Ticket ReduceScatter(std::span<const int64_t> in, std::span<const int64_t> borders,
                       std::span<int64_t> out, OpTag) override {
    return Copy(in, borders, out);
  }
  Ticket ReduceScatter(std::span<const float> in, std::span<const int64_t> borders,
                       std::span<float> out, OpTag) override {
    return Copy(in, borders, out);
  }
  Ticket AllReduce(std::span<int64_t>, OpTag) override { return Done(absl::OkStatus()); }
  Ticket AllGather(std::span<std::byte> data, std::span<const int64_t> borders, OpTag) override {
    return Done(CheckBorders(borders, data.size(), 1));
  }
  Ticket Broadcast(std::span<std::byte>, int root, OpTag) override {
    return Done(root == 0 ? absl::OkStatus()
                          : absl::InvalidArgumentError("broadcast: the only rank is 0"));
  }
  Ticket Barrier(OpTag) override { return Done(absl::OkStatus()); }

  absl::Status Wait(Ticket ticket, Deadline) override {
    std::lock_guard<std::mutex> lock(mu_);
    if (!error_.ok()) return error_;
    if (ticket > done_)
      return absl::InvalidArgumentError(Cat("wait: ticket ", ticket, " was never given out"));
    return absl::OkStatus();
  }
  bool Finished(Ticket ticket) const override {
    std::lock_guard<std::mutex> lock(mu_);
    return error_.ok() && ticket <= done_;
  }
  absl::Status Health() const override {
    std::lock_guard<std::mutex> lock(mu_);
    return error_;
  }
  int FailedRank() const override { return -1; }
  void Abort(const absl::Status& why) override {
    std::lock_guard<std::mutex> lock(mu_);
    if (error_.ok() && !closed_) error_ = absl::AbortedError(why.message());
  }
  absl::Status Close(Deadline) override {
    std::lock_guard<std::mutex> lock(mu_);
    if (error_.ok()) closed_ = true;
    return error_;
  }

 private:
  template <typename T>
  Ticket Copy(std::span<const T> in, std::span<const int64_t> borders, std::span<T> out) {
    absl::Status status = CheckBorders(borders, in.size(), 1);
    if (status.ok() && out.size() != in.size())
      status = absl::InvalidArgumentError("reduce-scatter: output size differs");
    if (status.ok() && !in.empty() && Health().ok())
      Move(out.data(), in.data(), static_cast<int64_t>(in.size_bytes()));
    return Done(status);
  }

 protected:
  virtual void Move(void* to, const void* from, int64_t bytes) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }

 private:
  Ticket Done(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mu_);
    if (error_.ok() && closed_)
      error_ = absl::FailedPreconditionError("an operation was queued after Close");
    if (error_.ok()) error_ = status;
    return ++done_;
  }

  mutable std::mutex mu_;
  absl::Status error_;
  bool closed_ = false;
  Ticket done_ = 0;
};

// Operations on a GPU's memory. Only copies take time; the others are complete when those before
// them are.
class DeviceLane final : public LocalCommunicator {
 public:
  DeviceLane(kernels::Device& device, Communicator& host)
      : device_(device), host_(host), stream_(device.NewStream()) {}
  // The buffers of what was queued may be freed after this.
  ~DeviceLane() override { (void)stream_->Synchronize(Deadline::After(kEndMs)); }

  void After(const kernels::Event& event) override { stream_->Wait(event); }
  absl::Status Wait(Ticket ticket, Deadline deadline) override {
    HF_RETURN_IF_ERROR(host_.Health());
    HF_RETURN_IF_ERROR(LocalCommunicator::Wait(ticket, deadline));
    const absl::Status done = stream_->Synchronize(deadline);
    if (absl::IsDeadlineExceeded(done)) Abort(done);
    return done;
  }
  bool Finished(Ticket ticket) const override {
    return LocalCommunicator::Finished(ticket) && (!moved_ || last_.done());
  }
  absl::Status Health() const override { return host_.Health(); }
  void Abort(const absl::Status& why) override { host_.Abort(why); }
  absl::Status Close(Deadline deadline) override { return host_.Close(deadline); }

 protected:
  void Move(void* to, const void* from, int64_t bytes) override {
    device_.Copy(*stream_, to, from, bytes);
    last_ = stream_->Record();
    moved_ = true;
  }

 private:
  static constexpr int64_t kEndMs = 60'000;
  kernels::Device& device_;
  Communicator& host_;
  std::unique_ptr<kernels::Stream> stream_;
  kernels::Event last_;
  bool moved_ = false;
};

class LocalDeviceCommunicator final : public LocalCommunicator {
 public:
  explicit LocalDeviceCommunicator(kernels::Device& device) : lane_(device, *this) {}
  Communicator& OnDevice() override { return lane_; }

 private:
  DeviceLane lane_;
};

}  // namespace

std::unique_ptr<Communicator> MakeLocalCommunicator(kernels::Device* device) {
  if (device == nullptr || device->backend() == kernels::Backend::kCpu)
    return std::make_unique<LocalCommunicator>();
  return std::make_unique<LocalDeviceCommunicator>(*device);
}

}  // namespace holdfast
