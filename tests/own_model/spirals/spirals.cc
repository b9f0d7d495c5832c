// A trainer of one's own: a network with one hidden layer learns on which of three spiral arms a
// point lies. Its samples are drawn, not read. Then: spirals run --dir my-run --workers 2
#include <holdfast/holdfast.h>

#include <cmath>

using namespace holdfast;
constexpr int64_t kPoints = 64, kHidden = 64, kArms = 3;  // kPoints: in one micro-batch

class Spirals : public DataSource {
 public:
  std::string Fingerprint() const override { return "three spirals, version 1"; }
  int64_t samples_per_micro_batch() const override { return kPoints; }
  // A pure function of its arguments: whoever computes a micro-batch again reads the same.
  absl::StatusOr<Batch> Read(uint64_t seed, int64_t step, int64_t micro_batch) override {
    Batch batch;
    float* point = batch.Add<float>({kPoints, 2});
    int32_t* arm = batch.Add<int32_t>({kPoints});
    for (int64_t i = 0; i < kPoints; ++i) {
      const uint64_t bits = Mix64(Mix64(Mix64(seed) ^ step) ^ (micro_batch * kPoints + i));
      const double radius = static_cast<double>(bits >> 40) / (1 << 24);
      arm[i] = static_cast<int32_t>(bits % kArms);
      const double angle = 5 * radius + 2 * M_PI * arm[i] / kArms;
      point[2 * i] = static_cast<float>(radius * std::cos(angle));
      point[2 * i + 1] = static_cast<float>(radius * std::sin(angle));
    }
    return batch;
  }
};

class Net : public Model {
 public:
  // In the order in which their gradients become complete: what is complete is sent.
  enum { kOutBias, kOutWeight, kInBias, kInWeight };
  absl::StatusOr<ModelSpec> Describe() const override {
    return ModelSpec{
        .tensors = {{.name = "out.bias", .shape = {kArms}, .init = "zeros"},
                    {.name = "out.weight", .shape = {kHidden, kArms}, .init = "normal:0.1"},
                    {.name = "in.bias", .shape = {kHidden}, .init = "uniform:1"},
                    {.name = "in.weight", .shape = {2, kHidden}, .init = "normal:2"}},
        .max_weight = kPoints};
  }
  absl::Status ForwardBackward(Pass& pass, const MicroBatch& batch) override {
    kernels::Stream& s = pass.stream();
    const float* points = batch.fields[0].as<float>();
    float* hidden = pass.Scratch<float>(kPoints * kHidden);
    float* d_hidden = pass.Scratch<float>(kPoints * kHidden);
    float* logits = pass.Scratch<float>(kPoints * kArms);  // later the loss's derivative by them
    float* losses = pass.Scratch<float>(kPoints);

    kernels::MatMul(s, {.m = kPoints, .n = kHidden, .k = 2}, points, pass.values(kInWeight),
                    hidden);
    kernels::BiasReluForward(s, {kPoints, kHidden}, pass.values(kInBias), hidden, hidden);
    kernels::MatMul(s, {.m = kPoints, .n = kArms, .k = kHidden}, hidden, pass.values(kOutWeight),
                    logits);
    kernels::AddBias(s, {kPoints, kArms}, pass.values(kOutBias), logits);
    kernels::SoftmaxCrossEntropy(s, {.rows = kPoints, .vocab = kArms},
                                 batch.fields[1].as<int32_t>(), pass.scale(), logits, losses);
    pass.Loss(losses, kPoints, kPoints);  // their sum, and how many items it is about

    kernels::BiasGradient(s, {kPoints, kArms}, logits, pass.gradient(kOutBias));
    pass.Done(kOutBias);
    kernels::MatMul(s, {.m = kHidden, .n = kArms, .k = kPoints, .transpose_a = true}, hidden,
                    logits, pass.gradient(kOutWeight));
    pass.Done(kOutWeight);
    kernels::MatMul(s, {.m = kPoints, .n = kHidden, .k = kArms, .transpose_b = true}, logits,
                    pass.values(kOutWeight), d_hidden);
    kernels::BiasReluBackward(s, {kPoints, kHidden}, hidden, d_hidden, d_hidden,
                              pass.gradient(kInBias));
    pass.Done(kInBias);
    kernels::MatMul(s, {.m = 2, .n = kHidden, .k = kPoints, .transpose_a = true}, points, d_hidden,
                    pass.gradient(kInWeight));
    pass.Done(kInWeight);
    return absl::OkStatus();
  }
};

int main(int argc, char** argv) {
  Trainer trainer{.name = "spirals",  // factories, not objects: the supervisor builds no model
                  .model = [](std::string_view) { return std::make_unique<Net>(); },
                  .data = [](std::string_view) { return std::make_unique<Spirals>(); }};
  return Main(argc, argv, trainer);  // run, status, stop, checkpoint, ...: with this model
}
