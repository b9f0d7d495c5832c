// A rehearsal of the toy model: what it finds out is true, and a model that is no pure function is
// caught with the tensor named.
#include "runtime/dry_run/measure.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/text.h"
#include "runtime/dry_run/machine.h"
#include "runtime/supervisor/exit_status.h"
#include "tests/models/toy_models.h"

namespace holdfast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_models::ToyModel;
using testing_models::ToyOptions;
using testing_models::ToyTrainer;

Config ToyConfig() {
  Config c;
  c.model = "toy";
  c.micro_batches = 5;
  c.micro_batch_size = 4;
  c.steps = 20;
  c.warmup_steps = 2;
  c.learning_rate = 0.05;
  return c;
}

MeasureOptions Quick() {
  MeasureOptions options;
  options.budget_ms = 50;
  return options;
}

TEST(Measure, FindsOutWhatTheModelIs) {
  Config config = ToyConfig();
  config.threads = 2;
  std::vector<std::string> phases;
  MeasureOptions options = Quick();
  options.progress = [&](std::string_view phase) { phases.emplace_back(phase); };
  const auto m = Measure(config, ToyTrainer({}), options);
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_EQ(m->model.parameters, 5 + 1 + 3);
  EXPECT_EQ(m->model.tensors, 5);
  EXPECT_EQ(m->model.data, "made-up samples");
  EXPECT_EQ(m->model.eval_batches, 3);
  EXPECT_EQ(m->model.tokens_per_step, 5 * 4);
  // Values and two moments of 9 parameters, the frozen offset, the buffer of 5.
  EXPECT_EQ(m->model.state_bytes, 4 * (3 * 9 + 1 + 5));
  // All five, unless the machine is so busy that they do not fit into the budget: one for each
  // thread at least.
  EXPECT_GE(m->units, 2);
  EXPECT_LE(m->units, 5);
  EXPECT_GE(m->steps, 2);
  EXPECT_GT(m->round_ms, 0);
  EXPECT_GT(m->apply_ms, 0);
  EXPECT_GT(m->fast_round_ms, 0);
  EXPECT_GT(m->eval_round_ms, 0);
  EXPECT_TRUE(m->determinism_known);
  EXPECT_EQ(m->differs_again, "");
  EXPECT_EQ(m->differs_threads, "");
  EXPECT_FALSE(m->nonfinite);
  EXPECT_NE(m->last_loss, m->first_loss) << "real steps were taken";
  EXPECT_GE(phases.size(), 4u);
}

TEST(Measure, StreamsAndFastSums) {
  Config config = ToyConfig();
  config.reduction = "fast";
  const auto m = Measure(config, ToyTrainer({.streaming = true}), Quick());
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_LT(m->fast_round_ms, 0) << "there is nothing to compare with";
  config.overfit = 3;
  EXPECT_THAT(
      std::string(Measure(config, ToyTrainer({.streaming = true}), Quick()).status().message()),
      HasSubstr("--overfit needs one with random access"));
}

// As a toy, but the gradient of `bias` depends on how often a gradient was computed before.
class Moody final : public Model {
 public:
  explicit Moody(std::shared_ptr<std::atomic<int>> calls) : calls_(std::move(calls)) {}
  absl::StatusOr<ModelSpec> Describe() const override { return toy_.Describe(); }
  absl::Status ForwardBackward(Pass& pass, const MicroBatch& batch) override {
    class Wrapped final : public Pass {
     public:
      Wrapped(Pass& inner, float shift) : inner_(inner), shift_(shift) {}
      kernels::Stream& stream() override { return inner_.stream(); }
      const Tensor& Value(int tensor) const override { return inner_.Value(tensor); }
      Tensor Gradient(int tensor) override { return inner_.Gradient(tensor); }
      void Done(int tensor) override {
        if (tensor == ToyModel::kBias) inner_.Gradient(tensor).as<float>()[0] += shift_;
        inner_.Done(tensor);
      }
      float scale() const override { return inner_.scale(); }
      void Loss(const Tensor& terms, int64_t weight) override { inner_.Loss(terms, weight); }
      void Metric(int metric, const Tensor& terms) override { inner_.Metric(metric, terms); }
      void Statistic(int s, const Tensor& value) override { inner_.Statistic(s, value); }
      Tensor Workspace(int64_t bytes) override { return inner_.Workspace(bytes); }
      Random& random() override { return inner_.random(); }
      bool cancelled() const override { return inner_.cancelled(); }

     private:
      Pass& inner_;
      float shift_;
    } wrapped(pass, 1e-3f * static_cast<float>(calls_->fetch_add(1)));
    return toy_.ForwardBackward(wrapped, batch);
  }
  absl::Status Evaluate(Pass& pass, const MicroBatch& batch) override {
    return toy_.Evaluate(pass, batch);
  }
  absl::Status UpdateBuffers(std::span<const Tensor> sums, int64_t weight,
                             std::span<Tensor> buffers) override {
    return toy_.UpdateBuffers(sums, weight, buffers);
  }

