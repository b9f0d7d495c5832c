// models_dump_reference CONFIG.toml OUT [STEPS]: writes what another implementation needs to repeat
// a run of the gpt model: sizes, hyper-parameters, the first weights, the batches of the first
// STEPS steps (all without STEPS) and the held-out batches. compare_pytorch.py reads it.
// Little-endian:
//   8 bytes "HFDUMP01"
//   int32: layers, heads, embed, context, vocab, micro_batches, micro_batch_size, steps written
//   int64: steps of the run, warmup_steps
//   float64: learning_rate, min_learning_rate, weight_decay, beta1, beta2, epsilon, clip
//   uint32 length and name of the schedule
//   int32 number of tensors; each: uint32 length and name, int32 decays (0 or 1), int32 elements,
//   float32 values for each step and micro-batch: int32 tokens [micro_batch_size * context], int32
//   targets int32 number of held-out batches; each: int32 sequences, int32 tokens [sequences *
//   context], int32 targets

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "runtime/base/bytes.h"
#include "runtime/base/status.h"
#include "runtime/config/config.h"
#include "runtime/models/model.h"
#include "runtime/models/model_spec.h"

namespace holdfast {
namespace {

class Dump {
 public:
  explicit Dump(const std::string& path) : out_(path, std::ios::binary) {}

  template <typename T>
  void Put(T value) {
    out_.write(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void PutString(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    out_.write(text.data(), static_cast<std::streamsize>(text.size()));
  }
  void PutTensor(const Tensor& t) {
    out_.write(t.as<const char>(), static_cast<std::streamsize>(t.elements() * TypeBytes(t.type)));
  }
  bool Close() {
    out_.close();
    return static_cast<bool>(out_);
  }

 private:
  std::ofstream out_;
};

void PutHeader(const Config& config, int64_t vocab, int64_t steps, Dump* dump) {
  for (const int64_t v : {config.layers, config.heads, config.embed, config.context, vocab,
                          config.micro_batches, config.micro_batch_size, steps}) {
    dump->Put(static_cast<int32_t>(v));
  }
  dump->Put(config.steps);
  dump->Put(config.warmup_steps);
  for (const double v : {config.learning_rate, config.min_learning_rate, config.weight_decay,
                         config.beta1, config.beta2, config.epsilon, config.clip}) {
    dump->Put(v);
  }
  dump->PutString(config.lr_schedule);
}

absl::Status PutWeights(const Model& model, uint64_t seed, Dump* dump) {
  HF_ASSIGN_OR_RETURN(const ModelSpec spec, model.Describe());
  HF_RETURN_IF_ERROR(ValidateModelSpec(spec));
  auto stream = kernels::CpuDevice().NewStream();
  dump->Put(static_cast<int32_t>(spec.tensors.size()));
  for (const TensorSpec& tensor : spec.tensors) {
    bool decays = false;
    for (const OptimizerSpec& group : spec.optimizers)
      decays |= group.group == tensor.group && group.decay;
    std::vector<float> values(static_cast<size_t>(ElementsOf(tensor)));
    HF_RETURN_IF_ERROR(
        InitializeTensor(*stream, tensor, seed, 0, ElementsOf(tensor), values.data()));
    dump->PutString(tensor.name);
    dump->Put(static_cast<int32_t>(decays));
    dump->Put(static_cast<int32_t>(values.size()));
    dump->PutTensor(Tensor{.data = values.data(), .shape = {ElementsOf(tensor)}});
  }
  return absl::OkStatus();
}

absl::Status PutBatches(const Config& config, DataSource* data, int64_t steps, Dump* dump) {
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t j = 0; j < config.micro_batches; ++j) {
      HF_ASSIGN_OR_RETURN(const Batch batch, data->Read(config.seed, step, j));
      for (const Tensor& field : batch.fields) dump->PutTensor(field);
    }
  }
  dump->Put(static_cast<int32_t>(data->eval_batches()));
  for (int64_t i = 0; i < data->eval_batches(); ++i) {
    HF_ASSIGN_OR_RETURN(const Batch batch, data->ReadEval(i));
    dump->Put(static_cast<int32_t>(batch.fields[0].shape[0]));
    for (const Tensor& field : batch.fields) dump->PutTensor(field);
  }
  return absl::OkStatus();
}

absl::Status Run(const std::string& config_path, const std::string& out, int64_t steps) {
  std::ifstream file(config_path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError(Cat(config_path, ": cannot be read"));
  HF_ASSIGN_OR_RETURN(const Config config, ConfigFromToml(text.str(), config_path));
  if (config.model != "gpt" || config.dropout != 0) {
    return absl::InvalidArgumentError("the comparison needs model = \"gpt\" without dropout");
  }
  const std::string toml = config.ToToml();
  const Trainer trainer = BuiltInTrainer();
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, trainer.model(toml));
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<DataSource> data, trainer.data(toml));
  if (steps == 0) steps = config.steps;
  Dump dump(out);
  for (const char c : std::string("HFDUMP01")) dump.Put(c);
  PutHeader(config, config.vocab_size == 0 ? 256 : config.vocab_size, steps, &dump);
  HF_RETURN_IF_ERROR(PutWeights(*model, config.seed, &dump));
  HF_RETURN_IF_ERROR(PutBatches(config, data.get(), steps, &dump));
  if (!dump.Close()) return absl::UnavailableError(Cat(out, ": cannot be written"));
  std::printf("%s: %lld steps, %s\n", out.c_str(), static_cast<long long>(steps),
              data->Summary().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::fprintf(stderr, "usage: %s CONFIG.toml OUT [STEPS]\n", argv[0]);
    return 2;
  }
  holdfast::kernels::SetComputeThread();
  const absl::Status status = holdfast::Run(argv[1], argv[2], argc > 3 ? std::atoll(argv[3]) : 0);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
