// The same bits, whatever happens around them: two runs; the units of a step in order, reversed and
// as two halves that are added; the probe again and again beside a busy stream.
#include <atomic>
#include <numeric>
#include <thread>

#include "runtime/base/digest.h"
#include "runtime/base/status.h"
#include "runtime/base/text.h"
#include "tests/gpu/measure.h"
#include "tests/gpu/training.h"

namespace holdfast {
namespace {

constexpr int64_t kUnits = 4;
constexpr int64_t kPassMs = 120'000;

absl::StatusOr<std::vector<uint64_t>> StateDigests(GpuCheck& check, const std::string& data) {
  const auto rank = OneRank(check, data, kUnits);
  std::vector<uint64_t> digests;
  for (int64_t i = 0; i < check.shapes.bit_steps; ++i) {
    if (!rank->Step())
      return rank->status.ok() ? absl::InternalError(rank->verdict.text) : rank->status;
    digests.push_back(rank->state->Digest());
  }
  return digests;
}

absl::Status TwoRuns(GpuCheck& check, const std::string& data) {
  const std::string what = Cat("two runs of ", check.shapes.bit_steps, " steps");
  check.rows->Begin(what);
  HF_ASSIGN_OR_RETURN(const auto first, StateDigests(check, data));
  HF_ASSIGN_OR_RETURN(const auto second, StateDigests(check, data));
  if (first == second) {
    check.rows->Ok(what, Cat("the same state digests, the last is ", Hex64(first.back())));
  } else {
    size_t at = 0;
    while (first[at] == second[at]) ++at;
    check.rows->Fail(what, Cat("state digests differ from step ", at + 1, " on: ", Hex64(first[at]),
                               " and ", Hex64(second[at])));
  }
  return absl::OkStatus();
}

// The sums of some units of step 1.
class Sums {
 public:
  static absl::StatusOr<std::unique_ptr<Sums>> Of(RankWorld& rank, std::vector<int32_t> units) {
    std::unique_ptr<Sums> sums(new Sums(rank));
    kernels::Device& device = rank.state->device();
    HF_ASSIGN_OR_RETURN(sums->accumulator_,
                        Accumulator::Allocate(rank.state->plan(), kUnits, false, false, device));
    Accumulator& accumulator = *sums->accumulator_;
    accumulator.Reset(rank.state->scalars.exponent);
    accumulator.Begin(static_cast<int>(units.size()));
    rank.pool->Start(std::move(units), 1, &accumulator);
    if (!rank.pool->Finished(kPassMs))
      return absl::DeadlineExceededError("the pass did not end in two minutes");
    HF_RETURN_IF_ERROR(rank.pool->status());
    for (size_t b = 0; b < rank.state->plan().buckets.size(); ++b)
      accumulator.SealBucket(static_cast<int>(b), rank.state->stream());
    HF_RETURN_IF_ERROR(rank.state->Settle());
    return sums;
  }

  void Add(Sums& other) {
    kernels::AddWords(rank_.state->stream(), words(), other.accumulator_->sums(),
                      accumulator_->sums());
    const std::vector<int64_t> scalars = other.accumulator_->Scalars();
    if (scalars_.empty()) scalars_ = accumulator_->Scalars();
    for (size_t i = 0; i < scalars.size(); ++i) scalars_[i] += scalars[i];
  }

  // Over all words of the sums, and the losses and weights.
  absl::StatusOr<uint64_t> Digest() {
    HF_ASSIGN_OR_RETURN(const kernels::Buffer digest, rank_.state->device().Allocate(8));
    HF_ASSIGN_OR_RETURN(const kernels::Buffer host, rank_.state->device().AllocateHost(8));
    kernels::Stream& stream = rank_.state->stream();
    kernels::Digest(stream, accumulator_->sums(), 2 * words(), 1, 0, digest.as<uint64_t>());
    rank_.state->device().Copy(stream, host.data(), digest.data(), 8);
    HF_RETURN_IF_ERROR(rank_.state->Settle());
    if (scalars_.empty()) scalars_ = accumulator_->Scalars();
    return *host.as<uint64_t>() ^
           DigestWords(scalars_.data(), static_cast<int64_t>(2 * scalars_.size()), 2, 0);
  }

 private:
  explicit Sums(RankWorld& rank) : rank_(rank) {}
  int64_t words() const { return rank_.state->plan().flat_elements; }

