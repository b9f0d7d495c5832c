// Opening a store: whose it is, the lock, and the ladder for damaged databases.
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "rocksdb/sst_file_reader.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "storage/records.h"
#include "storage/slot_store.h"

namespace holdfast::storage {
namespace {

constexpr int kStampVersion = 1;
constexpr std::string_view kRunMark = "!run";

bool IsTableFile(std::string_view name) {
  return name.size() > 4 && name.substr(name.size() - 4) == ".sst";
}

std::vector<std::string> TableFilesIn(const std::string& dir) {
  std::vector<std::string> names;
  const auto all = ListDir(dir);
  if (!all.ok()) return names;
  std::copy_if(all->begin(), all->end(), std::back_inserter(names), IsTableFile);
  return names;
}

// Opening a RocksDB removes table files that its manifest does not name. After a cut manifest these
// are good checkpoints: each gets a second name first.
absl::Status KeepTableFiles(const StorePaths& paths) {
  HF_RETURN_IF_ERROR(MakeDirs(paths.AtOpen()));
  for (const std::string& name : TableFilesIn(paths.Db())) {
    const std::string from = paths.Db() + "/" + name;
    std::string to = paths.AtOpen() + "/" + name;
    for (int other = 1; Exists(to) && Inode(to) != Inode(from); ++other) {
      to = Cat(paths.AtOpen(), "/", other, "-", name);
    }
    if (Exists(to)) continue;
    if (link(from.c_str(), to.c_str()) != 0) return ErrnoStatus(errno, "make hard link", to);
  }
  return absl::OkStatus();
}

// What a file is checked against before it is taken back.
struct Adoption {
  Rocks& rocks;
  uint64_t run_hash;
  // Checkpoints up to this one are either in the database or were pruned from it.
  std::optional<CheckpointId> pruned_up_to;
};

// What one value is and whether it is whole. `known` when the database has it, or something later.
absl::Status CheckValue(const Adoption& adoption, const Contents& contents, std::string_view key,
                        std::string_view value, bool* known, rocksdb::ColumnFamilyHandle** family) {
  Rocks& rocks = adoption.rocks;
  const uint64_t run_hash = adoption.run_hash;
  const std::string_view magic = value.substr(0, 4);
  const auto pruned = [&](const CheckpointId& id) {
    return adoption.pruned_up_to && !Later(id, *adoption.pruned_up_to);
  };
  const auto held = [&](const CheckpointId& id) {
    const auto it = contents.checkpoints.find(id);
    return it == contents.checkpoints.end() ? HeldCheckpoint() : it->second;
  };
  const absl::Status misplaced = absl::DataLossError("a key does not fit its value");
  const absl::Status foreign = absl::FailedPreconditionError("it belongs to another run");
  if (magic == kChunkMagic) {
    ChunkKeyParts parts;
    HF_ASSIGN_OR_RETURN(const DecodedChunk chunk, DecodeChunk(value));
    if (!ParseChunkKey(key, &parts) || parts.id != chunk.header.id ||
        parts.owner != chunk.header.owner || parts.ordinal != chunk.header.ordinal) {
      return misplaced;
    }
    if (chunk.header.run_hash != run_hash) return foreign;
    *known = pruned(parts.id);
    for (const HeldFile& file : held(parts.id).files) {
      if (file.owner == parts.owner && file.first <= parts.ordinal && parts.ordinal < file.last) {
        *known = true;
      }
    }
    *family = rocks.data;
  } else if (magic == kShardMagic) {
    HF_ASSIGN_OR_RETURN(const ShardRecord record, ShardRecord::FromBytes(value));
    if (key != ShardKey(record.id, record.owner)) return misplaced;
    if (record.run_hash != run_hash) return foreign;
    const std::vector<int64_t> shards = held(record.id).shards;
    *known =
        pruned(record.id) || std::find(shards.begin(), shards.end(), record.owner) != shards.end();
    *family = rocks.meta;
  } else if (magic == kManifestMagic) {
    HF_ASSIGN_OR_RETURN(const Manifest manifest, Manifest::FromBytes(value));
    if (key != ManifestKey(manifest.id)) return misplaced;
    if (Hash64(manifest.run) != run_hash) return foreign;
    *known = pruned(manifest.id) || held(manifest.id).manifest;
    *family = rocks.meta;
  } else {
    std::string name;
    uint64_t sequence;
    if (!ParseMarkKey(key, &name, &sequence)) return misplaced;
    HF_ASSIGN_OR_RETURN(const Mark mark, DecodeMark(name, value));
    if (mark.sequence != sequence) return misplaced;
    const auto it = contents.marks.find(name);
    *known = it != contents.marks.end() && it->second >= sequence;
    *family = rocks.marks;
  }
  return absl::OkStatus();
}

// Takes the table file `path` into the database when everything in it verifies. OK with *taken
// false: the database has its contents already.
absl::Status AdoptFile(const Adoption& adoption, const std::string& path, bool* taken) {
  *taken = false;
  const Contents contents = ListContents(adoption.rocks);
  rocksdb::SstFileReader reader(TableOptions());
  HF_RETURN_IF_ERROR(FromRocks(reader.Open(path), "reading"));
  rocksdb::ColumnFamilyHandle* family = nullptr;
  {
    const std::unique_ptr<rocksdb::Iterator> it(reader.NewIterator(CheckedRead()));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      bool known = false;
      rocksdb::ColumnFamilyHandle* own = nullptr;
      HF_RETURN_IF_ERROR(CheckValue(adoption, contents, FromSlice(it->key()),
                                    FromSlice(it->value()), &known, &own));
      if (known) return absl::OkStatus();
      if (family != nullptr && own != family)
        return absl::DataLossError("it mixes kinds of values");
      family = own;
    }
    HF_RETURN_IF_ERROR(FromRocks(it->status(), "reading"));
  }
  if (family == nullptr) return absl::DataLossError("it is empty");
  rocksdb::ExternalSstFileInfo info;
  info.file_path = path;
  HF_RETURN_IF_ERROR(Ingest(adoption.rocks, {{family, {info}}}));
  *taken = true;
  return absl::OkStatus();
}

// Looks at every second name that KeepTableFiles made: files that the database lists lose it, files
// that it does not list are taken back or set aside.
absl::Status TakeBack(Rocks& rocks, const StorePaths& paths, uint64_t run_hash, std::string aside) {
  std::vector<rocksdb::LiveFileMetaData> live;
  rocks.db->GetLiveFilesMetaData(&live);
  std::set<uint64_t> inodes;
  Adoption adoption{rocks, run_hash, std::nullopt};
  if (aside.empty()) adoption.pruned_up_to = NewestManifest(ListContents(rocks));
  for (const rocksdb::LiveFileMetaData& file : live) inodes.insert(Inode(paths.Db() + file.name));
  // In the order of their numbers, which is that of their writing: when this is cut short, what
  // remains is the newer.
  std::vector<std::string> names = TableFilesIn(paths.AtOpen());
  std::stable_sort(names.begin(), names.end(),
                   [](const std::string& a, const std::string& b) { return a.size() < b.size(); });
  for (const std::string& name : names) {
    const std::string path = paths.AtOpen() + "/" + name;
    if (inodes.count(Inode(path)) == 0) {
      bool taken = false;
      const absl::Status status = AdoptFile(adoption, path, &taken);
      if (taken) {
        LogWarning(paths.root, ": ", name, " was not listed in RocksDB's manifest; all in it",
                   " verified and it was taken back");
        continue;
      }
      if (!status.ok()) {
        // What is another run's or a newer program's is kept for good; what is damaged until a
        // later prune.
        const bool foreign = absl::IsFailedPrecondition(status);
        if (!foreign && aside.empty()) aside = paths.NextAside();
        const std::string dir = foreign ? paths.Foreign() : aside;
        LogWarning(paths.root, ": ", name, " is not listed in RocksDB's manifest and cannot be",
                   " used (", std::string(status.message()), "); it is kept in ", dir);
        HF_RETURN_IF_ERROR(MakeDirs(dir));
        if (rename(path.c_str(), (dir + "/" + name).c_str()) != 0) {
          return ErrnoStatus(errno, "move", path);
        }
        continue;
      }
    }
    if (unlink(path.c_str()) != 0) return ErrnoStatus(errno, "remove the second name", path);
  }
  return absl::OkStatus();
}

// An empty database under its final name only when it is whole: a kill in between leaves db.new, in
// which nothing is.
absl::StatusOr<std::unique_ptr<Rocks>> CreateDatabase(const StorePaths& paths) {
  const std::string unfinished = paths.Db() + ".new";
  HF_RETURN_IF_ERROR(RemoveAll(unfinished));
  HF_RETURN_IF_ERROR(OpenRocks(unfinished, OpenMode::kCreate).status());
  if (rename(unfinished.c_str(), paths.Db().c_str()) != 0) {
    return ErrnoStatus(errno, "rename to", paths.Db());
  }
  HF_RETURN_IF_ERROR(SyncDir(paths.root));
  return OpenRocks(paths.Db(), OpenMode::kStrict);
}

// The last rung: the database's own manifest is unusable. Table files carry all that is needed.
absl::StatusOr<std::unique_ptr<Rocks>> Rebuild(const StorePaths& paths, uint64_t run_hash) {
  const std::string aside = paths.NextAside();
  LogWarning(paths.root, ": building a new database from the table files of the damaged one,",
             " which is kept in ", aside);
  if (rename(paths.Db().c_str(), aside.c_str()) != 0) {
    return ErrnoStatus(errno, "move aside", paths.Db());
  }
  HF_RETURN_IF_ERROR(SyncDir(paths.root));
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Rocks> rocks, CreateDatabase(paths));
  HF_RETURN_IF_ERROR(TakeBack(*rocks, paths, run_hash, aside));
  return rocks;
}

