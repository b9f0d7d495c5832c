#include "storage/catalog.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/str_format.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "storage/files.h"
#include "storage/records.h"

namespace holdfast::storage {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

// Adds [first, last) to the sorted, disjoint ranges.
void Insert(Ranges* ranges, int64_t first, int64_t last) {
  if (first >= last) return;
  Ranges out;
  for (const auto& range : *ranges) {
    if (range.second < first || range.first > last) {
      out.push_back(range);
    } else {
      first = std::min(first, range.first);
      last = std::max(last, range.second);
    }
  }
  out.emplace_back(first, last);
  std::sort(out.begin(), out.end());
  *ranges = std::move(out);
}

int64_t Count(const Ranges& ranges) {
  int64_t chunks = 0;
  for (const auto& [first, last] : ranges) chunks += last - first;
  return chunks;
}

void AddNote(CheckpointRow* row, std::string_view text) {
  row->note += Cat(row->note.empty() ? "" : "; ", text);
}

// The parts of [0, chunks) that are in no range, as text.
std::string Gaps(const Ranges& ranges, int64_t chunks) {
  std::string text;
  int64_t next = 0;
  const auto gap = [&](int64_t to) {
    if (next < to) text += Cat(text.empty() ? "" : ", ", next, "..", to - 1);
  };
  for (const auto& [first, last] : ranges) {
    gap(first);
    next = last;
  }
  gap(chunks);
  return text;
}

}  // namespace

Catalog::~Catalog() {
  owned_.clear();
  if (!scratch_.empty()) (void)RemoveAll(scratch_);
}

void Catalog::Add(int slot, const SlotStore* store) {
  sources_.push_back({slot, store});
  std::sort(sources_.begin(), sources_.end(),
            [](const Source& a, const Source& b) { return a.slot < b.slot; });
}

absl::Status Catalog::AddSlots(const std::string& dir) {
  if (scratch_.empty()) {
    std::error_code error;
    std::string pattern =
        (std::filesystem::temp_directory_path(error) / "holdfast-read-XXXXXX").string();
    if (error || mkdtemp(pattern.data()) == nullptr) {
      return absl::FailedPreconditionError(
          Cat("cannot make a temporary directory ", pattern, ": set TMPDIR to a writable one"));
    }
    scratch_ = pattern;
  }
  for (const int slot : SlotsIn(dir)) {
    if (std::any_of(sources_.begin(), sources_.end(),
                    [&](const Source& source) { return source.slot == slot; })) {
      continue;
    }
    const std::string path = StorePath(dir, slot);
    absl::StatusOr<std::unique_ptr<SlotStore>> store =
        SlotStore::OpenSecondary(path, Cat(scratch_, "/", slot));
    if (absl::IsNotFound(store.status())) continue;  // a slot that never opened its store
    if (!store.ok()) {
      problems_.push_back(Cat("slot ", slot, ": ", store.status().message()));
      LogError(problems_.back());
      continue;
    }
    if (!options_.run.empty() && (*store)->run() != options_.run) {
      LogWarning(path, " belongs to run '", (*store)->run(), "' and is left out");
      continue;
    }
    Add(slot, store->get());
    owned_.push_back(std::move(*store));
  }
  return absl::OkStatus();
}

void Catalog::MarkBad(const CheckpointId& id, std::string_view why) const {
  std::lock_guard lock(mutex_);
  if (bad_.emplace(id, std::string(why)).second) {
    LogWarning("checkpoint (", ToString(id), ") is not used any more: ", why);
  }
}

bool Catalog::IsBad(const CheckpointId& id) const {
  std::lock_guard lock(mutex_);
  return bad_.count(id) != 0;
}

std::vector<Manifest> Catalog::Offered() const {
  std::map<CheckpointId, Manifest> found;
  for (const Source& source : sources_) {
    absl::StatusOr<std::vector<Manifest>> manifests = source.store->Manifests();
    if (!manifests.ok()) {
      LogError("slot ", source.slot, ": ", std::string(manifests.status().message()));
      continue;
    }
    for (Manifest& manifest : *manifests) {
      const CheckpointId id = manifest.id;
      const auto it = found.find(id);
      if (it == found.end()) {
        found.emplace(id, std::move(manifest));
      } else if (it->second.ToBytes() != manifest.ToBytes()) {
        MarkBad(id, Cat("slot ", source.slot, " has another manifest of it than a slot before"));
      }
    }
  }
  std::vector<Manifest> offered;
  for (auto& [id, manifest] : found) {
    if (!IsBad(id)) offered.push_back(std::move(manifest));
  }
  return offered;
}

std::vector<std::string> Catalog::Marks(std::string_view key) const {
  std::vector<std::string> values;
  for (const Source& source : sources_) {
    absl::StatusOr<std::string> value = source.store->GetMark(key);
    if (value.ok()) values.push_back(std::move(*value));
  }
  return values;
}

