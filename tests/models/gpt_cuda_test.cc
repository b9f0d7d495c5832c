// GPT on the emulated GPU against GPT on the CPU: the same micro-batch, the same parameters. Where
// products take 16 bits the GPU is given packed numbers and the CPU rounded floats, the same
// values.
#include "runtime/models/gpt.h"

#include <deque>

#include "gtest/gtest.h"
#include "kernels/cuda_backend.h"
#include "tests/models/model_test_util.h"

namespace holdfast {
namespace {

using namespace testing_models;  // NOLINT: the helpers of these tests

// A micro-batch in device memory; what comes out of it is copied to the host in stream order.
class DevicePass final : public Pass {
 public:
  DevicePass(kernels::Device& device, kernels::Stream& stream, const ModelSpec& spec,
             const Values& values, const MicroBatch& batch)
      : device_(device), stream_(stream), random_(/*seed=*/11, batch) {
    for (size_t i = 0; i < values.size(); ++i) {
      values_.push_back(Put(values[i].data(), values[i].size() * 4));
      values_.back().shape = spec.tensors[i].shape;
      gradients_.push_back(Workspace(static_cast<int64_t>(values[i].size() * 4)));
      gradients_.back().shape = spec.tensors[i].shape;
    }
    gradients.resize(values.size());
  }
  kernels::Stream& stream() override { return stream_; }
  const Tensor& Value(int tensor) const override { return values_[static_cast<size_t>(tensor)]; }
  Tensor Gradient(int tensor) override { return gradients_[static_cast<size_t>(tensor)]; }
  void Done(int tensor) override {
    Floats& to = gradients[static_cast<size_t>(tensor)];
    EXPECT_TRUE(to.empty());
    Get(gradients_[static_cast<size_t>(tensor)], &to);
  }
  float scale() const override { return 1; }
  void Loss(const Tensor& terms, int64_t) override { Get(terms, &losses); }
  void Metric(int, const Tensor&) override {}
  void Statistic(int, const Tensor&) override {}
  Tensor Workspace(int64_t bytes) override {
    auto buffer = device_.Allocate(bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    buffers_.push_back(*std::move(buffer));
    return {.data = buffers_.back().data(), .type = Type::kU8, .shape = {bytes}};
  }
  Tensor Upload(const Tensor& host) override {
    Tensor there = Put(host.data, static_cast<size_t>(host.elements()) * 4);
    there.type = host.type;
    there.shape = host.shape;
    return there;
  }
  Random& random() override { return random_; }
  bool cancelled() const override { return false; }

  Values gradients;
  Floats losses;

 private:
  Tensor Put(const void* from, size_t bytes) {
    Tensor there = Workspace(static_cast<int64_t>(bytes));
    there.type = Type::kF32;
    device_.Copy(stream_, there.data, from, static_cast<int64_t>(bytes));
    return there;
  }
  void Get(const Tensor& from, Floats* to) {
    to->resize(static_cast<size_t>(from.elements()));
    device_.Copy(stream_, to->data(), from.data, from.elements() * 4);
  }

  kernels::Device& device_;
  kernels::Stream& stream_;
  TestRandom random_;
  std::deque<kernels::Buffer> buffers_;
  std::vector<Tensor> values_, gradients_;
};

struct Near {
  const char* precision;
  double error;  // of gradients, norm-wise
};

class GptOnGpu : public ::testing::TestWithParam<Near> {};
TEST_P(GptOnGpu, HasTheGradientsOfTheCpu) {
  BuiltInConfig config;
  config.layers = 2;
  config.heads = 2;
  config.embed = 32;
  config.context = 20;
  config.vocab_size = 61;  // rows of logits that do not begin on 16 bytes
  config.micro_batch_size = 3;
  config.dropout = 0.1;
  config.precision = GetParam().precision;
  Bench bench(MakeGpt(config));
  bench.Stir(0.1f);
  const TokenFields data(3, 20, 61, 12);
  const MicroBatch batch = data.At(0, 0);
  const auto want = bench.Run(batch);

  auto opened = kernels::FindCudaBackend().Open({}, 0);
  ASSERT_TRUE(opened.ok()) << opened.status();
  kernels::Device& device = **opened;
  const auto stream = device.NewStream();
  auto model = MakeGpt(config);
  ASSERT_TRUE(model.ok() && (*model)->Prepare(DeviceKind::kCuda).ok());
  DevicePass pass(device, *stream, bench.spec, bench.values, batch);
  const absl::Status ran = (*model)->ForwardBackward(pass, batch);
  ASSERT_TRUE(ran.ok()) << ran;
  const absl::Status over = stream->Synchronize(Deadline::After(60'000));
  ASSERT_TRUE(over.ok()) << over;

  EXPECT_LT(RelativeError(pass.losses, want->losses), GetParam().error);
  for (size_t i = 0; i < want->gradients.size(); ++i) {
    if (bench.spec.tensors[i].name.ends_with("c_attn.bias")) continue;  // keys: exactly zero
    EXPECT_LT(RelativeError(pass.gradients[i], want->gradients[i]), GetParam().error)
        << bench.spec.tensors[i].name;
  }
}
INSTANTIATE_TEST_SUITE_P(Precisions, GptOnGpu,
                         ::testing::Values(Near{"fp32", 1e-5}, Near{"tf32", 2e-3},
                                           Near{"fp16", 1e-3}, Near{"bf16", 2e-2}),
                         [](const auto& info) { return std::string(info.param.precision); });

}  // namespace
}  // namespace holdfast