// A secondary drops, without a word, every version of the database that has an unreadable file.
// False when a table file stays on disk without becoming known to it; a live writer's files are
// unknown for moments only.
bool SeesAllFiles(Rocks& rocks, const StorePaths& paths) {
  std::vector<std::string> unknown = TableFilesIn(paths.Db());
  for (int look = 0; look < 20 && !unknown.empty(); ++look) {
    if (look > 0) usleep(25'000);
    rocks.db->TryCatchUpWithPrimary().PermitUncheckedError();
    std::vector<rocksdb::LiveFileMetaData> live;
    rocks.db->GetLiveFilesMetaData(&live);
    std::set<std::string> known;
    for (const rocksdb::LiveFileMetaData& file : live) known.insert(file.relative_filename);
    std::erase_if(unknown, [&](const std::string& name) {
      return known.count(name) != 0 || !Exists(paths.Db() + "/" + name);
    });
  }
  return unknown.empty();
}

// Reading a damaged database without touching it: RocksDB's manifest copied, the table files by
// symbolic link, and the ladder climbed on that.
absl::StatusOr<std::unique_ptr<Rocks>> OpenMirror(const StorePaths& paths,
                                                  const std::string& scratch, uint64_t run_hash) {
  namespace fs = std::filesystem;
  const StorePaths mirror{scratch + "/mirror"};
  LogWarning(paths.root, ": not all of its table files can be listed; reading them one by one");
  HF_RETURN_IF_ERROR(RemoveAll(mirror.root));
  HF_RETURN_IF_ERROR(MakeDirs(mirror.Db()));
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDir(paths.Db()));
  for (const std::string& name : names) {
    std::error_code error;
    const fs::path from = fs::absolute(paths.Db(), error) / name;
    const fs::path to = mirror.Db() + "/" + name;
    if (IsTableFile(name)) {
      fs::create_symlink(from, to, error);
    } else if (name == "CURRENT" || name.rfind("MANIFEST-", 0) == 0) {
      fs::copy_file(from, to, error);
    }
    if (error && error.value() != ENOENT) return ErrnoStatus(error.value(), "make", to.string());
  }
  return OpenLadder(mirror, run_hash);
}

