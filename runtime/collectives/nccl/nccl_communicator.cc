// What the two lanes share: errors, the host lane, the end.
#include "runtime/collectives/nccl/nccl_communicator.h"

#include "runtime/base/back_off.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {

constexpr int64_t kPollMs = 10;  // how often Health() asks NCCL

}  // namespace

absl::Status LinksWord(const Communicator& links) {
  constexpr int64_t kGraceMs = 200;
  const Deadline grace = Deadline::After(kGraceMs);
  for (BackOff back_off; links.Health().ok() && !grace.passed();) back_off.Pause();
  return links.Health();
}

NcclCommunicator::NcclCommunicator(std::unique_ptr<Communicator> links,
                                   std::shared_ptr<NcclGroup> group,
                                   std::shared_ptr<const NcclContext> context)
    : context_(std::move(context)), links_(std::move(links)), group_(std::move(group)) {
  device_lane_ = std::make_unique<DeviceLane>(this);
}

NcclCommunicator::~NcclCommunicator() = default;

Communicator& NcclCommunicator::OnDevice() { return *device_lane_; }

std::string NcclCommunicator::Carrier() const {
  return Cat("nccl ", context_->nccl->version, " (", world_size(),
             world_size() == 1 ? " GPU)" : " GPUs)");
}

absl::Status NcclCommunicator::Wait(Ticket ticket, Deadline deadline) {
  const absl::Status status = links_->Wait(ticket, deadline);
  if (status.ok()) return status;
  std::lock_guard<std::mutex> lock(mu_);
  return error_.ok() ? status : error_;
}

bool NcclCommunicator::Finished(Ticket ticket) const {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!error_.ok()) return false;
  }
  return links_->Finished(ticket);
}

absl::Status NcclCommunicator::Health() const {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!error_.ok()) return error_;
  }
  HF_RETURN_IF_ERROR(links_->Health());
  if (!OwnersThread() || BootMs() - polled_ms_ < kPollMs) return absl::OkStatus();
  polled_ms_ = BootMs();
  const absl::Status polled = group_->Poll();
  return polled.ok() ? polled : Fail(polled);
}

// An error of this member's own ends the work of all: the links carry it. Where they know more (the
// peer whose death NCCL reports as a network error), theirs is the error.
absl::Status NcclCommunicator::Fail(const absl::Status& status) const {
  if (absl::IsAborted(status)) HF_RETURN_IF_ERROR(LinksWord(*links_));
  const absl::Status mine = Annotate(status, Cat("rank ", rank()));
  {
    std::lock_guard<std::mutex> lock(mu_);
    // A deadline is over for the wait that it belonged to; for the others it is an abort.
    if (error_.ok())
      error_ = absl::IsDeadlineExceeded(mine) ? absl::AbortedError(mine.message()) : mine;
  }
  links_->Abort(status);  // the others are told whose it is
  return mine;
}

void NcclCommunicator::After(const kernels::Event& event) {
  const Deadline deadline = Deadline::After(context_->options.build_ms);
  for (BackOff back_off; !event.done(); back_off.Pause()) {
    if (!Health().ok()) return;
    if (deadline.passed()) {
      (void)Fail(absl::DeadlineExceededError(
          Cat("the GPU has not written the input of a host operation in ",
              context_->options.build_ms, " ms")));
      return;
    }
  }
}

absl::Status NcclCommunicator::Close(Deadline deadline) {
  HF_RETURN_IF_ERROR(device_lane_->Drain(deadline));
  const absl::Status finalized = group_->Finalize([&]() -> absl::Status {
    HF_RETURN_IF_ERROR(links_->Health());
    if (!deadline.passed()) return absl::OkStatus();
    return absl::DeadlineExceededError("NCCL did not finalize in time");
  });
  if (!finalized.ok()) return Fail(finalized);
  return links_->Close(deadline);
}

}  // namespace holdfast
