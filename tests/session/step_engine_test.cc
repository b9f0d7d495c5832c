// Steps of several ranks in one process: the same bits for any number of ranks and threads, and
// what the table does about everything that can go wrong in a step.
#include "runtime/session/step_engine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/failpoint.h"
#include "tests/models/temp_dir.h"
#include "tests/models/toy_models.h"
#include "tests/session/engine_world.h"

namespace holdfast {
namespace {

using testing::ElementsAre;
using testing_models::ToyOptions;
using testing_models::ToyTrainer;

// Everything that a run of some steps showed.
struct Trace {
  std::vector<uint64_t> digests, samples;
  std::vector<double> losses, norms, metrics;
  std::vector<bool> skipped;
  double eval = 0;
  std::vector<std::string> cursors;
  std::vector<Decision> decisions;
  friend bool operator==(const Trace& a, const Trace& b) {
    return a.digests == b.digests && a.samples == b.samples && a.losses == b.losses &&
           a.norms == b.norms && a.metrics == b.metrics && a.skipped == b.skipped &&
           a.eval == b.eval && a.cursors == b.cursors;
  }
};

Trace RunSteps(const Config& config, const Trainer& trainer, int world, int threads, int steps) {
  EngineWorld ranks(config, trainer, world, threads);
  std::vector<Trace> traces(world);
  ranks.Run([&](RankWorld& rank) {
    Trace& t = traces[rank.comm.rank()];
    for (int i = 0; i < steps; ++i) {
      if (!rank.Step()) {
        ADD_FAILURE() << rank.status << " " << rank.verdict.text;
        rank.comm.Abort(absl::AbortedError("another rank failed"));
        return;
      }
      t.digests.push_back(rank.state->Digest());
      t.samples.push_back(rank.samples);
      t.losses.push_back(rank.result.loss);
      t.norms.push_back(rank.result.gradient_norm);
      t.metrics.insert(t.metrics.end(), rank.result.metrics.begin(), rank.result.metrics.end());
      t.skipped.push_back(rank.result.skipped);
    }
    const auto eval = rank.Evaluate();
    EXPECT_TRUE(eval.ok()) << eval.status();
    t.eval = eval.value_or(-1);
    t.cursors = rank.state->scalars.cursors;
    t.decisions = rank.decisions;
  });
  for (int r = 1; r < world; ++r) {
    EXPECT_TRUE(traces[r] == traces[0]) << "rank " << r;
    EXPECT_EQ(traces[r].decisions, traces[0].decisions);
  }
  return traces[0];
}

class Failpoints : public testing::Test {
 protected:
  void TearDown() override { ASSERT_TRUE(SetFailpoints("").ok()); }
};
using StepEngineFaults = Failpoints;

struct Shape {
  int world, threads;
};
constexpr Shape kShapes[] = {{1, 2}, {1, 3}, {1, 7}, {2, 1}, {2, 3}, {3, 1}, {3, 2}};

TEST(StepEngine, TheSameBitsForAnyNumberOfRanksAndThreads) {
  const Trainer trainer = ToyTrainer({});
  const Trace alone = RunSteps(ToyConfig(), trainer, 1, 1, 5);
  ASSERT_EQ(alone.digests.size(), 5u);
  EXPECT_LT(alone.losses.back(), alone.losses.front()) << "it learns";
  for (size_t i = 1; i < 5; ++i) EXPECT_NE(alone.digests[i], alone.digests[i - 1]);
  for (const Shape& s : kShapes) {
    EXPECT_TRUE(RunSteps(ToyConfig(), trainer, s.world, s.threads, 5) == alone)
        << s.world << " ranks, " << s.threads << " threads";
  }
}

TEST(StepEngine, StreamsCommitTheirCursorsWithTheStep) {
  const Trainer trainer = ToyTrainer({.streaming = true});
  const Trace alone = RunSteps(ToyConfig(), trainer, 1, 1, 4);
  EXPECT_EQ(alone.cursors, std::vector<std::string>(7, "16")) << "4 steps of 4 samples";
  for (const Shape& s : kShapes) {
    EXPECT_TRUE(RunSteps(ToyConfig(), trainer, s.world, s.threads, 4) == alone)
        << s.world << " ranks, " << s.threads << " threads";
  }
}

TEST(StepEngine, TheBuiltInGpt) {
  const testing_models::TempDir dir;
  Config config;
  config.data = {dir.Write("text.txt", testing_models::SampleText(4000))};
  config.layers = 2;
  config.heads = 2;
  config.embed = 16;
  config.context = 8;
  config.micro_batches = 5;
  config.micro_batch_size = 2;
  config.dropout = 0.1;
  config.eval_batches = 3;
  const Trainer trainer = BuiltInTrainer();
  const Trace alone = RunSteps(config, trainer, 1, 1, 3);
  for (const Shape& s : {Shape{1, 3}, Shape{2, 2}, Shape{3, 1}}) {
    EXPECT_TRUE(RunSteps(config, trainer, s.world, s.threads, 3) == alone)
        << s.world << " ranks, " << s.threads << " threads";
  }
}

TEST(StepEngine, BuffersMoveWithTheStatistics) {
  EngineWorld one(ToyConfig(), ToyTrainer({}), 1);
  const float before = one[0].state->others()[one[0].state->plan().others[1].offset];
  one.Step();
  EXPECT_NE(one[0].state->others()[one[0].state->plan().others[1].offset], before);
}

TEST_F(StepEngineFaults, ATransientNaNIsComputedAgainAndLeavesNoTrace) {
  const Trainer trainer = ToyTrainer({});
  const Trace undisturbed = RunSteps(ToyConfig(), trainer, 1, 1, 3);
  for (const int world : {1, 3}) {
    ASSERT_TRUE(SetFailpoints("grad.nan=1*return(x)@4").ok());
    const Trace t = RunSteps(ToyConfig(), trainer, world, 1, 3);
    EXPECT_TRUE(t == undisturbed) << world;
    EXPECT_THAT(t.decisions, ElementsAre(Decision::kRecheck, Decision::kApply, Decision::kApply,
                                         Decision::kApply));
  }
}

TEST(StepEngine, APersistentNaNIsSkippedByAllWithEqualBits) {
  const Trainer trainer = ToyTrainer({.nonfinite_step = 1});
  const Trace alone = RunSteps(ToyConfig(), trainer, 1, 1, 4);
  EXPECT_THAT(alone.skipped, ElementsAre(false, true, false, false));
  EXPECT_THAT(alone.decisions, ElementsAre(Decision::kApply, Decision::kRecheck, Decision::kSkip,
                                           Decision::kApply, Decision::kApply));
  for (const Shape& s : kShapes) {
    EXPECT_TRUE(RunSteps(ToyConfig(), trainer, s.world, s.threads, 4) == alone)
        << s.world << " ranks, " << s.threads << " threads";
  }
}

TEST(StepEngine, ASkippedStepMovesTheCountersAndNothingElse) {
  EngineWorld one(ToyConfig(), ToyTrainer({.nonfinite_step = 0}), 1);
  const uint64_t before = one[0].state->RegionsDigest();
  one.Step();
  EXPECT_TRUE(one[0].result.skipped);
  EXPECT_EQ(one[0].state->RegionsDigest(), before);
  EXPECT_EQ(one[0].state->scalars.step, 1);
  EXPECT_EQ(one[0].state->scalars.skipped, 1);
  EXPECT_EQ(one[0].state->scalars.skipped_in_a_row, 1);
  EXPECT_EQ(one[0].state->scalars.updates, 0);
  one.Step();
  EXPECT_EQ(one[0].state->scalars.skipped_in_a_row, 0);
  EXPECT_EQ(one[0].state->scalars.updates, 1);
}

TEST(StepEngine, AGradientOutOfRangeIsComputedAgainAtASmallerScale) {
  const Trainer trainer = ToyTrainer({.large_step = 1});
  const Trace alone = RunSteps(ToyConfig(), trainer, 1, 1, 3);
  EXPECT_EQ(std::count(alone.decisions.begin(), alone.decisions.end(), Decision::kRetryRange), 4)
      << "2^40 fits below 2^51 at k = 8";
  EXPECT_THAT(alone.skipped, ElementsAre(false, false, false));
  for (const Shape& s : kShapes) {
    EXPECT_TRUE(RunSteps(ToyConfig(), trainer, s.world, s.threads, 3) == alone)
        << s.world << " ranks, " << s.threads << " threads";
  }
}

TEST(StepEngine, TheScaleIsStateAndRisesAgainAfterQuietSteps) {
  EngineWorld one(ToyConfig(), ToyTrainer({.large_step = 0}), 1);
  one.Step();
  const int w = 0;
  const int16_t low = one[0].state->scalars.exponent[w];
  EXPECT_LT(low, kFirstExponent);
  for (int i = 0; i < kQuietSteps; ++i) one.Step();
  EXPECT_EQ(one[0].state->scalars.exponent[w], low + kExponentStep);
  EXPECT_EQ(one[0].state->scalars.exponent[1], kFirstExponent) << "the bias never left it";
}

TEST(StepEngine, AFlippedParameterIsFoundBeforeAnythingIsApplied) {
  EngineWorld ranks(ToyConfig(), ToyTrainer({}), 3);
  ranks.Step();
  const uint64_t held = ranks[0].state->Digest();
  auto& word = reinterpret_cast<uint32_t*>(ranks[1].state->values())[2];
  word ^= 1u << 21;
  ranks.Run([](RankWorld& rank) { EXPECT_FALSE(rank.Attempt()); });
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(ranks[r].verdict.decision, Decision::kHeal);
    EXPECT_THAT(ranks[r].verdict.bad_ranks, ElementsAre(1));
    EXPECT_EQ(ranks[r].rows[1].flags & kRowSelfBad, kRowSelfBad);
    EXPECT_EQ(ranks[r].state->Digest(), held);
    EXPECT_FALSE(ranks[r].state->marked);
  }
}

TEST(StepEngine, AFlippedBufferIsFoundToo) {
  EngineWorld ranks(ToyConfig(), ToyTrainer({}), 3);
  ranks.Step();
  reinterpret_cast<uint32_t*>(ranks[2].state->others())[0] ^= 1u << 21;  // frozen "offset"
  ranks.Run([](RankWorld& rank) { EXPECT_FALSE(rank.Attempt()); });
  EXPECT_THAT(ranks[0].verdict.bad_ranks, ElementsAre(2));
}

TEST(StepEngine, AFlippedMomentIsFoundAfterTheUpdateThatUsedIt) {
  EngineWorld ranks(ToyConfig(), ToyTrainer({}), 3);
  ranks.Step();
  reinterpret_cast<uint32_t*>(ranks[0].state->slot(1))[0] ^= 1u << 23;
  ranks.Step();
  ranks.Run([](RankWorld& rank) { EXPECT_FALSE(rank.Attempt()); });
  EXPECT_EQ(ranks[1].verdict.decision, Decision::kHeal);
  EXPECT_THAT(ranks[1].verdict.bad_ranks, ElementsAre(0));
}

TEST(StepEngine, AWordChangedInAReducedSliceIsSeenAndTheStepComputedAgain) {
  const Trace undisturbed = RunSteps(ToyConfig(), ToyTrainer({}), 1, 1, 2);
  EngineWorld ranks(ToyConfig(), ToyTrainer({}), 2);
  ranks[0].comm.flip_next = true;  // the toy's few words are all rank 0's slice
  ranks.Step();
  EXPECT_THAT(ranks[0].decisions, ElementsAre(Decision::kRetrySums, Decision::kApply));
  EXPECT_EQ(ranks[0].decisions, ranks[1].decisions);
  EXPECT_EQ(ranks[1].state->Digest(), undisturbed.digests[0]);
  ranks.Step();
  EXPECT_EQ(ranks[0].state->Digest(), undisturbed.digests[1]);
}

TEST(StepEngine, AStepWithoutItsWholeLedgerIsNotTaken) {
  const Trace undisturbed = RunSteps(ToyConfig(), ToyTrainer({}), 1, 1, 1);
  EngineWorld ranks(ToyConfig(), ToyTrainer({}), 2);
  ranks[1].mine = ranks[0].mine;  // some twice, some never
  ranks.Step();
  EXPECT_EQ(ranks[0].decisions.front(), Decision::kRetryWork);
  EXPECT_EQ(ranks[0].state->Digest(), undisturbed.digests[0]);
}

TEST(StepEngine, AnotherDealOfTheWorkIsTheSameStep) {
  const Trace undisturbed = RunSteps(ToyConfig(), ToyTrainer({}), 1, 1, 1);
  EngineWorld ranks(ToyConfig(), ToyTrainer({}), 3);
  ranks[0].mine = {6};
  ranks[1].mine = {0, 1, 2, 3, 4, 5};
  ranks[2].mine = {};
  ranks.Step();
  EXPECT_THAT(ranks[0].decisions, ElementsAre(Decision::kApply));
  EXPECT_EQ(ranks[0].state->Digest(), undisturbed.digests[0]);
}

TEST(StepEngine, SumsOutliveAFailedReduction) {
  const Trace undisturbed = RunSteps(ToyConfig(), ToyTrainer({}), 1, 1, 2);
  EngineWorld ranks(ToyConfig(), ToyTrainer({}), 2);
  ranks.Step();
  // Rank 1 never comes to the second step: rank 0's attempt fails after its work is done.
  ranks[1].comm.Abort(absl::AbortedError("left"));
  EXPECT_FALSE(ranks[0].Attempt());
  EXPECT_TRUE(absl::IsAborted(ranks[0].status)) << ranks[0].status;
  const std::vector<bool> held = ranks[0].engine->accumulator().held();
  ASSERT_FALSE(ranks[0].engine->accumulator().dirty());
  // Alone it computes the rest and takes the same step.
  RankWorld& rest = ranks[0];
  const auto local = MakeLocalCommunicator();
  rest.engine->SetWorld(1, 0);
  const Deal deal = DealMicroBatches(7, {held});
  ControlRow row;
  row.step = 1;
  row.attempt = 1;
  row.state_digest = rest.state->Digest();
  StepFacts facts;
  std::vector<ControlRow> rows;
  ASSERT_TRUE(rest.engine->Attempt(*local, deal.compute[0], 1, 1, row, &rows, &facts).ok());
  EXPECT_EQ(rows[0].work_count, 7);
  EXPECT_EQ(rows[0].work_hash, ExpectedWorkHash(3, 1, 7));
  ASSERT_TRUE(rest.engine->Apply(facts).ok());
  EXPECT_EQ(rest.state->Digest(), undisturbed.digests[1]);
}

TEST(StepEngine, AnErrorOfTheModelEndsTheRunWhateverItsCode) {
  ToyOptions options;
  options.hook = [](const MicroBatch& batch) {
    return batch.index == 3 ? absl::DataLossError("the model's own reason") : absl::OkStatus();
  };
  EngineWorld ranks(ToyConfig(), ToyTrainer(options), 2);
  ranks.Run([](RankWorld& rank) { EXPECT_FALSE(rank.Attempt()); });
  int blamed = 0;
  for (int r = 0; r < 2; ++r) {
    if (!absl::IsInternal(ranks[r].status)) {
      EXPECT_TRUE(absl::IsAborted(ranks[r].status)) << ranks[r].status;
      continue;
    }
    ++blamed;
    EXPECT_NE(ranks[r].status.message().find("own reason"), absl::string_view::npos);
  }
  EXPECT_EQ(blamed, 1) << "the other one regroups";
}

TEST(StepEngine, AnExceptionOfTheModelIsAnError) {
  ToyOptions options;
  options.hook = [](const MicroBatch&) -> absl::Status { throw std::runtime_error("thrown"); };
  EngineWorld one(ToyConfig(), ToyTrainer(options), 1, 3);
  EXPECT_FALSE(one[0].Attempt());
  EXPECT_TRUE(absl::IsInternal(one[0].status)) << one[0].status;
  EXPECT_NE(one[0].status.message().find("thrown"), absl::string_view::npos);
}

TEST(StepEngine, AModelThatCannotBeMadeIsAnErrorOfThePool) {
  Trainer trainer = ToyTrainer({});
  EngineWorld one(ToyConfig(), trainer, 1);
  const auto made = std::make_shared<int>(0);
  trainer.model = [made, inner = trainer.model](
                      std::string_view toml) -> absl::StatusOr<std::unique_ptr<Model>> {
    if (++*made == 2) return absl::ResourceExhaustedError("no second one");
    return inner(toml);
  };
  const auto pool = ComputePool::Create({3, 1, ""}, trainer, one[0].data.get(), one[0].state.get());
  EXPECT_TRUE(absl::IsResourceExhausted(pool.status()));
}

TEST(StepEngine, FastSumsTrainAndSkipWhatIsNotFinite) {
  Config config = ToyConfig();
  config.reduction = "fast";
  const Trace clean = RunSteps(config, ToyTrainer({}), 2, 2, 3);
  EXPECT_LT(clean.losses.back(), clean.losses.front());
  const Trace t = RunSteps(config, ToyTrainer({.nonfinite_step = 1}), 2, 1, 3);
  EXPECT_THAT(t.skipped, ElementsAre(false, true, false));
}

// The loss scale is a power of two and folded into the fixed point: it moves no bit of the arrays.
// (The toy model multiplies in fp32 whatever the precision says.)
TEST(StepEngine, ALossScaleMovesNothingAndIsHalvedByWhatIsNotFinite) {
  Config config = ToyConfig();
  config.precision = "fp16";
  const Trainer trainer = ToyTrainer({.nonfinite_step = 1});
  EngineWorld scaled(config, trainer, 2), plain(ToyConfig(), trainer, 1);
  std::vector<int> scales;
  for (int i = 0; i < 4; ++i) {
    scaled.Step();
    plain.Step();
    scales.push_back(scaled[0].state->scalars.loss_scale_log2);
    EXPECT_EQ(scaled[1].state->Digest(), scaled[0].state->Digest());
    EXPECT_EQ(scaled[0].state->RegionsDigest(), plain[0].state->RegionsDigest());
    EXPECT_NE(scaled[0].state->Digest(), plain[0].state->Digest()) << "the scale is state";
  }
  EXPECT_THAT(scales, ElementsAre(16, 15, 15, 15));
}

TEST(StepEngine, TheProbeIsAFunctionOfTheInitialValues) {
  EngineWorld one(ToyConfig(), ToyTrainer({}), 1, 1), other(ToyConfig(), ToyTrainer({}), 1, 3);
  const auto a = one[0].pool->Probe(), b = other[0].pool->Probe();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(*a, *b);
  one.Step();
  EXPECT_NE(*one[0].pool->Probe(), *a);
}

// Two buckets. After the gradient of the first the backward pass goes on only when that bucket has
// been handed to the communicator (or much too late).
class TwoBuckets final : public Model {
 public:
  explicit TwoBuckets(std::atomic<int>* queued) : queued_(queued) {}
  absl::StatusOr<ModelSpec> Describe() const override {
    ModelSpec spec;
    spec.tensors = {{.name = "last", .shape = {kBucketElements}},
                    {.name = "first", .shape = {1000}}};
    spec.max_weight = 1;
    return spec;
  }
  absl::Status ForwardBackward(Pass& pass, const MicroBatch& batch) override {
    for (const int t : {0, 1}) {
      Tensor g = pass.Gradient(t);
      std::fill_n(g.as<float>(), g.elements(), 0.01f * static_cast<float>(batch.index + 1));
      pass.Done(t);
      const Deadline deadline = Deadline::After(20'000);
      while (t == 0 && queued_->load() == 0 && !deadline.passed()) std::this_thread::yield();
    }
    return Evaluate(pass, batch);
  }
  absl::Status Evaluate(Pass& pass, const MicroBatch&) override {
    Tensor loss = pass.Workspace(4);
    *loss.as<float>() = 1;
    loss.shape = {1};
    loss.type = Type::kF32;
    pass.Loss(loss, 1);
    return absl::OkStatus();
  }

 private:
  std::atomic<int>* queued_;
};

TEST(StepEngine, TheFirstBucketIsOnTheWireBeforeTheLastBackwardEnds) {
  std::atomic<int> queued[2] = {0, 0};
  std::atomic<int> next_model = 0;
  Trainer trainer = ToyTrainer({});
  // Each rank makes three models: for its description, for the pool's one thread, for the buffers.
  trainer.model = [&](std::string_view) -> absl::StatusOr<std::unique_ptr<Model>> {
    return std::make_unique<TwoBuckets>(&queued[next_model++ / 3]);
  };
  Config config = ToyConfig();
  config.micro_batches = 2;
  EngineWorld ranks(config, trainer, 2);
  ASSERT_EQ(next_model.load(), 6);
  ASSERT_EQ(ranks[0].state->plan().buckets.size(), 2u);
  for (int r = 0; r < 2; ++r) {
    ranks[r].comm.queued = [&queued, r](int bucket) { queued[r] += bucket == 0; };
  }
  ranks.Step();
  for (int r = 0; r < 2; ++r) {
    const StepFacts& facts = ranks[r].facts;
    EXPECT_GT(facts.first_bucket_queued_us, 0);
    EXPECT_LT(facts.first_bucket_queued_us, facts.last_backward_us);
  }
  EXPECT_EQ(ranks[0].state->Digest(), ranks[1].state->Digest());
}

TEST(StepEngine, ReduceTimeAndComputeTimeAreBookedApart) {
  EngineWorld ranks(ToyConfig(), ToyTrainer({}), 2);
  ranks.Step();
  const TimeLedger& time = ranks[0].time;
  EXPECT_GT(time.seconds(TimeKind::kCompute), 0);
  EXPECT_GT(time.seconds(TimeKind::kReduce), 0);
  EXPECT_EQ(time.seconds(TimeKind::kLost), 0);
}

}  // namespace
}  // namespace holdfast