std::string StampText(std::string_view run) {
  std::string text = Cat("holdfast-store ", kStampVersion, "\nrun ", run, "\n");
  return Cat(text, "sum ", Hex64(Hash64(text)), "\n");
}

// The run named in the stamp. kDataLoss: damaged. kNotFound: none.
absl::StatusOr<std::string> ReadStamp(const StorePaths& paths) {
  HF_ASSIGN_OR_RETURN(const std::string text, ReadFile(paths.Stamp(), 4096));
  const size_t sum = text.rfind("sum ");
  uint64_t value;
  if (sum == std::string::npos || text.size() != sum + 21 || text.back() != '\n' ||
      !ParseHex64(std::string_view(text).substr(sum + 4, 16), &value) ||
      value != Hash64(std::string_view(text).substr(0, sum))) {
    return absl::DataLossError(Cat(paths.Stamp(), " is damaged"));
  }
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  int version = 0;
  if (lines.size() < 3 || lines[0].rfind("holdfast-store ", 0) != 0 ||
      !absl::SimpleAtoi(lines[0].substr(15), &version) || lines[1].rfind("run ", 0) != 0) {
    return absl::DataLossError(Cat(paths.Stamp(), " is damaged"));
  }
  if (version > kStampVersion) {
    return absl::FailedPreconditionError(Cat(paths.root, " has store version ", version,
                                             "; this program knows up to version ", kStampVersion,
                                             ": use the newer program"));
  }
  return lines[1].substr(4);
}

