#include "runtime/supervisor/settle_device.h"

#include "absl/strings/str_split.h"
#include "runtime/supervisor/exit_status.h"

namespace holdfast {

kernels::CudaOptions CudaOptionsOf(const Config& config) {
  kernels::CudaOptions options;
  for (const absl::string_view folder : absl::StrSplit(config.cuda_libs, ':', absl::SkipEmpty()))
    options.library_folders.emplace_back(folder);
  return options;
}

absl::Status SettleDevice(const Config* recorded, Config* wanted, std::vector<std::string>* notes) {
  // A run stays where it is: only a person's --device moves it.
  const bool built_in = wanted->model == "gpt" || wanted->model == "mlp";
  if (wanted->device == "auto" && (recorded != nullptr ? recorded->device != "cuda" : !built_in))
    wanted->device = "cpu";
  if (wanted->device == "cpu") return absl::OkStatus();
  const auto count = kernels::FindCudaBackend().DeviceCount(CudaOptionsOf(*wanted));
  const bool some = count.ok() && *count > 0;
  const std::string why =
      count.ok() ? "no GPU that this process may use" : std::string(count.status().message());
  if (!some && wanted->device == "cuda")
    return WithExit(absl::FailedPreconditionError(Cat("--device cuda: ", why)), ExitCode::kUsage);
  if (!some && recorded != nullptr && recorded->device == "cuda") {
    return WithExit(absl::FailedPreconditionError(
                        Cat("this run computes on GPUs, and none can be used here: ", why,
                            ". Mend that, or go on with --device cpu (other bits from there on)")),
                    ExitCode::kRefused);
  }
  if (!some) {
    wanted->device = "cpu";
    notes->push_back(Cat("device auto: the CPU (", why, ")"));
    return absl::OkStatus();
  }
  if (wanted->device == "auto") {
    notes->push_back(Cat("device auto: cuda, ", *count, *count == 1 ? " GPU" : " GPUs"));
    wanted->device = "cuda";
  }
  if (wanted->workers == 0) wanted->workers = *count;
  if (wanted->workers <= *count) return absl::OkStatus();
  return WithExit(
      absl::InvalidArgumentError(Cat("--workers ", wanted->workers, ", but this machine has ",
                                     *count, *count == 1 ? " GPU" : " GPUs",
                                     ", and each worker needs one of its own: use --workers ",
                                     *count, " or fewer, or --device cpu")),
      ExitCode::kUsage);
}

}  // namespace holdfast
