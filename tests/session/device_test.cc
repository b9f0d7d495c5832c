// The session's parts on the (emulated) GPU, with streams that dawdle: what is ordered by an event
// only shows here when the event is forgotten, and under ThreadSanitizer even when it goes well.
#include <cstdlib>

#include "gtest/gtest.h"
#include "kernels/cuda_backend.h"
#include "kernels/ops.h"
#include "runtime/session/accumulator.h"
#include "tests/session/save_world.h"

namespace holdfast {
namespace {

// Before each piece of work a stream pauses for up to 2 ms.
const bool kDelays = setenv("HOLDFAST_EMU_DELAYS", "5:2000", 1) == 0;

kernels::Device& Gpu() {
  static kernels::Device* const device = [] {
    auto opened = kernels::FindCudaBackend().Open({}, 0);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *opened;
  }();
  EXPECT_TRUE(kDelays);
  return *device;
}

// A whole state of `step` on the GPU, equal to that of FillState on the CPU.
std::unique_ptr<State> GpuState(int64_t step) {
  auto state = State::Allocate(SmallPlan(), Gpu());
  EXPECT_TRUE(state.ok()) << state.status();
  EXPECT_TRUE((*state)->Initialise(static_cast<uint64_t>(step), 0).ok());
  (*state)->scalars.step = step;
  (*state)->scalars.updates = step - 1;
  for (size_t i = 0; i < (*state)->grid().regions().size(); ++i) {
    const auto first = static_cast<float>(step + 1);
    EXPECT_TRUE((*state)->Write((*state)->RegionData(static_cast<int64_t>(i)), {&first, 1}).ok());
  }
  EXPECT_TRUE((*state)->Redigest().ok());
  return *std::move(state);
}

TEST(OnGpu, TheStateHasTheDigestsOfTheCpus) {
  const auto gpu = GpuState(7), cpu = StateOf(7);
  EXPECT_EQ(gpu->Digest(), cpu->Digest());
  EXPECT_EQ(gpu->recorded_parameters(), cpu->recorded_parameters());
  EXPECT_EQ(*gpu->ParametersDigest(), cpu->recorded_parameters());
}

// The copy is ordered before the next update, which the caller launches without waiting for it.
TEST(OnGpu, ASnapshotIsOfTheStateBeforeTheNextUpdate) {
  const TempDir dir;
  const auto store = OpenSlot(dir.Path(""), 0);
  Saver saver(store.get(), 3);
  const auto state = GpuState(7);
  const uint64_t digest = state->RegionsDigest();
  saver.Begin(*state, TargetOf(*state, 0, 1));
  const auto& regions = state->grid().regions();
  for (size_t i = 0; i < regions.size(); ++i)
    kernels::Fill(state->stream(), regions[i].words, -1.0f,
                  state->RegionData(static_cast<int64_t>(i)));
  ASSERT_TRUE(saver.WaitWriter(60'000));
  const ControlRow row = RowOf(saver);
  ASSERT_TRUE(row.flags & kRowShardDurable) << saver.status();
  EXPECT_EQ(row.shard_digest, digest);
  ASSERT_TRUE(state->Redigest().ok());
  EXPECT_NE(state->RegionsDigest(), digest) << "the update did happen";
}

// Micro-batches on several streams add into one sum; a reader follows the last addition.
TEST(OnGpu, AdditionsOfSeveralStreamsAreOrderedByEvents) {
  const StatePlan plan = SmallPlan();
  auto sums = Accumulator::Allocate(plan, 8, false, false, Gpu());
  ASSERT_TRUE(sums.ok()) << sums.status();
  (*sums)->Reset(std::vector<int16_t>(plan.trained.size(), 40));
  (*sums)->Begin(8);
  const int tensor = 1;  // "b"
  const int64_t n = plan.trained[tensor].elements;
  std::vector<std::unique_ptr<kernels::Stream>> streams;
  for (int s = 0; s < 3; ++s) streams.push_back(Gpu().NewStream());
  auto gradients = *Gpu().Allocate(8 * n * 4);
  auto flags = *Gpu().Allocate(8 * sizeof(kernels::FixedFlags));
  for (int j = 0; j < 8; ++j) {
    kernels::Stream& stream = *streams[static_cast<size_t>(j) % 3];
    auto* flag = flags.as<kernels::FixedFlags>() + j;
    float* gradient = gradients.as<float>() + j * n;
    Gpu().Zero(stream, flag, sizeof *flag);
    kernels::Fill(stream, n, static_cast<float>(1 << j), gradient);
    (*sums)->Add(stream, tensor, gradient, flag);
  }
  const auto lane = MakeLocalCommunicator(&Gpu());
  (*sums)->Follow(plan.trained[tensor].bucket, lane->OnDevice());
  auto out = *Gpu().Allocate(n * 8);
  const std::vector<int64_t> borders = {0, n};
  const Ticket ticket = lane->OnDevice().ReduceScatter(
      std::span<const int64_t>((*sums)->sums() + plan.trained[tensor].offset, n), borders,
      std::span<int64_t>(out.as<int64_t>(), n), {});
  ASSERT_TRUE(lane->OnDevice().Wait(ticket, Deadline::After(60'000)).ok());
  std::vector<int64_t> got(n);
  const auto reader = Gpu().NewStream();
  Gpu().Copy(*reader, got.data(), out.data(), n * 8);
  ASSERT_TRUE(reader->Synchronize(Deadline::After(60'000)).ok());
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(got[i], int64_t{255} << 40) << i;
  for (const auto& stream : streams) EXPECT_TRUE(stream->Synchronize(Deadline::After(60'000)).ok());
}

}  // namespace
}  // namespace holdfast