absl::Status OtherRun(const StorePaths& paths, std::string_view found, std::string_view wanted) {
  return absl::FailedPreconditionError(Cat(paths.root, " belongs to run '", found, "', not to '",
                                           wanted, "': use another directory for this run"));
}

// Refuses what is not ours without touching it.
absl::Status CheckDirectory(const StorePaths& paths, const StoreOptions& options, bool* stamped) {
  if (!Exists(paths.root)) {
    if (!options.create) return absl::NotFoundError(Cat("there is no store in ", paths.root));
    return absl::OkStatus();
  }
  const absl::StatusOr<std::string> run = ReadStamp(paths);
  if (run.ok() && *run != options.run) return OtherRun(paths, *run, options.run);
  *stamped = run.ok();
  if (run.ok()) return absl::OkStatus();
  if (absl::IsDataLoss(run.status())) {
    LogWarning(std::string(run.status().message()), "; the run's name is taken from the database");
    return absl::OkStatus();
  }
  if (!absl::IsNotFound(run.status())) return run.status();
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDir(paths.root));
  const std::set<std::string> ours = {"LOCK", "STORE.new", "db", "db.new", "staging", "foreign"};
  for (const std::string& name : names) {
    if (ours.count(name) != 0 || name.rfind("aside-", 0) == 0) continue;
    return absl::FailedPreconditionError(Cat(paths.root, " is no checkpoint store (it has '", name,
                                             "' and no STORE file): use another directory"));
  }
  if (!options.create && !IsDir(paths.Db())) {
    return absl::NotFoundError(Cat("there is no store in ", paths.root));
  }
  return absl::OkStatus();
}

}  // namespace

std::string StorePaths::NextAside() const {
  int number = 1;
  while (Exists(Cat(root, "/aside-", number))) ++number;
  return Cat(root, "/aside-", number);
}

absl::StatusOr<std::unique_ptr<Rocks>> OpenLadder(const StorePaths& paths, uint64_t run_hash) {
  HF_RETURN_IF_ERROR(KeepTableFiles(paths));
  if (!Exists(paths.Db())) {
    HF_ASSIGN_OR_RETURN(std::unique_ptr<Rocks> rocks, CreateDatabase(paths));
    HF_RETURN_IF_ERROR(TakeBack(*rocks, paths, run_hash, ""));
    return rocks;
  }
  if (!Exists(paths.Db() + "/CURRENT")) {
    LogError(paths.Db(), "/CURRENT is missing");
    return Rebuild(paths, run_hash);
  }
  absl::StatusOr<std::unique_ptr<Rocks>> rocks = OpenRocks(paths.Db(), OpenMode::kStrict);
  if (!rocks.ok() && absl::IsDataLoss(rocks.status())) {
    LogError(std::string(rocks.status().message()), "; opening it without the damaged files");
    rocks = OpenRocks(paths.Db(), OpenMode::kTolerant);
  }
  if (!rocks.ok() && absl::IsDataLoss(rocks.status())) {
    LogError(std::string(rocks.status().message()));
    return Rebuild(paths, run_hash);
  }
  if (!rocks.ok()) return rocks.status();
  HF_RETURN_IF_ERROR(TakeBack(**rocks, paths, run_hash, ""));
  return rocks;
}

