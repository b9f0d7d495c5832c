#include "runtime/session/checkpoint_reader.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "runtime/base/digest.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/supervisor/line_file.h"

namespace holdfast {
namespace {

using storage::CheckpointId;
using storage::Manifest;

constexpr int kTries = 3;  // the stores are opened anew when a live run has pruned what was chosen

std::string Known(const std::vector<Manifest>& manifests, const BestCheckpoint& best) {
  std::string text;
  for (const Manifest& m : manifests) text += Cat(text.empty() ? "" : ", ", m.id.step);
  if (text.empty()) return "there is none";
  return Cat("there are those of step ", text, best.known ? Cat("; best: ", best.id.step) : "");
}

// In the order in which they are to be tried.
absl::StatusOr<std::vector<Manifest>> Chosen(const storage::Catalog& catalog,
                                             const CheckpointChoice& choice) {
  const std::vector<Manifest> all = catalog.Offered();
  const BestCheckpoint best = BestIn(catalog);
  if (choice.best && !best.known) {
    return absl::NotFoundError(
        "no evaluation is on record with a checkpoint of the same step (--eval-every, "
        "--keep-best)");
  }
  std::vector<Manifest> chosen;
  for (auto m = all.rbegin(); m != all.rend(); ++m) {
    if (choice.best ? m->id == best.id : choice.step < 0 || m->id.step == choice.step)
      chosen.push_back(*m);
  }
  if (chosen.empty() && !all.empty()) {
    return absl::NotFoundError(Cat("no checkpoint of step ",
                                   choice.best ? best.id.step : choice.step, " is here; ",
                                   Known(all, best)));
  }
  return chosen;
}

absl::Status CheckHere(const storage::Catalog& catalog, const Manifest& manifest, int64_t chunks,
                       const std::string& machine) {
  int64_t here = 0;
  for (const auto& [first, last] : catalog.Held(manifest.id)) here += last - first;
  if (here == chunks) return absl::OkStatus();
  std::set<std::string> others;
  for (const storage::ShardInfo& shard : manifest.shards) {
    if (!machine.empty() && shard.machine != machine) others.insert(shard.machine);
  }
  std::string names;
  for (const std::string& name : others) names += Cat(names.empty() ? "" : ", ", name);
  if (names.empty())
    return absl::DataLossError(Cat("only ", here, " of ", chunks, " chunks are here"));
  return absl::FailedPreconditionError(
      Cat("only ", here, " of ", chunks, " chunks are on this machine, others are on ", names,
          ": copy their DIR/slots/N beside those here, under numbers that are free"));
}

// Region by region: the index of its tensor, or -1 for what is no value.
absl::StatusOr<std::vector<int>> TensorsOf(const storage::ChunkGrid& grid, const ModelSpec& spec) {
  std::map<std::string, int> index;
  for (size_t i = 0; i < spec.tensors.size(); ++i)
    index[spec.tensors[i].name + "/value"] = static_cast<int>(i);
  std::vector<int> tensors;
  size_t found = 0;
  for (const storage::Region& region : grid.regions()) {
    const auto it = index.find(region.name);
    tensors.push_back(it == index.end() ? -1 : it->second);
    if (it == index.end()) continue;
    int64_t elements = 1;
    for (const int64_t d : spec.tensors[it->second].shape) elements *= d;
    found += elements == region.words;
  }
  if (found == spec.tensors.size()) return tensors;
  return absl::FailedPreconditionError(
      "the checkpoint is not of this model: other tensors or sizes (another program wrote it?)");
}

class Reader {
 public:
  Reader(const storage::Catalog& catalog, const Manifest& manifest,
         const CheckpointConsumer& consumer)
      : catalog_(catalog), manifest_(manifest), consumer_(consumer), grid_(manifest.regions) {}

