// The built-in trainer: factories for gpt, mlp and the window source.

#include "runtime/base/status.h"
#include "runtime/models/built_in_config.h"
#include "runtime/models/data/window_source.h"
#include "runtime/models/gpt.h"
#include "runtime/models/mlp.h"
#include "runtime/models/model.h"

namespace holdfast {
namespace {

absl::StatusOr<std::unique_ptr<Model>> MakeModel(std::string_view toml) {
  HF_ASSIGN_OR_RETURN(const BuiltInConfig config, ParseBuiltInConfig(toml));
  if (config.model == "gpt") return MakeGpt(config);
  if (config.model == "mlp") return MakeMlp(config);
  return absl::InvalidArgumentError(
      Cat("model '", config.model,
          "' is not known to this program; built in are gpt and mlp "
          "(a run of your own trainer is read by that trainer's program)"));
}

absl::StatusOr<std::unique_ptr<DataSource>> MakeData(std::string_view toml) {
  HF_ASSIGN_OR_RETURN(const BuiltInConfig config, ParseBuiltInConfig(toml));
  HF_ASSIGN_OR_RETURN(const DataLimit limit, ParseDataLimit(config.limit_data));
  return WindowSource::Open({.data = config.data,
                             .eval_data = config.eval_data,
                             .context = config.context,
                             .vocab_size = config.vocab_size,
                             .limit = limit,
                             .micro_batches = config.micro_batches,
                             .micro_batch_size = config.micro_batch_size,
                             .eval_batches = config.eval_batches});
}

}  // namespace

Trainer BuiltInTrainer() { return {.model = MakeModel, .data = MakeData, .optimizer = nullptr}; }

}  // namespace holdfast
