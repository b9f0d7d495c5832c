// The writing half of SlotStoreImpl. All of it runs with write_mutex_ held: one write at a time.
#include <algorithm>
#include <cstring>

#include "runtime/base/failpoint.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "storage/slot_store.h"

namespace holdfast::storage {
namespace {

constexpr int64_t kMaxTableBytes = 256 << 20;
constexpr int64_t kTableOverhead = 1 << 20;  // index, properties and footer, generously
constexpr int64_t kRecordOverhead = 512;     // header, key, block trailer, index entry, generously
constexpr int64_t kSpaceReserve = 1 << 20;   // left for RocksDB's manifest and for the marks
constexpr size_t kMaxMarkKeyBytes = 256;
constexpr size_t kMaxMarkValueBytes = 64 << 10;

absl::Status Fault(std::string_view name, int64_t step) {
  const std::optional<std::string> fault = Failpoint(name, step);
  if (!fault) return absl::OkStatus();
  const std::string text = Cat("failpoint ", name, ": ", *fault);
  return *fault == "enospc" ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

std::string StagedName(const CheckpointId& id, int64_t owner, std::string_view what) {
  return Cat(id.branch, "-", id.step, "-", id.generation, "-", owner, "-", what, ".sst");
}

absl::Status ReadOnly(const std::string& root) {
  return absl::FailedPreconditionError(Cat(root, " was opened for reading only"));
}

}  // namespace

absl::Status SlotStoreImpl::BeginWrite() {
  if (!scratch_.empty()) return ReadOnly(paths_.root);
  if (!write_failed_) return absl::OkStatus();
  if (rocks_ == nullptr || !rocks_->db->Resume().ok()) {
    LogWarning(paths_.root, ": reopening the database after a failed write");
    std::unique_lock lock(rocks_mutex_);
    rocks_.reset();
    HF_ASSIGN_OR_RETURN(rocks_, OpenLadder(paths_, run_hash_));
  }
  write_failed_ = false;
  Refresh();
  return absl::OkStatus();
}

void SlotStoreImpl::Refresh() {
  if (rocks_ == nullptr) return;
  auto contents = std::make_shared<const Contents>(ListContents(*rocks_));
  std::lock_guard lock(contents_mutex_);
  contents_ = std::move(contents);
}

absl::Status SlotStoreImpl::Settle(absl::Status status) {
  if (!status.ok()) write_failed_ = true;
  Refresh();
  return status;
}

void SlotStoreImpl::RemoveStaged() {
  const absl::StatusOr<std::vector<std::string>> names = ListDir(paths_.Staging());
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const absl::Status status = RemoveAll(paths_.Staging() + "/" + name);
    if (!status.ok()) LogWarning(std::string(status.message()));
  }
}

absl::Status SlotStoreImpl::DropCheckpoint(const CheckpointId& id) {
  // Chunks first: a crash in between leaves a manifest whose chunks are missing, which is seen, and
  // pruning it again does the rest. The other order would leave chunks that nothing names.
  const std::string begin = IdPrefix(id), end = PrefixEnd(begin);
  HF_RETURN_IF_ERROR(DropFiles(*rocks_, rocks_->data, begin, end));
  HF_RETURN_IF_ERROR(Fault("ckpt.prune", id.step));
  return DropFiles(*rocks_, rocks_->meta, begin, end);
}

absl::Status SlotStoreImpl::DropShard(const CheckpointId& id, int64_t owner) {
  const std::string record = ShardKey(id, owner);
  HF_RETURN_IF_ERROR(DropFiles(*rocks_, rocks_->meta, record, record));
  return DropFiles(*rocks_, rocks_->data, ChunkKey(id, owner, 0), ChunkKey(id, owner, 0xffffffff));
}

void SlotStoreImpl::DropUncommitted(const CheckpointId& keep, bool also_newer) {
  const std::shared_ptr<const Contents> contents = contents_;
  const std::optional<CheckpointId> newest = NewestManifest(*contents);
  for (const auto& [id, held] : contents->checkpoints) {
    if (held.manifest || id == keep) continue;
    if (!also_newer && (!newest || Later(id, *newest))) continue;
    LogInfo(paths_.root, ": dropping the unfinished save (", ToString(id), ")");
    const absl::Status status = DropCheckpoint(id);
    if (!status.ok()) LogWarning(std::string(status.message()));
  }
}

absl::Status SlotStoreImpl::MakeRoom(const CheckpointId& id, int64_t bytes) {
  const int64_t needed = bytes + kSpaceReserve;
  int64_t free = FreeBytes(paths_.Staging());
  if (free < 0 || free >= needed) return absl::OkStatus();
  LogWarning(paths_.root, ": ", needed, " bytes needed, ", free,
             " free: removing what unfinished saves left");
  RemoveStaged();
  DropUncommitted(id, true);
  Refresh();
  free = FreeBytes(paths_.Staging());
  if (free >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(Cat(paths_.root, ": the save of ", ToString(id), " needs ",
                                          needed, " bytes, ", free,
                                          " are free: free some disk space"));
}

absl::Status SlotStoreImpl::WriteFiles(const ShardRecord& record, const ChunkGrid& grid,
                                       const ReadFn& read,
                                       std::vector<std::unique_ptr<TableFile>>* files,
                                       ShardInfo* info) {
  std::vector<uint32_t> buffer(kChunkHeaderBytes / 4 + kChunkWords);
  uint32_t* const words = buffer.data() + kChunkHeaderBytes / 4;
  ChunkHeader header;
  header.run_hash = record.run_hash;
  header.id = record.id;
  header.owner = record.owner;
  header.grid_digest = grid.digest();
  int64_t used = 0;
  bool open = false;
  for (int64_t ordinal = record.first; ordinal < record.last; ++ordinal) {
    const Chunk& chunk = grid.chunk(ordinal);
    const int64_t size = chunk.words * 4 + static_cast<int64_t>(kChunkHeaderBytes);
    if (open && used + size + kRecordOverhead > kMaxTableBytes - kTableOverhead) {
      HF_RETURN_IF_ERROR(files->back()->Finish());
      info->bytes += files->back()->bytes();
      open = false;
    }
    if (!open) {
      files->push_back(std::make_unique<TableFile>(
          paths_.Staging() + "/" + StagedName(record.id, record.owner, Cat(files->size()))));
      HF_RETURN_IF_ERROR(files->back()->Open());
      open = true;
      used = 0;
    }
    used += size + kRecordOverhead;
    HF_RETURN_IF_ERROR(Fault("ckpt.chunk.write", record.id.step));
    HF_RETURN_IF_ERROR(read(ordinal, std::span(words, static_cast<size_t>(chunk.words))));
    header.ordinal = ordinal;
    header.chunk = chunk;
    header.state_digest = DigestWords(words, chunk.words, chunk.region, chunk.first);
    header.content = Hash128Of(words, static_cast<size_t>(chunk.words) * 4);
    info->state_digest += header.state_digest;
    char* const bytes = reinterpret_cast<char*>(buffer.data());
    EncodeChunkHeader(header, bytes);
    HF_RETURN_IF_ERROR(files->back()->Put(ChunkKey(record.id, record.owner, ordinal),
                                          std::string_view(bytes, static_cast<size_t>(size))));
  }
  if (!open) return absl::OkStatus();
  HF_RETURN_IF_ERROR(files->back()->Finish());
  info->bytes += files->back()->bytes();
  return absl::OkStatus();
}

absl::Status SlotStoreImpl::IngestShard(const ShardRecord& record,
                                        const std::vector<std::unique_ptr<TableFile>>& files) {
  TableFile proof(paths_.Staging() + "/" + StagedName(record.id, record.owner, "shard"));
  HF_RETURN_IF_ERROR(proof.Open());
  HF_RETURN_IF_ERROR(proof.Put(ShardKey(record.id, record.owner), record.ToBytes()));
  HF_RETURN_IF_ERROR(proof.Finish());
  HF_RETURN_IF_ERROR(Fault("ckpt.chunk.sync", record.id.step));
  IngestSet data{rocks_->data, {}};
  for (const std::unique_ptr<TableFile>& file : files) data.files.push_back(file->info());
  return Ingest(*rocks_, {data, {rocks_->meta, {proof.info()}}});
}

absl::StatusOr<ShardInfo> SlotStoreImpl::WriteShard(const CheckpointId& id, int owner,
                                                    const ChunkGrid& grid, int64_t first,
                                                    int64_t last, const ReadFn& read) {
  if (id.step < 0 || owner < 0 || owner > kMaxOwner || first < 0 || first > last ||
      last > grid.chunks() || grid.chunks() > kMaxChunks) {
    return absl::InvalidArgumentError(Cat("shard of ", ToString(id), ", owner ", owner, ", chunks ",
                                          first, " to ", last, " of ", grid.chunks()));
  }
  std::lock_guard lock(write_mutex_);
  HF_RETURN_IF_ERROR(BeginWrite());
  if (const auto it = contents_->checkpoints.find(id); it != contents_->checkpoints.end()) {
    if (it->second.manifest) {
      return absl::FailedPreconditionError(
          Cat(paths_.root, ": ", ToString(id), " is complete here; an id is never used again"));
    }
    HF_RETURN_IF_ERROR(Settle(DropShard(id, owner)));  // an earlier try with this id
  }
  HF_RETURN_IF_ERROR(MakeDirs(paths_.Staging()));
  HF_RETURN_IF_ERROR(
      MakeRoom(id, grid.WordsIn(first, last) * 4 + (last - first) * kRecordOverhead));

  ShardRecord record{.run_hash = run_hash_,
                     .id = id,
                     .owner = owner,
                     .first = first,
                     .last = last,
                     .grid_digest = grid.digest()};
  ShardInfo info;
  info.owner = owner;
  info.first = first;
  info.last = last;
  std::vector<std::unique_ptr<TableFile>> files;
  absl::Status status = WriteFiles(record, grid, read, &files, &info);
  if (status.ok()) {
    record.state_digest = info.state_digest;
    record.bytes = info.bytes;
    status = IngestShard(record, files);
  }
  files.clear();
  if (!status.ok()) RemoveStaged();
  HF_RETURN_IF_ERROR(Settle(status));
  return info;
}

absl::Status SlotStoreImpl::IngestValue(rocksdb::ColumnFamilyHandle* family,
                                        const std::string& name, const std::string& key,
                                        const std::string& value) {
  HF_RETURN_IF_ERROR(MakeDirs(paths_.Staging()));
  TableFile file(paths_.Staging() + "/" + name);
  HF_RETURN_IF_ERROR(file.Open());
  HF_RETURN_IF_ERROR(file.Put(key, value));
  HF_RETURN_IF_ERROR(file.Finish());
  return Ingest(*rocks_, {{family, {file.info()}}});
}

absl::Status SlotStoreImpl::WriteManifest(const Manifest& manifest) {
  HF_RETURN_IF_ERROR(CheckComplete(manifest));
  if (manifest.run != run_) {
    return absl::InvalidArgumentError(
        Cat("a manifest of run '", manifest.run, "' in the store of run '", run_, "'"));
  }
  const std::string bytes = manifest.ToBytes();
  HF_RETURN_IF_ERROR(Manifest::FromBytes(bytes).status());  // inside the limits of the format
  std::lock_guard lock(write_mutex_);
  HF_RETURN_IF_ERROR(BeginWrite());
  const std::string key = ManifestKey(manifest.id);
  const auto it = contents_->checkpoints.find(manifest.id);
  if (it != contents_->checkpoints.end() && it->second.manifest) {
    HF_ASSIGN_OR_RETURN(const Use use, Begin());
    const absl::StatusOr<std::string> there = Get(use, rocks_->meta, key);
    if (there.ok() && *there == bytes) return absl::OkStatus();
    if (there.ok() && Manifest::FromBytes(*there).ok()) {
      return absl::FailedPreconditionError(Cat(paths_.root, " has another manifest of ",
                                               ToString(manifest.id),
                                               "; an id is never used again"));
    }
    HF_RETURN_IF_ERROR(DropFiles(*rocks_, rocks_->meta, key, key));  // a damaged copy of it
  }
  absl::Status status = Fault("ckpt.manifest.write", manifest.id.step);
  if (status.ok()) {
    status = IngestValue(rocks_->meta, StagedName(manifest.id, 0, "manifest"), key, bytes);
  }
  if (status.ok()) status = Fault("ckpt.manifest.sync", manifest.id.step);
  RemoveStaged();  // after a failure our own files, after a success also what a crash left
  return Settle(status);
}

absl::Status SlotStoreImpl::Prune(std::span<const CheckpointId> ids) {
  std::lock_guard lock(write_mutex_);
  HF_RETURN_IF_ERROR(BeginWrite());
  const std::shared_ptr<const Contents> contents = contents_;
  const std::optional<CheckpointId> newest = NewestManifest(*contents);
  for (const CheckpointId& id : ids) {
    if (newest && id == *newest) {
      return absl::FailedPreconditionError(
          Cat(paths_.root, ": ", ToString(id), " is the newest here and is not pruned"));
    }
  }
  absl::Status status;
  for (const CheckpointId& id : ids) {
    if (status.ok()) status = DropCheckpoint(id);
  }
  if (status.ok() && newest) {
    DropUncommitted(*newest, false);
    const absl::StatusOr<std::vector<std::string>> names = ListDir(paths_.root);
    for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
      if (name.rfind("aside-", 0) != 0) continue;
      LogInfo(paths_.root, ": removing ", name, ", set aside when the store was opened damaged");
      status.Update(RemoveAll(paths_.root + "/" + name));
    }
  }
  return Settle(status);
}

absl::Status SlotStoreImpl::PutMark(std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > kMaxMarkKeyBytes || value.size() > kMaxMarkValueBytes ||
      key.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError(
        "a mark has a key of 1 to 256 bytes and a value of up to 64 KiB");
  }
  std::lock_guard lock(write_mutex_);
  HF_RETURN_IF_ERROR(BeginWrite());
  const auto it = contents_->marks.find(std::string(key));
  const uint64_t sequence = it == contents_->marks.end() ? 1 : it->second + 1;
  // A file per value: the new one is durable before the old ones go, and a crash in between leaves
  // both, of which the higher sequence counts.
  absl::Status status =
      IngestValue(rocks_->marks, Cat("mark-", sequence, "-", Hex64(Hash64(key)), ".sst"),
                  MarkKey(key, sequence), EncodeMark(key, sequence, value));
  if (status.ok() && sequence > 1) {
    status = DropFiles(*rocks_, rocks_->marks, MarkKey(key, 0), MarkKey(key, sequence - 1));
  }
  if (!status.ok()) RemoveStaged();
  return Settle(status);
}

}  // namespace holdfast::storage