 private:
  ToyModel toy_{ToyOptions()};
  std::shared_ptr<std::atomic<int>> calls_;
};

TEST(Measure, AModelThatIsNoFunctionIsCaughtByTensor) {
  Trainer trainer = ToyTrainer({});
  const auto calls = std::make_shared<std::atomic<int>>(0);
  trainer.model = [calls](std::string_view) -> absl::StatusOr<std::unique_ptr<Model>> {
    return std::make_unique<Moody>(calls);
  };
  const auto m = Measure(ToyConfig(), trainer, Quick());
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_EQ(m->differs_again, "the gradient of bias");
  EXPECT_EQ(m->differs_threads, "the gradient of bias");
}

TEST(Measure, WhatDoesNotFitIsSaidBeforeItIsAllocated) {
  MeasureOptions options = Quick();
  options.memory_free = 1000;
  const auto m = Measure(ToyConfig(), ToyTrainer({.width = 1'000'000'000}), options);
  EXPECT_TRUE(absl::IsResourceExhausted(m.status())) << m.status();
  EXPECT_THAT(std::string(m.status().message()),
              AllOf(HasSubstr("does not fit"), HasSubstr("1,000,000,004 parameters"),
                    HasSubstr("--embed")));
}

TEST(Measure, InAChildItComesToTheSame) {
  const auto m = MeasureInChild(ToyConfig(), ToyTrainer({}), Quick());
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_EQ(m->model.parameters, 9);
  EXPECT_GT(m->round_ms, 0);
  EXPECT_NE(m->last_loss, m->first_loss);
  Trainer broken = ToyTrainer({});
  broken.data = [](std::string_view) -> absl::StatusOr<std::unique_ptr<DataSource>> {
    return absl::NotFoundError("no such book");
  };
  const auto data = MeasureInChild(ToyConfig(), broken, Quick());
  EXPECT_EQ(ExitCodeOf(data.status()), ExitCode::kData);
  EXPECT_THAT(std::string(data.status().message()), HasSubstr("no such book"));
}

TEST(Measure, AChildThatIsKilledIsTakenForMemory) {
  const auto m = MeasureInChild(ToyConfig(),
                                ToyTrainer({.hook =
                                                [](const MicroBatch&) {
                                                  kill(getpid(), SIGKILL);
                                                  return absl::OkStatus();
                                                }}),
                                Quick());
  EXPECT_TRUE(absl::IsResourceExhausted(m.status())) << m.status();
  EXPECT_THAT(std::string(m.status().message()), HasSubstr("--micro-batch-size"));
}

// The sums of a worker may lie in memory that it shares with others: it is memory all the same.
TEST(Machine, SharedMemoryIsCounted) {
  constexpr size_t kBytes = 32 << 20;
  const int64_t before = AnonymousBytes();
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  // The kernel counts pages in batches: a little may be missing.
  EXPECT_GT(AnonymousBytes() - before, static_cast<int64_t>(kBytes) - (4 << 20));
  munmap(memory, kBytes);
}

TEST(Machine, IsLookedAt) {
  const std::string dir = std::filesystem::temp_directory_path() / "not" / "there" / "yet";
  EXPECT_EQ(NearestFolder(dir), std::filesystem::temp_directory_path().string());
  const MachineFacts facts = LookAtMachine(dir);
  EXPECT_GE(facts.cores, 1);
  EXPECT_GT(facts.memory_free, 0);
  EXPECT_GT(facts.disk_free, 0);
  EXPECT_GT(AnonymousBytes(), 0);
}

}  // namespace
}  // namespace holdfast
