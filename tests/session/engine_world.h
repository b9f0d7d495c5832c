// Several ranks of a run in one process: each with a state, a pool and an engine of its own and a
// thread, joined by real communicators, acting on verdicts as Session does (session.cc, ActOnStep).
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/collectives/communicator.h"
#include "runtime/session/shares.h"
#include "runtime/session/step_engine.h"

namespace holdfast {

inline constexpr int64_t kLongMs = 120'000;  // a bound against hanging

// N communicators over loopback (the local one for N = 1).
inline std::vector<std::unique_ptr<Communicator>> Connect(int world) {
  std::vector<std::unique_ptr<Communicator>> made(world);
  if (world == 1) {
    made[0] = MakeLocalCommunicator();
    return made;
  }
  std::vector<std::unique_ptr<TcpEndpoint>> endpoints;
  TcpEndpoint::GroupOptions group;
  group.run = "run";
  group.secret = "secret of the test";
  group.generation = 1;
  group.nonce = 5;
  group.connect_ms = kLongMs;
  group.detect_ms = 20'000;
  for (int r = 0; r < world; ++r) {
    auto endpoint = TcpEndpoint::Listen({});
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    endpoints.push_back(*std::move(endpoint));
    group.peers.push_back({"127.0.0.1", endpoints.back()->port()});
  }
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r, mine = group]() mutable {
      mine.rank = r;
      auto comm = endpoints[r]->Build(mine, nullptr);
      EXPECT_TRUE(comm.ok()) << comm.status();
      if (comm.ok()) made[r] = *std::move(comm);
    });
  }
  for (auto& t : threads) t.join();
  return made;
}

// Passes everything on; sees what is queued, and may change a reduced word on its way.
class SpyCommunicator final : public Communicator {
 public:
  explicit SpyCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  // Called by the owner's thread after a bucket was handed over.
  std::function<void(int bucket)> queued;
  // The next reduce-scatter's result gets one bit flipped as soon as somebody waited for it.
  bool flip_next = false;

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  std::string Carrier() const override { return inner_->Carrier(); }
  Ticket ReduceScatter(std::span<const int64_t> in, std::span<const int64_t> borders,
                       std::span<int64_t> out, OpTag tag) override {
    const Ticket ticket = inner_->ReduceScatter(in, borders, out, tag);
    if (flip_next && !out.empty()) flip_next = false, flip_ = &out[out.size() / 2];
    if (queued) queued(tag.bucket);
    return ticket;
  }
  Ticket ReduceScatter(std::span<const float> in, std::span<const int64_t> borders,
                       std::span<float> out, OpTag tag) override {
    return inner_->ReduceScatter(in, borders, out, tag);
  }
  Ticket AllReduce(std::span<int64_t> data, OpTag tag) override {
    return inner_->AllReduce(data, tag);
  }
  Ticket AllGather(std::span<std::byte> data, std::span<const int64_t> borders,
                   OpTag tag) override {
    return inner_->AllGather(data, borders, tag);
  }
  Ticket Broadcast(std::span<std::byte> data, int root, OpTag tag) override {
    return inner_->Broadcast(data, root, tag);
  }
  Ticket Barrier(OpTag tag) override { return inner_->Barrier(tag); }
  // A GPU's own lane is not looked at.
  Communicator& OnDevice() override {
    Communicator& lane = inner_->OnDevice();
    return &lane == inner_.get() ? *this : lane;
  }
  void After(const kernels::Event& event) override { inner_->After(event); }
  absl::Status Wait(Ticket ticket, Deadline deadline) override {
    const absl::Status status = inner_->Wait(ticket, deadline);
    if (flip_ != nullptr) *std::exchange(flip_, nullptr) ^= 1 << 20;
    return status;
  }
  bool Finished(Ticket ticket) const override { return inner_->Finished(ticket); }
  absl::Status Health() const override { return inner_->Health(); }
  int FailedRank() const override { return inner_->FailedRank(); }
  void Abort(const absl::Status& why) override { inner_->Abort(why); }
  absl::Status Close(Deadline deadline) override { return inner_->Close(deadline); }

 private:
  std::unique_ptr<Communicator> inner_;
  int64_t* flip_ = nullptr;
};

inline Config ToyConfig() {
  Config c;
  c.model = "toy";
  c.steps = 20;
  c.micro_batches = 7;
  c.micro_batch_size = 4;
  c.warmup_steps = 2;
  c.learning_rate = 0.05;
  c.min_learning_rate = 0.01;
  c.seed = 3;
  return c;
}

struct RankWorld {
  RankWorld(const Config& config, const Trainer& trainer, int threads,
            std::unique_ptr<Communicator> communicator,
            kernels::Device& device = kernels::CpuDevice())
      : config(config), trainer(trainer), comm(std::move(communicator)) {
    const std::string toml = config.ToToml();
    auto source = trainer.data(toml);
    EXPECT_TRUE(source.ok()) << source.status();
    data = *std::move(source);
    const auto model = trainer.model(toml);
    EXPECT_TRUE(model.ok()) << model.status();
    state =
        *State::Allocate(*MakePlan(*(*model)->Describe(),
                                   [](const std::string& rule) { return rule == "adamw" ? 2 : 0; }),
                         device);
    EXPECT_TRUE(state
                    ->Initialise(config.seed, data->streaming() ? config.micro_batches : 0,
                                 config.precision == "fp16")
                    .ok());
    pool = *ComputePool::Create({threads, config.seed, toml}, trainer, data.get(), state.get());
    engine = *StepEngine::Create(this->config, this->trainer, data.get(), state.get(), pool.get(),
                                 &time);
    engine->SetWorld(comm.world_size(), comm.rank());
    engine->ResetSums();
    Deal(0);
  }

