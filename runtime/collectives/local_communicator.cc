// World size 1: every operation is complete when it was queued.
#include <cstring>
#include <mutex>

#include "runtime/base/status.h"
#include "runtime/collectives/communicator.h"

namespace holdfast {
namespace {

class LocalCommunicator final : public Communicator {
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
      std::memcpy(out.data(), in.data(), in.size_bytes());
    return Done(status);
  }
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

}  // namespace

std::unique_ptr<Communicator> MakeLocalCommunicator() {
  return std::make_unique<LocalCommunicator>();
}

}  // namespace holdfast