  // `theirs`: the error is the consumer's, not the checkpoint's.
  absl::Status Run(const ModelSpec& spec, const std::string& machine, bool* theirs) {
    HF_RETURN_IF_ERROR(CheckHere(catalog_, manifest_, grid_.chunks(), machine));
    HF_ASSIGN_OR_RETURN(const std::vector<int> tensors, TensorsOf(grid_, spec));
    if (absl::Status status = consumer_.begin(manifest_); !status.ok()) {
      *theirs = true;
      return status;
    }
    std::vector<uint32_t> words(storage::kChunkWords);
    uint64_t digest = 0;
    for (int64_t ordinal = 0; ordinal < grid_.chunks(); ++ordinal) {
      const storage::Chunk& c = grid_.chunk(ordinal);
      const std::span<uint32_t> out(words.data(), static_cast<size_t>(c.words));
      HF_RETURN_IF_ERROR(catalog_.ReadChunk(manifest_.id, grid_, ordinal, out));
      digest += DigestWords(out.data(), c.words, static_cast<uint64_t>(c.region), c.first);
      if (tensors[c.region] < 0) continue;
      const absl::Status status =
          consumer_.words(static_cast<size_t>(tensors[c.region]), c.first, out);
      if (status.ok()) continue;
      *theirs = true;
      return status;
    }
    if (digest == manifest_.state_digest) return absl::OkStatus();
    return absl::DataLossError(Cat("its digest is ", Hex64(digest), ", the workers agreed on ",
                                   Hex64(manifest_.state_digest)));
  }

 private:
  const storage::Catalog& catalog_;
  const Manifest& manifest_;
  const CheckpointConsumer& consumer_;
  const storage::ChunkGrid grid_;
};

}  // namespace

absl::StatusOr<SavedRun> ReadSavedRun(const std::string& dir) {
  const std::string path = Cat(dir, "/config.toml");
  const auto text = ReadSmallFile(path);
  if (!text.ok()) {
    return absl::NotFoundError(
        Cat("--dir ", dir, ": holds no run (", StdView(text.status().message()), ")"));
  }
  SavedRun run;
  HF_ASSIGN_OR_RETURN(run.config, ConfigFromToml(*text, path));
  run.toml = run.config.ToToml();
  if (const auto name = ReadSmallFile(Cat(dir, "/machine"), 4096); name.ok())
    run.machine = name->substr(0, name->find('\n'));
  return run;
}

BestCheckpoint BestIn(const storage::Catalog& catalog) {
  BestCheckpoint best;
  for (const std::string& mark : catalog.Marks(kBestMark)) {
    if (const auto found = BestCheckpoint::Decode(mark); found.ok()) best = BetterOf(best, *found);
  }
  return best;
}

absl::StatusOr<Manifest> ReadCheckpoint(const std::string& dir, const SavedRun& run,
                                        const ModelSpec& spec, const CheckpointChoice& choice,
                                        const CheckpointConsumer& consumer) {
  if (storage::SlotsIn(dir).empty())
    return absl::NotFoundError(Cat("--dir ", dir, ": holds no checkpoints yet"));
  absl::Status last = absl::NotFoundError(Cat("--dir ", dir, ": holds no finished checkpoint yet"));
  for (int attempt = 0; attempt < kTries; ++attempt) {
    storage::Catalog catalog({.run = run.config.run, .machine = run.machine});
    HF_RETURN_IF_ERROR(catalog.AddSlots(dir));
    HF_ASSIGN_OR_RETURN(const std::vector<Manifest> chosen, Chosen(catalog, choice));
    if (chosen.empty()) return last;
    for (const Manifest& manifest : chosen) {
      bool theirs = false;
      const absl::Status read = Reader(catalog, manifest, consumer).Run(spec, run.machine, &theirs);
      if (read.ok()) return manifest;
      if (theirs || absl::IsFailedPrecondition(read)) return read;
      last = Annotate(read, Cat("checkpoint of step ", manifest.id.step));
      LogWarning(std::string(last.message()), ": skipped");
    }
  }
  return last;
}

}  // namespace holdfast
