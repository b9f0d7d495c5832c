// A second trainer of one's own, for what the first has no use for: a streaming data source with
// cursors, a frozen tensor, buffers moved by statistics, keys of its own, held-out data, sampling.
//
// It predicts the next byte of a file from the bytes before it: a frozen random projection of the
// last `window` bytes, normalised by running means and variances (buffers), then one trained layer.
//   next_byte run --dir my-run --data book.txt --set window=6 --workers 2
#include <holdfast/holdfast.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>

namespace next_byte {

using holdfast::Batch;
using holdfast::MicroBatch;
using holdfast::ModelSpec;
using holdfast::Pass;
using holdfast::Role;
using holdfast::Settings;
using holdfast::Tensor;
namespace kernels = holdfast::kernels;

constexpr int64_t kBytes = 256, kWidth = 96, kItems = 48;  // kItems: in one micro-batch

struct Options {
  std::string file;
  int64_t window = 0, streams = 0;
};

absl::StatusOr<Options> ReadOptions(std::string_view toml) {
  HF_ASSIGN_OR_RETURN(const Settings settings, Settings::Parse(toml));
  HF_RETURN_IF_ERROR(settings.CheckOwnKeys({"window"}));
  Options options;
  HF_ASSIGN_OR_RETURN(options.window, settings.Integer("model.window", 1, 64, 8));
  HF_ASSIGN_OR_RETURN(options.streams, settings.Integer("micro_batches", 1, 4096));
  HF_ASSIGN_OR_RETURN(options.file, settings.Text("data"));
  return options;
}

// Stream j of M begins at j/M of the training part and goes round. Its cursor is its position, as
// decimal digits: the runtime commits it with the step, so that a step that is taken again, by
// whomever, reads the same bytes.
class ByteStreams : public holdfast::DataSource {
 public:
  static absl::StatusOr<std::unique_ptr<DataSource>> Open(std::string_view toml) {
    HF_ASSIGN_OR_RETURN(Options options, ReadOptions(toml));
    std::ifstream file(options.file, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file || static_cast<int64_t>(text.size()) < 20 * (options.window + kItems)) {
      return absl::InvalidArgumentError("--data " + options.file + ": unreadable or too short");
    }
    return std::unique_ptr<DataSource>(new ByteStreams(std::move(options), std::move(text)));
  }
  std::string Fingerprint() const override {
    return "bytes-" + holdfast::Hex64(holdfast::Hash64(text_));
  }
  int64_t samples_per_micro_batch() const override { return kItems; }
  bool streaming() const override { return true; }
  absl::StatusOr<Batch> Next(int64_t stream, std::string_view cursor, std::string* next) override {
    const int64_t last = held_out_ - options_.window - kItems;  // the last place to begin at
    int64_t at = stream * last / options_.streams;
    if (!cursor.empty()) std::from_chars(cursor.data(), cursor.data() + cursor.size(), at);
    *next = std::to_string(at + kItems > last ? 0 : at + kItems);
    return Window(at);
  }
  int64_t eval_batches() const override { return 4; }
  absl::StatusOr<Batch> ReadEval(int64_t index) override {
    const int64_t room = static_cast<int64_t>(text_.size()) - held_out_ - options_.window - kItems;
    return Window(held_out_ + index * room / eval_batches());
  }

 private:
  ByteStreams(Options options, std::string text)
      : options_(std::move(options)),
        text_(std::move(text)),
        held_out_(static_cast<int64_t>(text_.size()) * 9 / 10) {}
  Batch Window(int64_t at) const {
    Batch batch;
    int32_t* windows = batch.Add<int32_t>({kItems, options_.window});
    int32_t* targets = batch.Add<int32_t>({kItems});
    const auto byte = [&](int64_t place) { return static_cast<uint8_t>(text_[place]); };
    for (int64_t i = 0; i < kItems; ++i, ++at) {
      for (int64_t k = 0; k < options_.window; ++k) windows[i * options_.window + k] = byte(at + k);
      targets[i] = byte(at + options_.window);
    }
    return batch;
  }

  const Options options_;
  const std::string text_;
  const int64_t held_out_;  // bytes from here on are for evaluation
};

class NextByte : public holdfast::Model {
 public:
  enum { kBias, kWeight, kProjection, kMean, kVariance };
  enum { kSum, kSquares };

  explicit NextByte(int64_t window) : window_(window) {}

  absl::StatusOr<ModelSpec> Describe() const override {
    return ModelSpec{
        .tensors = {{.name = "out.bias", .shape = {kBytes}, .init = "zeros"},
                    {.name = "out.weight", .shape = {kWidth, kBytes}, .init = "zeros"},
                    {.name = "projection",
                     .shape = {window_ * kBytes, kWidth},
                     .role = Role::kFrozen,
                     .init = "normal:1"},
                    {.name = "mean", .shape = {kWidth}, .role = Role::kBuffer, .init = "zeros"},
                    {.name = "variance", .shape = {kWidth}, .role = Role::kBuffer, .init = "ones"}},
        .optimizers = {{.lr_scale = 20}},  // one layer on fixed features takes a larger rate
        .statistics = {{.name = "sum", .shape = {kWidth}}, {.name = "squares", .shape = {kWidth}}},
        .metrics = {"accuracy"},
        .max_weight = kItems};
  }

