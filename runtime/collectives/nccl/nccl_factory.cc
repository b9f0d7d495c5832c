// The way of the members of a generation to one NCCL communicator.
#include "runtime/base/back_off.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/collectives/nccl/environment.h"
#include "runtime/collectives/nccl/join_plan.h"
#include "runtime/collectives/nccl/nccl_communicator.h"

namespace holdfast {
namespace {

constexpr int64_t kJoinStep = -2;  // tags of a join's operations on the links

// One join: what ends it, and the words of it over the links.
class Joining {
 public:
  Joining(const NcclOptions& options, Communicator& links, const std::atomic<bool>* cancel)
      : build_ms_(options.build_ms),
        links_(links),
        cancel_(cancel),
        deadline_(Deadline::After(options.build_ms)) {}

  absl::Status Check() const {
    HF_RETURN_IF_ERROR(links_.Health());
    if (cancel_ != nullptr && cancel_->load()) return absl::CancelledError("it was cancelled");
    if (!deadline_.passed()) return absl::OkStatus();
    return absl::DeadlineExceededError(
        Cat("not all members met in ", build_ms_,
            " ms, though all links live: NCCL's sockets may not reach the other hosts "
            "(NCCL_SOCKET_IFNAME), or a GPU stands still; NCCL_DEBUG=INFO says more"));
  }

  absl::StatusOr<std::vector<JoinRow>> Exchange(const JoinRow& mine) {
    std::vector<JoinRow> rows(static_cast<size_t>(links_.world_size()));
    rows[static_cast<size_t>(links_.rank())] = mine;
    std::vector<int64_t> borders;
    for (size_t r = 0; r <= rows.size(); ++r)
      borders.push_back(static_cast<int64_t>(r * sizeof(JoinRow)));
    HF_RETURN_IF_ERROR(Await(
        links_.AllGather(std::as_writable_bytes(std::span(rows)), borders, {kJoinStep, 0, 0})));
    HF_RETURN_IF_ERROR(CheckJoinRows(rows));
    return rows;
  }

  absl::StatusOr<ncclUniqueId> AgreeOnId(const NcclContext& context) {
    ncclUniqueId id{};
    if (links_.rank() == 0) {
      HF_ASSIGN_OR_RETURN(id, NcclGroup::NewId(context));
    }
    HF_RETURN_IF_ERROR(
        Await(links_.Broadcast(std::as_writable_bytes(std::span(&id, 1)), 0, {kJoinStep, 1, 0})));
    return id;
  }

 private:
  // A wait that a cancel ends, too.
  absl::Status Await(Ticket ticket) {
    for (BackOff back_off; !links_.Finished(ticket); back_off.Pause()) {
      const absl::Status status = Check();
      if (status.ok()) continue;
      links_.Abort(status);  // and lets go of the buffers
      return status;
    }
    return links_.Wait(ticket, deadline_);
  }

  const int64_t build_ms_;
  Communicator& links_;
  const std::atomic<bool>* cancel_;
  const Deadline deadline_;
};

class Factory final : public NcclFactory {
 public:
  explicit Factory(std::shared_ptr<NcclContext> context) : context_(std::move(context)) {}
  ~Factory() override { Forget(); }

  std::string Version() const override {
    return Cat("NCCL ", context_->nccl->version, " (", context_->nccl->path, ")");
  }

  std::string LastJoin() const override { return last_join_; }

  void Forget() override {
    NcclGroup::Abort({former_.get()});
    former_.reset();
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Join(std::unique_ptr<Communicator> links,
                                                     uint64_t generation,
                                                     const std::atomic<bool>* cancel) override {
    HF_RETURN_IF_ERROR(context_->device().Health());
    Joining joining(context_->options, *links, cancel);
    auto group =
        std::make_shared<NcclGroup>(context_, generation, links->rank(), links->world_size());
    absl::Status joined = Meet(joining, *group);
    if (joined.ok()) joined = group->FirstContact([&] { return joining.Check(); });
    if (!joined.ok()) {
      if (absl::Status word; absl::IsAborted(joined) && !(word = LinksWord(*links)).ok())
        joined = word;
      // First the links, so that no other member waits for this one while it aborts.
      links->Abort(joined);
      NcclGroup::Abort({former_.get(), group.get()});
      former_.reset();
      return Annotate(joined, Cat("joining generation ", generation, " over NCCL"));
    }
    former_ = group;
    return std::make_unique<NcclCommunicator>(std::move(links), std::move(group), context_);
  }

 private:
  absl::Status Meet(Joining& joining, NcclGroup& group) {
    const auto check = [&joining] { return joining.Check(); };
    JoinRow mine;
    mine.nccl_version = context_->version;
    mine.can_shrink = context_->nccl->CommShrink != nullptr;
    if (former_ != nullptr) {
      mine.parent_generation = former_->generation();
      mine.parent_rank = former_->rank();
      mine.parent_world = former_->world();
      mine.parent_healthy = former_->Poll().ok() && former_->healthy();
    }
    HF_ASSIGN_OR_RETURN(const std::vector<JoinRow> rows, joining.Exchange(mine));
    const JoinPlan plan = DecideJoin(rows);
    last_join_ = Cat(plan.shrink ? "shrunk: " : "met anew: ", plan.why);
    LogInfo("NCCL: generation ", group.generation(), " (", group.world(), " members) ", last_join_);
    if (plan.shrink) {
      const absl::Status shrunk = group.ShrinkFrom(*former_, plan.excluded, check);
      if (shrunk.ok()) Forget();
      return shrunk;
    }
    Forget();
    HF_ASSIGN_OR_RETURN(const ncclUniqueId id, joining.AgreeOnId(*context_));
    return group.Init(id, check);
  }

  const std::shared_ptr<NcclContext> context_;
  // The newest communicator: in use, or what is left of it until the next generation is decided.
  std::shared_ptr<NcclGroup> former_;
  std::string last_join_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NcclFactory>> NcclFactory::Create(const NcclOptions& options) {
  if (options.device == nullptr || options.device->backend() != kernels::Backend::kCuda)
    return absl::InvalidArgumentError("NCCL: it needs a CUDA device");
  for (const std::string& replaced :
       PinNcclEnvironment(NcclSettings(options.loopback, options.interface)))
    LogWarning(replaced);
  auto context = std::make_shared<NcclContext>();
  context->options = options;
  HF_ASSIGN_OR_RETURN(context->nccl, kernels::cuda::LoadNccl(options.libraries));
  if (context->nccl->GetVersion(&context->version) != ncclSuccess)
    return absl::FailedPreconditionError("NCCL does not say which version it is");
  HF_ASSIGN_OR_RETURN(context->guard, CallGuard::Start());
  HF_ASSIGN_OR_RETURN(context->words, options.device->Allocate(2 * sizeof(int64_t)));
  HF_ASSIGN_OR_RETURN(context->host_words, options.device->AllocateHost(2 * sizeof(int64_t)));
  return std::make_unique<Factory>(std::move(context));
}

}  // namespace holdfast
