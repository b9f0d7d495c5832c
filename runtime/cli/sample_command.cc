// holdfast sample: what the model of a checkpoint says. Beside a live run or without one; for every
// model that has NextToken().
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>

#include "runtime/base/digest.h"
#include "runtime/base/log.h"
#include "runtime/cli/commands.h"
#include "runtime/models/data/token_text.h"
#include "runtime/models/sampling.h"
#include "runtime/session/checkpoint_reader.h"
#include "runtime/session/runtime_pass.h"
#include "runtime/supervisor/exit_status.h"
#include "runtime/supervisor/line_file.h"
#include "runtime/supervisor/run_dir.h"

namespace holdfast {
namespace {

constexpr size_t kVocabBytesMax = 64 << 20;

ExitCode Fail(const absl::Status& status, ExitCode code) {
  std::fprintf(stderr, "holdfast sample: %s\n", std::string(status.message()).c_str());
  return ExitCodeOf(status, code);
}

// The model with the values of a checkpoint.
struct Speaker {
  std::unique_ptr<Model> model;
  std::unique_ptr<State> state;
  std::atomic<bool> cancelled{false};
  std::unique_ptr<RuntimePass> pass;
};

// When there will be something to sample, for those who come too early.
std::string NextSave(const std::string& dir, const Config& c) {
  const int64_t step = ReadRecord(dir).last_step;
  if (c.checkpoint_every_ms > 0)
    return Cat("; the run is at step ", step, " and saves every ", c.checkpoint_every_ms / 1000,
               " s, and when it ends or is stopped");
  const int64_t next = (step / c.checkpoint_every_steps + 1) * c.checkpoint_every_steps;
  return Cat("; the run is at step ", step, " and saves next at step ", std::min(next, c.steps),
             " (--checkpoint-every ", c.checkpoint_every_steps, ")");
}

absl::Status Load(const CommandLine& line, const SavedRun& run, Speaker* speaker,
                  storage::Manifest* manifest) {
  HF_ASSIGN_OR_RETURN(const ModelSpec spec, speaker->model->Describe());
  // Values only: optimizer slots are read for the digest, but not kept.
  HF_ASSIGN_OR_RETURN(const StatePlan plan, MakePlan(spec, [](const std::string&) { return 0; }));
  HF_ASSIGN_OR_RETURN(speaker->state, State::Allocate(plan));
  State& state = *speaker->state;
  CheckpointConsumer consumer;
  consumer.begin = [](const storage::Manifest&) { return absl::OkStatus(); };
  consumer.words = [&](size_t tensor, int64_t first, std::span<const uint32_t> words) {
    const int trained = plan.trained_of[tensor];
    float* to = trained >= 0 ? state.values() + plan.trained[trained].offset
                             : state.others() + plan.others[plan.other_of[tensor]].offset;
    std::memcpy(to + first, words.data(), words.size_bytes());
    return absl::OkStatus();
  };
  HF_ASSIGN_OR_RETURN(*manifest, ReadCheckpoint(line.dir, run, spec,
                                                {.step = line.step, .best = line.best}, consumer));
  HF_ASSIGN_OR_RETURN(speaker->pass, RuntimePass::Create(&state, &speaker->cancelled));
  return speaker->model->Prepare(DeviceKind::kCpu);
}

absl::StatusOr<TokenText> TextOf(const CommandLine& line, const Config& config) {
  if (!line.vocab.empty()) {
    HF_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(line.vocab, kVocabBytesMax));
    auto vocabulary = TokenText::Vocabulary(text);
    if (!vocabulary.ok()) return Annotate(vocabulary.status(), Cat("--vocab ", line.vocab));
    return vocabulary;
  }
  return HoldsTokenNumbers(config.data) ? TokenText::Numbers() : TokenText::Bytes();
}

// A terminal is not at the mercy of a young model: control characters are shown as '?'.
bool Print(std::string text) {
  static const bool terminal = isatty(STDOUT_FILENO) == 1;
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (terminal && (byte == 0x7F || (byte < 0x20 && c != '\n' && c != '\t'))) c = '?';
  }
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
         std::fflush(stdout) == 0;
}

absl::Status Speak(const CommandLine& line, const TokenText& text, std::vector<int32_t> tokens,
                   Speaker* speaker) {
  const SamplingOptions options{line.temperature, line.top_k, line.seed};
  for (int64_t i = 0; i < line.tokens; ++i) {
    const MicroBatch batch{.step = -1, .index = 0, .training = false};
    speaker->pass->Begin(nullptr, line.seed, batch);
    HF_ASSIGN_OR_RETURN(const Tensor logits, speaker->model->NextToken(*speaker->pass, tokens));
    HF_RETURN_IF_ERROR(speaker->pass->stream().Synchronize(Deadline::After(600'000)));
    const std::span<const float> scores(logits.as<const float>(),
                                        static_cast<size_t>(logits.elements()));
    const int32_t token = ChooseToken(scores, options, i);
    if (token < 0) return absl::InternalError("the model's scores are not finite");
    tokens.push_back(token);
    if (!Print(text.Decode(token))) return absl::OkStatus();  // nobody reads any more
  }
  (void)Print("\n");
  return absl::OkStatus();
}

}  // namespace

ExitCode SampleCommand(const CommandLine& line, const Trainer& trainer) {
  SetLogLevel(LogLevel::kWarning);
  signal(SIGINT, SIG_DFL);
  const auto run = ReadSavedRun(line.dir);
  if (!run.ok()) return Fail(run.status(), ExitCode::kUsage);
  const auto text = TextOf(line, run->config);
  if (!text.ok()) return Fail(text.status(), ExitCode::kUsage);
  // Every text begins somewhere: without a prompt behind the end of a line, or at token 0.
  auto tokens = text->Encode(line.prompt.empty() ? (text->numbers() ? "0" : "\n") : line.prompt);
  if (!tokens.ok()) return Fail(Annotate(tokens.status(), "--prompt"), ExitCode::kUsage);

  Speaker speaker;
  auto model = trainer.model(run->toml);
  if (!model.ok()) return Fail(model.status(), ExitCode::kUsage);
  speaker.model = *std::move(model);
  kernels::SetComputeThread();
  storage::Manifest manifest;
  absl::Status status = Load(line, *run, &speaker, &manifest);
  if (absl::IsNotFound(status) && line.step < 0 && !line.best)
    status = absl::NotFoundError(Cat(status.message(), NextSave(line.dir, run->config)));
  if (!status.ok()) return Fail(status, ExitCode::kCheckpoint);
  std::fprintf(stderr, "from the checkpoint of step %lld\n",
               static_cast<long long>(manifest.id.step));
  if (!line.prompt.empty()) Print(text->numbers() ? line.prompt + " " : line.prompt);
  status = Speak(line, *text, *std::move(tokens), &speaker);
  if (absl::IsUnimplemented(status)) {
    status = absl::UnimplementedError(
        Cat(status.message(),
            ": `sample` asks it for the next token of a sequence. Implement "
            "Model::NextToken if yours is a model of sequences"));
  }
  return status.ok() ? ExitCode::kOk : Fail(status, ExitCode::kFailed);
}

}  // namespace holdfast
