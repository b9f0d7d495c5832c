// The process that crash_test kills: opens a store and saves in a loop, pruning to the last two,
// and says on standard output what was acknowledged. Usage: store_writer PATH FIRST_STEP GENERATION
#include <stdio.h>

#include <cstdlib>

#include "storage/checkpoint_store.h"
#include "tests/storage/crash_state.h"

int main(int argc, char** argv) {
  using namespace holdfast::storage;
  if (argc != 4) return 2;
  auto store = SlotStore::Open(argv[1], {.run = "test"});
  if (!store.ok()) {
    fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 3;
  }
  printf("open\n");
  fflush(stdout);
  const ChunkGrid grid(CrashRegions());
  const uint64_t generation = strtoull(argv[3], nullptr, 10);
  std::vector<CheckpointId> saved;
  const auto manifests = (*store)->Manifests();
  if (!manifests.ok()) return 8;
  for (const Manifest& manifest : *manifests) saved.push_back(manifest.id);
  for (int64_t step = atoll(argv[2]);; ++step) {
    const CheckpointId id{0, step, generation};
    auto shard = (*store)->WriteShard(id, 0, grid, 0, grid.chunks(), CrashReader(grid, step));
    if (!shard.ok()) return fprintf(stderr, "%s\n", shard.status().ToString().c_str()), 4;
    printf("shard %lld %llu\n", static_cast<long long>(step),
           static_cast<unsigned long long>(generation));
    fflush(stdout);
    const absl::Status status = (*store)->WriteManifest(CrashManifest(grid, id, *shard));
    if (!status.ok()) return fprintf(stderr, "%s\n", status.ToString().c_str()), 5;
    printf("saved %lld %llu\n", static_cast<long long>(step),
           static_cast<unsigned long long>(generation));
    fflush(stdout);
    saved.push_back(id);
    if (saved.size() <= 2) continue;
    const std::vector<CheckpointId> old(saved.begin(), saved.end() - 2);
    const absl::Status pruned = (*store)->Prune(old);
    if (!pruned.ok()) return fprintf(stderr, "%s\n", pruned.ToString().c_str()), 6;
    saved.erase(saved.begin(), saved.end() - 2);
    if (!(*store)->PutMark("step", std::to_string(step)).ok()) return 7;
    printf("mark %lld 0\n", static_cast<long long>(step));
    fflush(stdout);
  }
}
