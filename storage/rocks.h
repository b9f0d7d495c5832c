// What this module uses of RocksDB: options, opening, one file with its column families, status
// translation. Nothing else in Holdfast includes RocksDB. Thread rule: as RocksDB, any thread, but
// destroying needs all calls to be over.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rocksdb/db.h"
#include "rocksdb/sst_file_writer.h"

namespace holdfast::storage {

// RocksDB's error in our codes, its text kept word by word.
absl::Status FromRocks(const rocksdb::Status& status, std::string_view where);

struct Rocks {
  std::unique_ptr<rocksdb::DB> db;
  rocksdb::ColumnFamilyHandle* data = nullptr;   // chunks: ingested files only
  rocksdb::ColumnFamilyHandle* meta = nullptr;   // shard records and manifests: ingested files only
  rocksdb::ColumnFamilyHandle* marks = nullptr;  // small values: ingested files only, one per value
  std::vector<rocksdb::ColumnFamilyHandle*> all;
  ~Rocks();
};

enum class OpenMode { kCreate, kStrict, kTolerant };
// kStrict refuses a database with damaged table files, kTolerant opens it without them.
absl::StatusOr<std::unique_ptr<Rocks>> OpenRocks(const std::string& path, OpenMode mode);
absl::StatusOr<std::unique_ptr<Rocks>> OpenRocksSecondary(const std::string& path,
                                                          const std::string& scratch);

rocksdb::Options TableOptions();
rocksdb::ReadOptions CheckedRead();

// A table file being written, later ingested. Finish() is where a full disk shows: always checked.
class TableFile {
 public:
  explicit TableFile(std::string path);
  [[nodiscard]] absl::Status Open();
  [[nodiscard]] absl::Status Put(std::string_view key, std::string_view value);
  [[nodiscard]] absl::Status Finish();
  const rocksdb::ExternalSstFileInfo& info() const { return info_; }
  int64_t bytes() const { return static_cast<int64_t>(info_.file_size); }

 private:
  absl::Status Failed(const rocksdb::Status& status, std::string_view what);
  std::string path_;
  rocksdb::SstFileWriter writer_;
  rocksdb::ExternalSstFileInfo info_;
};

// Files for one column family.
struct IngestSet {
  rocksdb::ColumnFamilyHandle* family = nullptr;
  std::vector<rocksdb::ExternalSstFileInfo> files;
};
// All files of all sets become part of the database, or none does; synced. Empty sets are left out.
// A file whose key range overlaps one that is there is refused.
[[nodiscard]] absl::Status Ingest(Rocks& rocks, const std::vector<IngestSet>& sets);
// Drops the whole files that lie in [begin, end].
[[nodiscard]] absl::Status DropFiles(Rocks& rocks, rocksdb::ColumnFamilyHandle* family,
                                     std::string_view begin, std::string_view end);

inline rocksdb::Slice ToSlice(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view FromSlice(const rocksdb::Slice& slice) {
  return {slice.data(), slice.size()};
}

}  // namespace holdfast::storage