Ranges Catalog::Held(const CheckpointId& id) const {
  Ranges ranges;
  if (IsBad(id)) return ranges;
  for (const Source& source : sources_) {
    const absl::StatusOr<Ranges> held = source.store->Held(id);
    if (!held.ok()) continue;
    for (const auto& [first, last] : *held) Insert(&ranges, first, last);
  }
  return ranges;
}

absl::Status Catalog::ReadChunk(const CheckpointId& id, const ChunkGrid& grid, int64_t ordinal,
                                std::span<uint32_t> out) const {
  absl::Status worst =
      absl::NotFoundError(Cat("chunk ", ordinal, " of ", ToString(id), " is in no store here"));
  for (const Source& source : sources_) {
    const absl::Status status = source.store->ReadChunk(id, grid, ordinal, out);
    if (status.ok()) return status;
    if (absl::IsNotFound(status)) continue;
    LogWarning("slot ", source.slot, ": ", std::string(status.message()));
    worst = status;
  }
  if (absl::IsDataLoss(worst)) MarkBad(id, StdView(worst.message()));
  return worst;
}

CheckpointRow Catalog::Row(const CheckpointId& id) const {
  CheckpointRow row;
  row.id = id;
  Manifest manifest;
  Ranges ranges, placed_elsewhere;
  for (const Source& source : sources_) {
    const absl::StatusOr<Ranges> held = source.store->Held(id);
    for (const auto& [first, last] : held.ok() ? *held : Ranges()) Insert(&ranges, first, last);
    absl::StatusOr<std::vector<Manifest>> manifests = source.store->Manifests();
    if (!manifests.ok()) continue;
    for (Manifest& found : *manifests) {
      if (found.id != id) continue;
      if (row.finished && found.ToBytes() != manifest.ToBytes()) {
        row.damaged = true;
        AddNote(&row, Cat("slot ", source.slot, " has another manifest than a slot before"));
      }
      row.finished = true;
      manifest = std::move(found);
    }
    if (row.run.empty()) row.run = source.store->run();
  }
  row.here = Count(ranges);
  if (!row.finished) {
    AddNote(&row, "unfinished: no readable manifest here");
    return row;
  }
  row.run = manifest.run;
  row.world_size = manifest.world_size;
  row.chunks = ChunkGrid(manifest.regions).chunks();
  Ranges all = ranges;
  for (const ShardInfo& shard : manifest.shards) {
    row.bytes += shard.bytes;
    if (!options_.machine.empty() && shard.machine != options_.machine) {
      Insert(&all, shard.first, shard.last);
    }
  }
  row.elsewhere = Count(all) - row.here;
  row.complete = Count(all) == row.chunks;
  if (!row.complete) AddNote(&row, Cat("missing: chunks ", Gaps(all, row.chunks)));
  return row;
}

std::vector<CheckpointRow> Catalog::List() const {
  std::set<CheckpointId> ids;
  for (const Source& source : sources_) {
    const auto found = source.store->Ids();
    if (found.ok()) ids.insert(found->begin(), found->end());
  }
  std::vector<CheckpointRow> rows;
  for (const CheckpointId& id : ids) {
    rows.push_back(Row(id));
    std::lock_guard lock(mutex_);
    if (const auto it = bad_.find(id); it != bad_.end()) {
      rows.back().damaged = true;
      AddNote(&rows.back(), it->second);
    }
  }
  return rows;
}

absl::Status Catalog::Verify(const std::function<void(const CheckpointRow&)>& row) const {
  std::string wrong;
  for (const std::string& problem : problems_) wrong += Cat(wrong.empty() ? "" : "; ", problem);
  int64_t bad = 0;
  std::vector<CheckpointRow> rows = List();
  for (CheckpointRow& listed : rows) {
    for (const Source& source : sources_) {
      const absl::Status status = source.store->Verify(listed.id, nullptr);
      if (status.ok() || absl::IsNotFound(status)) continue;
      listed.damaged = true;
      AddNote(&listed, StdView(status.message()));
    }
    if (listed.damaged || (listed.finished && !listed.complete)) ++bad;
    if (row) row(listed);
  }
  if (bad > 0)
    wrong += Cat(wrong.empty() ? "" : "; ", bad, " of the checkpoints damaged or incomplete");
  return wrong.empty() ? absl::OkStatus() : absl::DataLossError(wrong);
}

std::string ToString(const CheckpointRow& row) {
  std::string text = ToString(row.id);
  if (row.finished) {
    text += Cat(": ", row.world_size, " workers, ", row.chunks, " chunks",
                row.elsewhere == 0 ? "" : Cat(" (", row.elsewhere, " on other machines)"), ", ",
                absl::StrFormat("%.1f MB", static_cast<double>(row.bytes) / 1e6));
  } else {
    text += Cat(": ", row.here, " chunks");
  }
  const char* state = row.damaged     ? "damaged"
                      : !row.finished ? "unfinished"
                      : row.complete  ? "ok"
                                      : "incomplete";
  text += Cat(", ", state);
  if (!row.note.empty()) text += Cat(" (", row.note, ")");
  return text;
}

}  // namespace holdfast::storage