  absl::Status ForwardBackward(Pass& pass, const MicroBatch& batch) override {
    const Arrays a = Forward(pass, batch.fields[0], kItems, batch.training);
    kernels::Stream& s = pass.stream();
    kernels::ArgMaxHits(s, {kItems, kBytes}, batch.fields[1].as<int32_t>(), a.logits, a.losses);
    pass.Metric(0, a.losses, kItems);
    kernels::SoftmaxCrossEntropy(s, {kItems, kBytes}, batch.fields[1].as<int32_t>(), pass.scale(),
                                 a.logits, a.losses);
    pass.Loss(a.losses, kItems, kItems);
    kernels::BiasGradient(s, {kItems, kBytes}, a.logits, pass.gradient(kBias));
    pass.Done(kBias);
    kernels::MatMul(s, {.m = kWidth, .n = kBytes, .k = kItems, .transpose_a = true}, a.features,
                    a.logits, pass.gradient(kWeight));
    pass.Done(kWeight);
    return absl::OkStatus();
  }

  absl::Status Evaluate(Pass& pass, const MicroBatch& batch) override {
    const Arrays a = Forward(pass, batch.fields[0], kItems, false);
    kernels::CrossEntropyLoss(pass.stream(), {kItems, kBytes}, batch.fields[1].as<int32_t>(),
                              a.logits, a.losses);
    pass.Loss(a.losses, kItems, kItems);
    return absl::OkStatus();
  }

  // For `next_byte sample`.
  absl::StatusOr<Tensor> NextToken(Pass& pass, std::span<const int32_t> tokens) override {
    std::vector<int32_t> window(window_, ' ');
    const int64_t known = std::min<int64_t>(window_, static_cast<int64_t>(tokens.size()));
    std::copy(tokens.end() - known, tokens.end(), window.end() - known);
    const Tensor field{.data = window.data(), .type = holdfast::Type::kI32, .shape = {1, window_}};
    return Tensor{.data = Forward(pass, field, 1, false).logits, .shape = {kBytes}};
  }

  // Equal on all workers, once a step: the sums over all micro-batches move the running values.
  absl::Status UpdateBuffers(std::span<const Tensor> sums, int64_t weight,
                             std::span<Tensor> buffers) override {
    constexpr float kRate = 0.05f;
    for (int64_t c = 0; c < kWidth; ++c) {
      const float mean = sums[kSum].as<float>()[c] / static_cast<float>(weight);
      const float square = sums[kSquares].as<float>()[c] / static_cast<float>(weight);
      float& running_mean = buffers[0].as<float>()[c];
      float& running_variance = buffers[1].as<float>()[c];
      running_mean += kRate * (mean - running_mean);
      running_variance += kRate * (std::max(0.0f, square - mean * mean) - running_variance);
    }
    return absl::OkStatus();
  }

 private:
  struct Arrays {
    float *features, *logits, *losses;
  };

  Arrays Forward(Pass& pass, const Tensor& windows, int64_t rows, bool statistics) const {
    const Arrays a{pass.Scratch<float>(rows * kWidth), pass.Scratch<float>(rows * kBytes),
                   pass.Scratch<float>(rows)};
    float* sums = pass.Scratch<float>(2 * kWidth);
    kernels::Stream& s = pass.stream();
    const int32_t* bytes = windows.as<int32_t>();
    const float *projection = pass.values(kProjection), *mean = pass.values(kMean),
                *variance = pass.values(kVariance);
    // Own code on the stream: captured by value, as it may run later.
    s.Launch([=, window = window_] {
      std::fill_n(sums, 2 * kWidth, 0.0f);
      for (int64_t i = 0; i < rows; ++i) {
        float* x = a.features + i * kWidth;
        std::fill_n(x, kWidth, 0.0f);
        for (int64_t k = 0; k < window; ++k) {
          const float* row = projection + (k * kBytes + bytes[i * window + k]) * kWidth;
          for (int64_t c = 0; c < kWidth; ++c) x[c] += row[c];
        }
        for (int64_t c = 0; c < kWidth; ++c) {
          sums[c] += x[c];
          sums[kWidth + c] += x[c] * x[c];
          x[c] = std::tanh((x[c] - mean[c]) / std::sqrt(variance[c] + 1e-5f));
        }
      }
    });
    if (statistics) {
      pass.Statistic(kSum, Tensor{.data = sums, .shape = {kWidth}});
      pass.Statistic(kSquares, Tensor{.data = sums + kWidth, .shape = {kWidth}});
    }
    kernels::MatMul(s, {.m = rows, .n = kBytes, .k = kWidth}, a.features, pass.values(kWeight),
                    a.logits);
    kernels::AddBias(s, {rows, kBytes}, pass.values(kBias), a.logits);
    return a;
  }

  const int64_t window_;
};

absl::StatusOr<std::unique_ptr<holdfast::Model>> MakeModel(std::string_view toml) {
  HF_ASSIGN_OR_RETURN(const Options options, ReadOptions(toml));
  return std::make_unique<NextByte>(options.window);
}

}  // namespace next_byte

int main(int argc, char** argv) {
  return holdfast::Main(
      argc, argv,
      {.name = "next_byte", .model = next_byte::MakeModel, .data = next_byte::ByteStreams::Open});
}