  void Deal(int rotate) {
    const std::vector<std::vector<bool>> none(comm.world_size(),
                                              std::vector<bool>(config.micro_batches, false));
    mine = DealMicroBatches(config.micro_batches, none, rotate).compute[comm.rank()];
  }

  TableExpectation Expect() const {
    TableExpectation e;
    e.generation = 1;
    e.step = state->scalars.step;
    e.attempt = attempt;
    e.micro_batches = static_cast<int32_t>(config.micro_batches);
    e.work_hash = ExpectedWorkHash(config.seed, e.step, config.micro_batches);
    e.recheck_count = recheck_count;
    e.recheck_hash = recheck_hash;
    return e;
  }

  // One attempt and what its verdict means. False: an error, or a verdict that ends a generation.
  bool Attempt() {
    ControlRow row;
    row.generation = 1;
    row.step = state->scalars.step;
    row.attempt = attempt;
    row.state_digest = state->Digest();
    facts = StepFacts();
    status = engine->Attempt(comm, mine, row.step, attempt, row, &rows, &facts);
    if (!status.ok()) return false;
    std::string why;
    EXPECT_TRUE(SameRound(rows, Expect(), &why)) << why;
    verdict = Judge(rows, Expect());
    decisions.push_back(verdict.decision);
    return Act();
  }

  bool Act() {
    switch (verdict.decision) {
      case Decision::kApply:
      case Decision::kSkip: {
        auto applied =
            verdict.decision == Decision::kApply ? engine->Apply(facts) : engine->Skip(facts);
        status = applied.status();
        if (!status.ok()) return false;
        result = *applied;
        samples = verdict.samples_hash;
        attempt = recheck_count = 0;
        recheck_hash = 0;
        Deal(0);
        return true;
      }
      case Decision::kRetryRange:
        engine->LowerExponents(facts);
        break;
      case Decision::kRecheck:
        recheck_count = verdict.nonfinite_count;
        recheck_hash = verdict.nonfinite_hash;
        engine->ResetSums();
        break;
      case Decision::kHeal:
        return false;
      default:
        engine->ResetSums();
    }
    ++attempt;
    Deal(verdict.decision == Decision::kRecheck ? 1 : 0);
    return true;
  }

  // Attempts until one step is taken.
  bool Step() {
    const int64_t want = state->scalars.step + 1;
    while (state->scalars.step < want) {
      if (!Attempt()) return false;
    }
    return true;
  }

  absl::StatusOr<double> Evaluate() {
    pool->StartEval(comm.rank(), comm.world_size(), data->eval_batches());
    while (!pool->Finished(1000)) {
    }
    if (!pool->status().ok()) return pool->status();
    const EvalSums sums = pool->eval_sums();
    std::vector<int64_t> words = {sums.loss, sums.weight, sums.nonfinite};
    words.insert(words.end(), sums.metrics.begin(), sums.metrics.end());
    const absl::Status waited =
        comm.Wait(comm.AllReduce(words, {0, 0, 1 << 23}), Deadline::After(kLongMs));
    if (!waited.ok()) return waited;
    double sum = 0;  // any fixed function of the words tells whether they are equal
    for (size_t i = 0; i < words.size(); ++i) {
      sum += static_cast<double>(words[i]) * static_cast<double>(2 * i + 1);
    }
    return sum;
  }

  const Config config;
  const Trainer trainer;
  SpyCommunicator comm;
  TimeLedger time;
  std::unique_ptr<DataSource> data;
  std::unique_ptr<State> state;
  std::unique_ptr<ComputePool> pool;
  std::unique_ptr<StepEngine> engine;
  std::vector<int32_t> mine;
  int attempt = 0, recheck_count = 0;
  uint64_t recheck_hash = 0;
  // Of the last attempt.
  absl::Status status;
  std::vector<ControlRow> rows;
  StepFacts facts;
  Verdict verdict;
  // Of the last step taken.
  StepResult result;
  uint64_t samples = 0;
  std::vector<Decision> decisions;  // of all attempts
};

class EngineWorld {
 public:
  EngineWorld(const Config& config, const Trainer& trainer, int world, int threads = 1) {
    auto comms = Connect(world);
    for (auto& comm : comms) {
      ranks.push_back(std::make_unique<RankWorld>(config, trainer, threads, std::move(comm)));
    }
  }
  RankWorld& operator[](int r) { return *ranks[r]; }
  int size() const { return static_cast<int>(ranks.size()); }

  void Run(const std::function<void(RankWorld&)>& body) {
    std::vector<std::thread> threads;
    for (auto& rank : ranks) {
      threads.emplace_back([&body, &rank] {
        kernels::SetComputeThread();
        body(*rank);
      });
    }
    for (auto& t : threads) t.join();
  }
  // One step on all ranks, which must succeed.
  void Step() {
    Run([](RankWorld& rank) { EXPECT_TRUE(rank.Step()) << rank.status << rank.verdict.text; });
  }

  std::vector<std::unique_ptr<RankWorld>> ranks;
};

}  // namespace holdfast
