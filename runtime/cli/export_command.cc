// holdfast checkpoint export: the weights of a checkpoint as one safetensors file, under the names
// that the model gives them (gpt: those of GPT-2). Beside a live run or without one.
#include <cstdio>
#include <memory>

#include "runtime/base/digest.h"
#include "runtime/base/log.h"
#include "runtime/cli/commands.h"
#include "runtime/models/model_spec.h"
#include "runtime/models/safetensors.h"
#include "runtime/session/checkpoint_reader.h"
#include "runtime/session/state.h"
#include "runtime/supervisor/exit_status.h"

namespace holdfast {
namespace {

ExitCode Fail(const absl::Status& status, ExitCode code) {
  std::fprintf(stderr, "holdfast checkpoint export: %s\n", std::string(status.message()).c_str());
  return ExitCodeOf(status, code);
}

// What a reader of the file may want to know; values are texts in this format.
std::map<std::string, std::string> MetadataOf(const storage::Manifest& m, const Config& config) {
  return {{"format", "pt"},  // what other libraries expect there
          {"holdfast.run", m.run},
          {"holdfast.step", Cat(m.id.step)},
          {"holdfast.state_digest", Hex64(FullDigest(m.state_digest, m.scalars))},
          {"holdfast.model", config.model},
          {"holdfast.heads", Cat(config.heads)}};
}

class Exporter {
 public:
  Exporter(const ModelSpec& spec, const Config& config, std::string path)
      : spec_(spec), config_(config), path_(std::move(path)) {}

  CheckpointConsumer consumer() {
    return {.begin = [this](const storage::Manifest& m) { return Begin(m); },
            .words =
                [this](size_t tensor, int64_t first, std::span<const uint32_t> words) {
                  return WithExit(writer_->Write(tensor, first, words), ExitCode::kFailed);
                }};
  }
  absl::Status Commit() { return writer_->Commit(); }

 private:
  absl::Status Begin(const storage::Manifest& manifest) {
    writer_.reset();  // what a damaged checkpoint had begun
    SafetensorsHeader header;
    header.metadata = MetadataOf(manifest, config_);
    for (const TensorSpec& t : spec_.tensors)
      header.tensors.push_back({.name = t.name, .dtype = "F32", .shape = t.shape});
    auto writer = SafetensorsWriter::Create(path_, std::move(header));
    if (!writer.ok())
      return WithExit(writer.status(), absl::IsInvalidArgument(writer.status())
                                           ? ExitCode::kUsage
                                           : ExitCode::kFailed);
    writer_ = *std::move(writer);
    return absl::OkStatus();
  }

  const ModelSpec& spec_;
  const Config& config_;
  const std::string path_;
  std::unique_ptr<SafetensorsWriter> writer_;
};

}  // namespace

ExitCode CheckpointExportCommand(const CommandLine& line, const Trainer& trainer) {
  SetLogLevel(LogLevel::kWarning);
  const auto run = ReadSavedRun(line.dir);
  if (!run.ok()) return Fail(run.status(), ExitCode::kUsage);
  const auto model = trainer.model(run->toml);
  if (!model.ok()) return Fail(model.status(), ExitCode::kUsage);
  const auto spec = (*model)->Describe();
  if (!spec.ok()) return Fail(spec.status(), ExitCode::kUsage);
  Exporter exporter(*spec, run->config, line.out);
  const auto manifest = ReadCheckpoint(line.dir, *run, *spec,
                                       {.step = line.step, .best = line.best}, exporter.consumer());
  if (!manifest.ok()) return Fail(manifest.status(), ExitCode::kCheckpoint);
  if (const absl::Status done = exporter.Commit(); !done.ok()) return Fail(done, ExitCode::kFailed);
  int64_t elements = 0;
  for (const TensorSpec& t : spec->tensors) elements += ElementsOf(t);
  std::printf("%s\n", Cat("wrote ", line.out, ": ", spec->tensors.size(), " tensors, ", elements,
                          " elements, from the checkpoint of step ", manifest->id.step,
                          ", whose digest was checked")
                          .c_str());
  return ExitCode::kOk;
}

}  // namespace holdfast