  RankWorld& rank_;
  std::unique_ptr<Accumulator> accumulator_;
  std::vector<int64_t> scalars_;
};

void Compare(GpuCheck& check, const std::string& what, uint64_t want, uint64_t got) {
  if (want == got) {
    check.rows->Ok(what, Cat("the same sums: ", Hex64(got)));
  } else {
    check.rows->Fail(what, Cat("sums ", Hex64(got), ", in order ", Hex64(want)));
  }
}

absl::Status Orders(GpuCheck& check, const std::string& data) {
  const auto rank = OneRank(check, data, kUnits);
  std::vector<int32_t> order(kUnits);
  std::iota(order.begin(), order.end(), 0);
  const std::vector<int32_t> reversed(order.rbegin(), order.rend());
  const std::vector<int32_t> left(order.begin(), order.begin() + kUnits / 2);
  const std::vector<int32_t> right(order.begin() + kUnits / 2, order.end());
  const auto digest_of = [&](const std::vector<int32_t>& units) -> absl::StatusOr<uint64_t> {
    HF_ASSIGN_OR_RETURN(const auto sums, Sums::Of(*rank, units));
    return sums->Digest();
  };
  check.rows->Begin("the units of a step in order");
  HF_ASSIGN_OR_RETURN(const uint64_t want, digest_of(order));
  check.rows->Begin("the units of a step reversed");
  HF_ASSIGN_OR_RETURN(const uint64_t backwards, digest_of(reversed));
  Compare(check, "the units of a step reversed", want, backwards);
  check.rows->Begin("as two halves that are added");
  HF_ASSIGN_OR_RETURN(const auto sum, Sums::Of(*rank, left));
  HF_ASSIGN_OR_RETURN(const auto other, Sums::Of(*rank, right));
  sum->Add(*other);
  HF_ASSIGN_OR_RETURN(const uint64_t halves, sum->Digest());
  Compare(check, "as two halves that are added", want, halves);
  // That these digests tell sums apart at all.
  HF_ASSIGN_OR_RETURN(const uint64_t half, other->Digest());
  if (half == want) check.rows->Fail("digest of half of the units", "it is that of all of them");
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSums(GpuCheck& check) {
  const std::string data = RandomTokens(check, 4 * kUnits * check.shapes.rows() + 100'000);
  HF_RETURN_IF_ERROR(TwoRuns(check, data));
  return Orders(check, data);
}

absl::Status CheckProbe(GpuCheck& check) {
  const GpuShapes& s = check.shapes;
  const std::string what = Cat("the probe ", s.probes, " times beside a busy stream");
  check.rows->Begin(what);
  const auto rank = OneRank(check, RandomTokens(check, 2 * kUnits * s.rows() + 100'000), kUnits);
  HF_ASSIGN_OR_RETURN(const uint64_t want, rank->pool->Probe());
  std::atomic<bool> stop{false};
  absl::Status busy;
  int64_t beside = 0;
  std::thread other([&] {
    busy = check.device->BindThread();
    if (!busy.ok()) return;
    GpuBench bench(*check.device, 0);
    const int64_t n = s.tiny ? 64 : 2048;
    float *a = bench.Normal(n * n), *b = bench.Normal(n * n), *c = bench.Normal(n * n);
    while (!stop && bench.status().ok()) {
      (void)bench.Ms([&] { kernels::MatMul(bench.stream(), {.m = n, .n = n, .k = n}, a, b, c); });
      ++beside;
    }
    busy = bench.status();
  });
  absl::Status status;
  int64_t same = 0;
  for (int64_t i = 0; i < s.probes && status.ok(); ++i) {
    const absl::StatusOr<uint64_t> again = rank->pool->Probe();
    status = again.status();
    if (again.ok() && *again == want) ++same;
  }
  stop = true;
  other.join();
  HF_RETURN_IF_ERROR(status);
  HF_RETURN_IF_ERROR(busy);
  if (same == s.probes) {
    check.rows->Ok(what, Cat("always ", Hex64(want), ", beside ", beside, " products"));
  } else {
    check.rows->Fail(what,
                     Cat(s.probes - same, " of ", s.probes, " digests differ from the first"));
  }
  return absl::OkStatus();
}

}  // namespace holdfast
