// Session::Create: everything that a worker needs before it may meet others.
#include <dnnl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/str_split.h"
#include "runtime/base/digest.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/models/data/overfit_source.h"
#include "runtime/models/model_spec.h"
#include "runtime/session/init_from.h"
#include "runtime/session/session.h"
#include "runtime/supervisor/line_file.h"
#include "runtime/supervisor/settle_device.h"

namespace holdfast {
namespace {

// Raised whenever a change of this program changes a run's bits: then old checkpoints are other
// runs'.
constexpr int kBitsVersion = 1;

class StoreMarks : public rendezvous::SlotMarks {
 public:
  explicit StoreMarks(storage::SlotStore* store) : store_(store) {}
  absl::Status Put(std::string_view key, std::string_view value) override {
    return store_->PutMark(key, value);
  }
  absl::StatusOr<std::string> Get(std::string_view key) const override {
    return store_->GetMark(key);
  }

 private:
  storage::SlotStore* store_;
};

std::string SpecText(const ModelSpec& spec) {
  std::string text;
  auto add = [&](const TensorSpec& t) {
    text += Cat(t.name, ":", static_cast<int>(t.role), ":", t.group, ":", t.init);
    for (const int64_t d : t.shape) text += Cat(",", d);
    text += ";";
  };
  for (const TensorSpec& t : spec.tensors) add(t);
  for (const TensorSpec& t : spec.statistics) add(t);
  for (const OptimizerSpec& o : spec.optimizers) {
    text += Cat(o.group, "=", o.rule, ":", o.lr_scale, ":", o.decay ? 1 : 0, ";");
  }
  return Cat(text, spec.max_weight);
}

std::string ComputeClass(const kernels::Device& device) {
  if (device.backend() != kernels::Backend::kCpu) return Cat(device.Name(), ", ", __VERSION__);
  const dnnl_version_t* v = dnnl_version();
  return Cat("CPU, oneDNN ", v->major, ".", v->minor, ".", v->patch, ", instruction set ",
             static_cast<int>(dnnl_get_effective_cpu_isa()), ", ", __VERSION__);
}

}  // namespace

Session::Session(const StartMessage& start, const Trainer& trainer, Channel& channel)
    : start_(start), config_(start_.config), trainer_(trainer), reporter_(channel) {}

Session::~Session() = default;

absl::StatusOr<std::unique_ptr<Session>> Session::Create(const StartMessage& start,
                                                         const Trainer& trainer, Channel& channel,
                                                         ExitCode* exit) {
  std::unique_ptr<Session> session(new Session(start, trainer, channel));
  const absl::Status status = session->Prepare();
  if (!status.ok()) (void)session->DeviceLost();
  *exit = session->exit_;
  if (!status.ok()) return status;
  return session;
}

absl::Status Session::Prepare() {
  exit_ = ExitCode::kData;
  HF_ASSIGN_OR_RETURN(data_, trainer_.data(start_.toml));
  exit_ = ExitCode::kUsage;
  HF_ASSIGN_OR_RETURN(data_, Overfit(std::move(data_), config_.micro_batches, config_.overfit));
  HF_ASSIGN_OR_RETURN(const auto model, trainer_.model(start_.toml));
  HF_ASSIGN_OR_RETURN(const ModelSpec spec, model->Describe());
  HF_RETURN_IF_ERROR(ValidateModelSpec(spec));
  HF_ASSIGN_OR_RETURN(const StatePlan plan, MakePlan(spec, [&](const std::string& rule) {
                        return SlotsOfRule(trainer_, rule);
                      }));
  // Where it is gone, a run that has a checkpoint does without it.
  if (!config_.init_from.empty() && std::filesystem::exists(config_.init_from)) {
    exit_ = ExitCode::kData;
    HF_RETURN_IF_ERROR(Annotate(CheckInitFile(config_.init_from, spec), "--init-from"));
  }
  HF_RETURN_IF_ERROR(OpenDevice());
  exit_ = ExitCode::kFailed;
  HF_ASSIGN_OR_RETURN(state_, State::Allocate(plan, *device_));
  ComputePool::Options pool;
  pool.threads = config_.threads;
  pool.seed = config_.seed;
  pool.toml = start_.toml;
  // What a model or a rule cannot do on this device, it cannot do at the next start either.
  const auto refused = [this](const absl::Status& status) {
    if (absl::IsUnimplemented(status)) exit_ = ExitCode::kUsage;
    return Annotate(status, Cat("--device ", config_.device));
  };
  auto made_pool = ComputePool::Create(pool, trainer_, data_.get(), state_.get());
  if (!made_pool.ok()) return refused(made_pool.status());
  pool_ = *std::move(made_pool);
  auto engine =
      StepEngine::Create(config_, trainer_, data_.get(), state_.get(), pool_.get(), &time_);
  if (!engine.ok()) return refused(engine.status());
  engine_ = *std::move(engine);
  fingerprint_text_ = Cat(config_.BitsText(), "data = ", data_->Fingerprint(),
                          "\nmodel_description = ", Hex64(Hash64(SpecText(spec))),
                          "\nbits_version = ", kBitsVersion, "\n");
  join_text_ = Cat(fingerprint_text_, config_.ScheduleText(), "steps = ", config_.steps, "\n");

  // The probe: one canonical micro-batch at the initial values. Equal digests are the same compute
  // class.
  HF_RETURN_IF_ERROR(state_->Initialise(
      config_.seed, data_->streaming() ? config_.micro_batches : 0, config_.precision == "fp16"));
  {
    TimeScope scope(time_, TimeKind::kCompute);
    HF_ASSIGN_OR_RETURN(const uint64_t probe, pool_->Probe());
    // A GPU and a CPU are never one class, even where this micro-batch came out the same.
    const bool cpu = device_->backend() == kernels::Backend::kCpu;
    probe_ = Hex64(cpu ? probe : Mix64(probe));
  }
  state_->valid = false;  // nothing that anybody agreed on
  state_->marked = true;
  compute_class_ = ComputeClass(*device_);
  HF_RETURN_IF_ERROR(PrepareStores());
  return StartMembership();
}

// Worker N of a machine computes on its N-th GPU.
absl::Status Session::OpenDevice() {
  device_ = &kernels::CpuDevice();
  if (config_.device != "cuda") return absl::OkStatus();
  exit_ = ExitCode::kUsage;
  const kernels::CudaOptions options = CudaOptionsOf(config_);
  HF_ASSIGN_OR_RETURN(const int count, kernels::FindCudaBackend().DeviceCount(options));
  if (start_.slot >= count) {
    return absl::InvalidArgumentError(
        Cat("worker ", start_.slot, " has no GPU: this machine has ", count,
            ", and each worker needs one of its own. Use --workers ", count, " or fewer"));
  }
  HF_ASSIGN_OR_RETURN(device_, kernels::FindCudaBackend().Open(options, start_.slot));
  // Others may come: better no start than an end when they do.
  if (start_.local_workers > 1 || !start_.may_found || !config_.redis.empty()) {
    HF_RETURN_IF_ERROR(MakeNccl());
  }
  // The algorithms of products that this run began with: later workers take the same ones, whatever
  // the library would choose for them. What does not fit is another class; the probe will tell.
  const auto choices = ReadSmallFile(ChoicesPath());
  if (!choices.ok()) return absl::OkStatus();
  const absl::Status adopted = kernels::FindCudaBackend().AdoptMatMulChoices(*device_, *choices);
  if (!adopted.ok())
    reporter_.Event("notice", 0, Cat(ChoicesPath(), " is not used: ", StdView(adopted.message())));
  return absl::OkStatus();
}

absl::Status Session::MakeNccl() {
  if (nccl_ != nullptr) return absl::OkStatus();
  NcclOptions options;
  options.device = device_;
  options.libraries = CudaOptionsOf(config_);
  // NCCL chooses its interface once for a process: by what holds for every later member, too.
  options.loopback =
      config_.host.starts_with("127.") || config_.host == "::1" || config_.host == "localhost";
  HF_ASSIGN_OR_RETURN(nccl_, NcclFactory::Create(options));
  return absl::OkStatus();
}

std::string Session::ChoicesPath() const { return Cat(config_.dir, "/products.txt"); }

// Once a generation stands, they are the run's. One worker of a machine writes them down.
void Session::RecordChoices() {
  if (device_->backend() == kernels::Backend::kCpu || start_.slot != 0 || choices_recorded_) return;
  choices_recorded_ = true;
  std::error_code error;
  if (std::filesystem::exists(ChoicesPath(), error)) return;
  const absl::Status written =
      WriteFileAtomically(ChoicesPath(), kernels::FindCudaBackend().MatMulChoices(*device_));
  if (!written.ok())
    LogWarning("the choice of products is not recorded: ", StdView(written.message()));
}

absl::Status Session::PrepareStores() {
  exit_ = ExitCode::kCheckpoint;
  const std::string path = storage::StorePath(config_.dir, start_.slot);
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return absl::UnavailableError(Cat("cannot create ", path, ": ", error.message()));
  storage::StoreOptions options;
  options.run = start_.run;
  HF_ASSIGN_OR_RETURN(store_, storage::SlotStore::Open(path, options));
  HF_ASSIGN_OR_RETURN(held_, HeldCheckpoints::Open(config_.dir, start_.run, start_.slot,
                                                   start_.local_workers, store_.get()));
  saver_ = std::make_unique<Saver>(store_.get(), config_.keep);
  if (config_.keep_best > 0) best_.Merge(saver_->best(), {});
  marks_ = std::make_unique<StoreMarks>(store_.get());
  last_save_ms_ = BootMs();
  HF_RETURN_IF_ERROR(CheckFingerprint());
  HF_RETURN_IF_ERROR(ReadLineage());
  const auto former = store_->GetMark("probe");
  if (former.ok() && *former != probe_) {
    reporter_.Event("notice", 0,
                    Cat("this slot was used by another compute class before: the bits from here on "
                        "are not those of the "
                        "undisturbed run (now: ",
                        compute_class_, ")"));
  }
  if (!former.ok() || *former != probe_) return store_->PutMark("probe", probe_);
  return absl::OkStatus();
}

// A slot belongs to one run's bits for good: what was saved under other ones is not taken up, and
// not overwritten.
absl::Status Session::CheckFingerprint() {
  const auto former = store_->GetMark("fingerprint");
  if (absl::IsNotFound(former.status())) return store_->PutMark("fingerprint", fingerprint_text_);
  HF_RETURN_IF_ERROR(former.status());
  if (*former == fingerprint_text_) return absl::OkStatus();
  std::string text;
  const std::vector<std::string> now = absl::StrSplit(fingerprint_text_, '\n');
  const std::set<std::string> before = absl::StrSplit(*former, '\n');
  for (const std::string& line : now) {
    if (!before.contains(line)) text += Cat(text.empty() ? "" : "; ", line);
  }
  exit_ = ExitCode::kRefused;
  return absl::FailedPreconditionError(
      Cat("the run in ", config_.dir, " was made with other settings or data; new here: ", text,
          ". Use the former ones, another --dir, or --fresh to set the old run aside"));
}

absl::Status Session::ReadLineage() {
  const auto mark = store_->GetMark(kBranchesMark);
  if (!mark.ok() && !absl::IsNotFound(mark.status())) return mark.status();
  if (mark.ok()) {
    HF_ASSIGN_OR_RETURN(lineage_, rendezvous::DecodeLineage(*mark));
  }
  // A slot that had no worker when a branch was opened learns of it from those that had.
  rendezvous::Lineage other = held_->OrphansLineage();
  if (other.size() > lineage_.size()) std::swap(other, lineage_);
  if (!rendezvous::IsPrefix(other, lineage_)) {
    exit_ = ExitCode::kRefused;
    return absl::FailedPreconditionError(
        Cat("the slots of ", config_.dir, " hold two histories (", rendezvous::ToString(other),
            "; ", rendezvous::ToString(lineage_),
            "): use --fresh to set them aside, or bring the right folders back"));
  }
  if (lineage_.empty()) return absl::OkStatus();
  if (other.size() < lineage_.size() &&
      (!mark.ok() || rendezvous::EncodeLineage(lineage_) != *mark))
    HF_RETURN_IF_ERROR(store_->PutMark(kBranchesMark, rendezvous::EncodeLineage(lineage_)));
  branch_ = rendezvous::NewestBranch(lineage_);
  saver_->Follow(lineage_);
  HF_ASSIGN_OR_RETURN(Schedules schedules, Schedules::Of(config_, lineage_));
  engine_->SetSchedules(std::move(schedules));
  return absl::OkStatus();
}

absl::Status Session::StartMembership() {
  exit_ = ExitCode::kUsage;
  TcpEndpoint::Options listen;
  // Loopback stays on loopback; a machine that others reach listens on the address that it
  // announces.
  listen.bind_host = config_.host;
  if (config_.port != 0) listen.port = config_.port + start_.slot;
  auto endpoint = TcpEndpoint::Listen(listen);
  if (!endpoint.ok()) {
    return Annotate(endpoint.status(), Cat("--host ", config_.host, " --port ", config_.port,
                                           " (worker N listens on port + N, 0 takes any)"));
  }
  endpoint_ = *std::move(endpoint);
  exit_ = ExitCode::kStore;
  rendezvous::MembershipOptions m;
  m.redis_host = start_.redis_host;
  m.redis_port = start_.redis_port;
  m.redis_user = start_.redis_user;
  m.redis_password = start_.redis_password;
  m.run = start_.run;
  m.member_id = start_.member_id;
  m.machine = start_.machine;
  m.slot = start_.slot;
  m.pid = static_cast<int>(getpid());
  m.min_workers = config_.min_workers;
  m.max_workers = static_cast<int>(std::min<int64_t>(config_.max_workers, config_.micro_batches));
  // With a Redis of this machine's own nobody else can come: there is no other machine to wait for.
  m.restore_wait_ms =
      start_.may_found ? std::min<int64_t>(config_.restore_wait_ms, 3000) : config_.restore_wait_ms;
  m.rendezvous_ms = config_.rendezvous_ms;
  m.may_found = start_.may_found;
  m.target_step = config_.steps;
  HF_ASSIGN_OR_RETURN(membership_, rendezvous::Membership::Start(
                                       m, marks_.get(), Deadline::After(config_.rendezvous_ms)));
  if (start_.slot == 0 && start_.local_workers > config_.micro_batches) {
    reporter_.Event("notice", 0,
                    Cat(start_.local_workers, " workers for ", config_.micro_batches,
                        " micro-batches: ", start_.local_workers - config_.micro_batches,
                        " of them wait as spares"));
  }
  if (start_.slot == 0 && config_.reduction == "fast") {
    reporter_.Event(
        "notice", 0,
        "--reduction fast: plain fp32 sums; the result depends on the number of workers "
        "and on who dies");
  }
  exit_ = ExitCode::kFailed;
  return absl::OkStatus();
}

}  // namespace holdfast