absl::StatusOr<std::unique_ptr<SlotStore>> SlotStore::Open(const std::string& path,
                                                           const StoreOptions& options) {
  const StorePaths paths{path};
  if (options.run.empty() || options.run.size() > 256 ||
      options.run.find_first_of(std::string_view("\n\r\0", 3)) != std::string::npos) {
    return absl::InvalidArgumentError("a run's name has 1 to 256 bytes and no line ends");
  }
  bool stamped = false;
  HF_RETURN_IF_ERROR(CheckDirectory(paths, options, &stamped));
  HF_RETURN_IF_ERROR(MakeDirs(paths.root));
  HF_ASSIGN_OR_RETURN(FileLock lock, FileLock::Take(paths.Lock()));
  if (!stamped && !Exists(paths.Db())) {
    HF_RETURN_IF_ERROR(WriteFileSynced(paths.Stamp(), StampText(options.run)));
    stamped = true;
  }
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Rocks> rocks, OpenLadder(paths, Hash64(options.run)));
  auto store =
      std::make_unique<SlotStoreImpl>(paths, options.run, std::move(lock), std::move(rocks), "");
  const absl::StatusOr<std::string> run = store->GetMark(kRunMark);
  if (run.ok() && *run != options.run) return OtherRun(paths, *run, options.run);
  if (!run.ok()) {
    LogDebug(paths.root, ": ", std::string(run.status().message()));
    HF_RETURN_IF_ERROR(store->PutMark(kRunMark, options.run));
  }
  if (!stamped) HF_RETURN_IF_ERROR(WriteFileSynced(paths.Stamp(), StampText(options.run)));
  return store;
}

absl::StatusOr<std::unique_ptr<SlotStore>> SlotStore::OpenSecondary(const std::string& path,
                                                                    const std::string& scratch) {
  const StorePaths paths{path};
  if (!IsDir(paths.Db())) return absl::NotFoundError(Cat("there is no store in ", path));
  const absl::StatusOr<std::string> stamp = ReadStamp(paths);
  if (absl::IsFailedPrecondition(stamp.status())) return stamp.status();
  HF_RETURN_IF_ERROR(MakeDirs(scratch));
  // The writer may drop files between our reading of its manifest and the opening of a file: look
  // again then.
  absl::StatusOr<std::unique_ptr<Rocks>> rocks = OpenRocksSecondary(paths.Db(), scratch);
  for (int again = 0; again < 4 && !rocks.ok(); ++again) {
    rocks = OpenRocksSecondary(paths.Db(), scratch);
  }
  if (!rocks.ok() || !SeesAllFiles(**rocks, paths)) {
    if (!rocks.ok() && !absl::IsDataLoss(rocks.status())) return rocks.status();
    if (!stamp.ok()) return stamp.status();
    rocks = OpenMirror(paths, scratch, Hash64(*stamp));
    if (!rocks.ok()) return rocks.status();
  }
  auto store = std::make_unique<SlotStoreImpl>(paths, stamp.ok() ? *stamp : "", FileLock(),
                                               std::move(*rocks), scratch);
  if (!stamp.ok()) {
    LogWarning(std::string(stamp.status().message()),
               "; the run's name is taken from the database");
    HF_ASSIGN_OR_RETURN(const std::string run, store->GetMark(kRunMark));
    store->set_run(run);
  }
  return store;
}

std::string StorePath(const std::string& dir, int slot) {
  return Cat(dir, "/slots/", slot, "/store");
}

std::vector<int> SlotsIn(const std::string& dir) {
  std::vector<int> slots;
  const auto names = ListDir(dir + "/slots");
  if (!names.ok()) return slots;
  for (const std::string& name : *names) {
    int slot;
    if (absl::SimpleAtoi(name, &slot) && slot >= 0 && Cat(slot) == name &&
        IsDir(StorePath(dir, slot))) {
      slots.push_back(slot);
    }
  }
  std::sort(slots.begin(), slots.end());
  return slots;
}

}  // namespace holdfast::storage
