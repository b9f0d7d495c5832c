// The reading half of SlotStoreImpl, for the writer and for secondaries.
#include "storage/slot_store.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace holdfast::storage {
namespace {

// Joins half-open ranges that touch or overlap.
std::vector<std::pair<int64_t, int64_t>> Joined(std::vector<std::pair<int64_t, int64_t>> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<std::pair<int64_t, int64_t>> out;
  for (const auto& range : ranges) {
    if (range.first == range.second) continue;
    if (!out.empty() && range.first <= out.back().second) {
      out.back().second = std::max(out.back().second, range.second);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

bool SameChunk(const Chunk& a, const Chunk& b) {
  return a.region == b.region && a.first == b.first && a.words == b.words;
}

absl::Status CheckPlace(const DecodedChunk& chunk, const ChunkGrid& grid, int64_t ordinal) {
  if (chunk.header.grid_digest != grid.digest() || ordinal >= grid.chunks() ||
      !SameChunk(chunk.header.chunk, grid.chunk(ordinal))) {
    return absl::DataLossError("it belongs to another place or to a state of other regions");
  }
  return absl::OkStatus();
}

}  // namespace

Contents ListContents(const Rocks& rocks) {
  std::vector<rocksdb::LiveFileMetaData> live;
  rocks.db->GetLiveFilesMetaData(&live);
  Contents contents;
  for (const rocksdb::LiveFileMetaData& file : live) {
    bool understood = false;
    if (file.column_family_name == rocks.data->GetName()) {
      ChunkKeyParts low, high;
      understood = ParseChunkKey(file.smallestkey, &low) && ParseChunkKey(file.largestkey, &high) &&
                   low.id == high.id && low.owner == high.owner;
      if (understood) {
        contents.checkpoints[low.id].files.push_back(
            {low.owner, low.ordinal, high.ordinal + 1, file.name});
      }
    } else if (file.column_family_name == rocks.meta->GetName()) {
      CheckpointId id;
      char kind;
      understood =
          file.smallestkey == file.largestkey && ParseMetaKey(file.smallestkey, &id, &kind);
      if (understood && kind == 'M') contents.checkpoints[id].manifest = true;
      if (understood && kind == 'S') {
        contents.checkpoints[id].shards.push_back(ShardKeyOwner(file.smallestkey));
      }
    } else if (file.column_family_name == rocks.marks->GetName()) {
      std::string key;
      uint64_t sequence;
      understood = ParseMarkKey(file.smallestkey, &key, &sequence);
      if (understood) contents.marks[key] = std::max(contents.marks[key], sequence);
    }
    if (!understood)
      LogWarning(rocks.db->GetName(), file.name, " has keys of no known kind: left alone");
  }
  for (auto& [id, held] : contents.checkpoints) {
    std::sort(held.files.begin(), held.files.end(), [](const HeldFile& a, const HeldFile& b) {
      return std::pair(a.owner, a.first) < std::pair(b.owner, b.first);
    });
    std::sort(held.shards.begin(), held.shards.end());
  }
  return contents;
}

std::optional<CheckpointId> NewestManifest(const Contents& contents) {
  std::optional<CheckpointId> newest;
  for (const auto& [id, held] : contents.checkpoints) {
    if (held.manifest && (!newest || Later(id, *newest))) newest = id;
  }
  return newest;
}

SlotStoreImpl::SlotStoreImpl(StorePaths paths, std::string run, FileLock lock,
                             std::unique_ptr<Rocks> rocks, std::string scratch)
    : paths_(std::move(paths)),
      run_(std::move(run)),
      run_hash_(Hash64(run_)),
      scratch_(std::move(scratch)),
      lock_(std::move(lock)),
      rocks_(std::move(rocks)),
      contents_(std::make_shared<const Contents>(ListContents(*rocks_))) {}

SlotStoreImpl::~SlotStoreImpl() {
  rocks_.reset();
  if (scratch_.empty()) return;
  // A secondary may leave the mirror of a damaged store there.
  const absl::StatusOr<std::vector<std::string>> names = ListDir(scratch_);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    if (name == "mirror") (void)RemoveAll(scratch_ + "/" + name);
  }
}

void SlotStoreImpl::set_run(const std::string& run) {
  run_ = run;
  run_hash_ = Hash64(run);
}

absl::StatusOr<SlotStoreImpl::Use> SlotStoreImpl::Begin() const {
  Use use;
  use.lock = std::shared_lock(rocks_mutex_);
  use.rocks = rocks_.get();
  if (use.rocks == nullptr) {
    return absl::UnavailableError(Cat(paths_.root, " could not be reopened after a failed write"));
  }
  std::lock_guard lock(contents_mutex_);
  use.contents = contents_;
  return use;
}

absl::StatusOr<std::string> SlotStoreImpl::Get(const Use& use, rocksdb::ColumnFamilyHandle* family,
                                               const std::string& key) const {
  std::string value;
  const rocksdb::Status status = use.rocks->db->Get(CheckedRead(), family, key, &value);
  if (!status.ok()) return FromRocks(status, paths_.root);
  return value;
}

absl::StatusOr<Manifest> SlotStoreImpl::ReadManifest(const Use& use, const CheckpointId& id) const {
  HF_ASSIGN_OR_RETURN(const std::string bytes, Get(use, use.rocks->meta, ManifestKey(id)));
  HF_ASSIGN_OR_RETURN(Manifest manifest, Manifest::FromBytes(bytes));
  if (manifest.id != id || manifest.run != run_) {
    return absl::DataLossError(
        Cat("the manifest is of run '", manifest.run, "', ", ToString(manifest.id)));
  }
  return manifest;
}

absl::StatusOr<std::vector<Manifest>> SlotStoreImpl::Manifests() const {
  HF_ASSIGN_OR_RETURN(const Use use, Begin());
  std::vector<Manifest> manifests;
  for (const auto& [id, held] : use.contents->checkpoints) {
    if (!held.manifest) continue;
    absl::StatusOr<Manifest> manifest = ReadManifest(use, id);
    if (manifest.ok()) {
      manifests.push_back(std::move(*manifest));
    } else {
      LogError(paths_.root, ": checkpoint (", ToString(id),
               ") is left out: ", std::string(manifest.status().message()));
    }
  }
  return manifests;
}

absl::StatusOr<std::vector<CheckpointId>> SlotStoreImpl::Ids() const {
  HF_ASSIGN_OR_RETURN(const Use use, Begin());
  std::vector<CheckpointId> ids;
  for (const auto& [id, held] : use.contents->checkpoints) ids.push_back(id);
  return ids;
}

absl::StatusOr<std::vector<std::pair<int64_t, int64_t>>> SlotStoreImpl::Held(
    const CheckpointId& id) const {
  HF_ASSIGN_OR_RETURN(const Use use, Begin());
  std::vector<std::pair<int64_t, int64_t>> ranges;
  if (const auto it = use.contents->checkpoints.find(id); it != use.contents->checkpoints.end()) {
    for (const HeldFile& file : it->second.files) ranges.emplace_back(file.first, file.last);
  }
  return Joined(std::move(ranges));
}

absl::StatusOr<DecodedChunk> SlotStoreImpl::Load(const Use& use, const CheckpointId& id,
                                                 const HeldFile& file, int64_t ordinal,
                                                 rocksdb::PinnableSlice* pinned) const {
  const std::string where =
      Cat(paths_.Db(), file.name, ", ", ToString(id), ", owner ", file.owner, ", chunk ", ordinal);
  const rocksdb::Status status =
      use.rocks->db->Get(CheckedRead(), use.rocks->data, ChunkKey(id, file.owner, ordinal), pinned);
  if (status.IsNotFound()) return absl::DataLossError(Cat(where, ": the chunk is missing"));
  if (!status.ok()) return FromRocks(status, where);
  absl::StatusOr<DecodedChunk> chunk = DecodeChunk(FromSlice(*pinned));
  if (!chunk.ok()) return Annotate(chunk.status(), where);
  const ChunkHeader& header = chunk->header;
  if (header.run_hash != run_hash_ || header.id != id || header.owner != file.owner ||
      header.ordinal != ordinal) {
    return absl::DataLossError(Cat(where, ": the record there is of ", ToString(header.id),
                                   ", owner ", header.owner, ", chunk ", header.ordinal));
  }
  return chunk;
}

absl::Status SlotStoreImpl::ReadChunk(const CheckpointId& id, const ChunkGrid& grid,
                                      int64_t ordinal, std::span<uint32_t> out) const {
  if (ordinal < 0 || ordinal >= grid.chunks() ||
      static_cast<int64_t>(out.size()) != grid.chunk(ordinal).words) {
    return absl::InvalidArgumentError(Cat("chunk ", ordinal, " into ", out.size(), " words"));
  }
  HF_ASSIGN_OR_RETURN(const Use use, Begin());
  absl::Status status =
      absl::NotFoundError(Cat(paths_.root, " does not hold chunk ", ordinal, " of ", ToString(id)));
  const auto it = use.contents->checkpoints.find(id);
  if (it == use.contents->checkpoints.end()) return status;
  for (const HeldFile& file : it->second.files) {
    if (ordinal < file.first || ordinal >= file.last) continue;
    rocksdb::PinnableSlice pinned;
    const absl::StatusOr<DecodedChunk> chunk = Load(use, id, file, ordinal, &pinned);
    status = chunk.ok() ? CheckPlace(*chunk, grid, ordinal) : chunk.status();
    if (!status.ok()) {
      status = Annotate(status, Cat(paths_.Db(), file.name));
      continue;
    }
    std::memcpy(out.data(), chunk->payload.data(), chunk->payload.size());
    return absl::OkStatus();
  }
  return status;
}

absl::Status SlotStoreImpl::VerifyOwner(const Use& use, const CheckpointId& id, int64_t owner,
                                        const Manifest* manifest, const ChunkGrid* grid,
                                        const std::function<void()>& chunk_done) const {
  const std::string where = Cat(paths_.root, ", ", ToString(id), ", owner ", owner);
  HF_ASSIGN_OR_RETURN(const std::string bytes, Get(use, use.rocks->meta, ShardKey(id, owner)));
  absl::StatusOr<ShardRecord> record = ShardRecord::FromBytes(bytes);
  if (!record.ok()) return Annotate(record.status(), where);
  if (record->id != id || record->owner != owner || record->run_hash != run_hash_) {
    return absl::DataLossError(Cat(where, ": the shard record is another shard's"));
  }
  if (manifest != nullptr) {
    bool named = false;
    for (const ShardInfo& shard : manifest->shards) {
      named = named || (shard.owner == owner && shard.first == record->first &&
                        shard.last == record->last && shard.state_digest == record->state_digest);
    }
    if (!named) return absl::DataLossError(Cat(where, ": the manifest names another shard"));
  }
  std::vector<uint32_t> words(kChunkWords);
  int64_t next = record->first;
  uint64_t digest = 0;
  for (const HeldFile& file : use.contents->checkpoints.at(id).files) {
    if (file.owner != owner) continue;
    for (int64_t ordinal = file.first; ordinal < file.last; ++ordinal, ++next) {
      rocksdb::PinnableSlice pinned;
      HF_ASSIGN_OR_RETURN(const DecodedChunk chunk, Load(use, id, file, ordinal, &pinned));
      const std::string here = Cat(where, ", chunk ", ordinal, " in ", paths_.Db(), file.name);
      if (ordinal != next || chunk.header.grid_digest != record->grid_digest) {
        return absl::DataLossError(Cat(here, ": chunk ", next, " was due there"));
      }
      if (grid != nullptr) HF_RETURN_IF_ERROR(Annotate(CheckPlace(chunk, *grid, ordinal), here));
      std::memcpy(words.data(), chunk.payload.data(), chunk.payload.size());
      const Chunk& place = chunk.header.chunk;
      digest += DigestWords(words.data(), place.words, place.region, place.first);
      if (chunk_done) chunk_done();
    }
  }
  if (next != record->last) {
    return absl::DataLossError(Cat(where, ": chunks ", next, " to ", record->last, " are missing"));
  }
  if (digest != record->state_digest) {
    return absl::DataLossError(Cat(where, ": its chunks have digest ", Hex64(digest),
                                   ", written was ", Hex64(record->state_digest)));
  }
  return absl::OkStatus();
}

absl::Status SlotStoreImpl::Verify(const CheckpointId& id,
                                   const std::function<void(int64_t, int64_t)>& progress) const {
  HF_ASSIGN_OR_RETURN(const Use use, Begin());
  const auto it = use.contents->checkpoints.find(id);
  if (it == use.contents->checkpoints.end()) {
    return absl::NotFoundError(Cat(paths_.root, " holds nothing of ", ToString(id)));
  }
  const HeldCheckpoint& held = it->second;
  std::unique_ptr<Manifest> manifest;
  std::unique_ptr<ChunkGrid> grid;
  if (held.manifest) {
    absl::StatusOr<Manifest> read = ReadManifest(use, id);
    if (!read.ok()) return Annotate(read.status(), Cat(paths_.root, ", ", ToString(id)));
    manifest = std::make_unique<Manifest>(std::move(*read));
    grid = std::make_unique<ChunkGrid>(manifest->regions);
  }
  int64_t total = 0, done = 0;
  std::vector<int64_t> owners = held.shards;
  for (const HeldFile& file : held.files) {
    total += file.last - file.first;
    if (std::find(owners.begin(), owners.end(), file.owner) == owners.end()) {
      return absl::DataLossError(Cat(paths_.root, ", ", ToString(id),
                                     ": the shard record of owner ", file.owner, " is missing"));
    }
  }
  for (const int64_t owner : owners) {
    HF_RETURN_IF_ERROR(VerifyOwner(use, id, owner, manifest.get(), grid.get(), [&] {
      if (progress) progress(++done, total);
    }));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> SlotStoreImpl::GetMark(std::string_view key) const {
  HF_ASSIGN_OR_RETURN(const Use use, Begin());
  const auto it = use.contents->marks.find(std::string(key));
  if (it == use.contents->marks.end()) {
    return absl::NotFoundError(Cat(paths_.root, " has no mark '", key, "'"));
  }
  absl::StatusOr<std::string> bytes = Get(use, use.rocks->marks, MarkKey(key, it->second));
  if (!bytes.ok()) return Annotate(bytes.status(), Cat("mark '", key, "'"));
  HF_ASSIGN_OR_RETURN(Mark mark, DecodeMark(key, *bytes));
  return std::move(mark.value);
}

}  // namespace holdfast::storage
