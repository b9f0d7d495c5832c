#include "storage/rocks.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "rocksdb/convenience.h"
#include "rocksdb/file_checksum.h"
#include "rocksdb/table.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "storage/files.h"

namespace holdfast::storage {
namespace {

bool Mentions(const std::string& text, int error) {
  return text.find(strerror(error)) != std::string::npos;
}

// RocksDB's own log file is not used: on a full disk the library's assertions (which the
// distribution leaves on) end the process over a failed line of it. What matters goes to our log.
class Log : public rocksdb::Logger {
 public:
  Log() : rocksdb::Logger(rocksdb::InfoLogLevel::ERROR_LEVEL) {}
  using rocksdb::Logger::Logv;
  void Logv(const rocksdb::InfoLogLevel level, const char* format, va_list args) override {
    if (level >= rocksdb::InfoLogLevel::ERROR_LEVEL) Logv(format, args);
  }
  void Logv(const char* format, va_list args) override {
    char line[1024];
    vsnprintf(line, sizeof line, format, args);
    LogDebug("rocksdb: ", static_cast<const char*>(line));
  }
};

rocksdb::ColumnFamilyOptions FamilyOptions() {
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;  // a chunk is read once
  table.checksum = rocksdb::kXXH3;
  rocksdb::ColumnFamilyOptions family;
  family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  family.compression = rocksdb::kNoCompression;
  family.write_buffer_size = 1 << 20;
  family.disable_auto_compactions = true;  // whole files come and go, nothing is rewritten
  return family;
}

rocksdb::DBOptions DatabaseOptions() {
  rocksdb::DBOptions options;
  options.max_open_files = -1;
  options.max_file_opening_threads =
      1;  // files are few; sixteen threads per opening cost more than they save
  options.file_checksum_gen_factory = rocksdb::GetFileChecksumGenCrc32cFactory();
  options.max_manifest_file_size = 16 << 20;
  options.manifest_preallocation_size = 1 << 20;  // also what lets a full disk take one more entry
  options.info_log = std::make_shared<Log>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

std::vector<rocksdb::ColumnFamilyDescriptor> Families() {
  return {{rocksdb::kDefaultColumnFamilyName, FamilyOptions()},
          {"data", FamilyOptions()},
          {"meta", FamilyOptions()},
          {"marks", FamilyOptions()}};
}

absl::StatusOr<std::unique_ptr<Rocks>> Adopt(const rocksdb::Status& status, rocksdb::DB* db,
                                             std::vector<rocksdb::ColumnFamilyHandle*> families,
                                             const std::string& path) {
  if (!status.ok()) return FromRocks(status, Cat("opening ", path));
  auto rocks = std::make_unique<Rocks>();
  rocks->db.reset(db);
  rocks->all = std::move(families);
  rocks->data = rocks->all[1];
  rocks->meta = rocks->all[2];
  rocks->marks = rocks->all[3];
  return rocks;
}

}  // namespace

absl::Status FromRocks(const rocksdb::Status& status, std::string_view where) {
  if (status.ok()) return absl::OkStatus();
  const std::string rocks_text = status.ToString();
  const std::string text = Cat(where, ": ", rocks_text);
  if (status.IsNotFound()) return absl::NotFoundError(text);
  if (status.IsNoSpace() || Mentions(rocks_text, ENOSPC) || Mentions(rocks_text, EDQUOT) ||
      Mentions(rocks_text, EFBIG)) {
    return absl::ResourceExhaustedError(Cat(text, ": free some disk space"));
  }
  if (status.IsCorruption() || status.IsPathNotFound() || Mentions(rocks_text, ENOENT)) {
    return absl::DataLossError(text);
  }
  if (Mentions(rocks_text, EACCES) || Mentions(rocks_text, EROFS) || status.IsInvalidArgument()) {
    return absl::FailedPreconditionError(text);
  }
  return absl::UnavailableError(text);
}

Rocks::~Rocks() {
  if (db == nullptr) return;
  for (rocksdb::ColumnFamilyHandle* family : all) db->DestroyColumnFamilyHandle(family);
  db->Close().PermitUncheckedError();
}

absl::StatusOr<std::unique_ptr<Rocks>> OpenRocks(const std::string& path, OpenMode mode) {
  rocksdb::DBOptions options = DatabaseOptions();
  options.create_if_missing = mode == OpenMode::kCreate;
  options.create_missing_column_families = mode == OpenMode::kCreate;
  options.error_if_exists = mode == OpenMode::kCreate;
  options.paranoid_checks = mode != OpenMode::kTolerant;
  rocksdb::DB* db = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> families;
  const rocksdb::Status status = rocksdb::DB::Open(options, path, Families(), &families, &db);
  return Adopt(status, db, std::move(families), path);
}

absl::StatusOr<std::unique_ptr<Rocks>> OpenRocksSecondary(const std::string& path,
                                                          const std::string& scratch) {
  rocksdb::DBOptions options = DatabaseOptions();
  options.paranoid_checks = false;  // what cannot be read is reported chunk by chunk
  rocksdb::DB* db = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> families;
  const rocksdb::Status status =
      rocksdb::DB::OpenAsSecondary(options, path, scratch, Families(), &families, &db);
  return Adopt(status, db, std::move(families), path);
}

rocksdb::Options TableOptions() { return rocksdb::Options(DatabaseOptions(), FamilyOptions()); }

rocksdb::ReadOptions CheckedRead() {
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  options.fill_cache = false;
  return options;
}

TableFile::TableFile(std::string path)
    : path_(std::move(path)), writer_(rocksdb::EnvOptions(), TableOptions()) {}

absl::Status TableFile::Failed(const rocksdb::Status& status, std::string_view what) {
  if (status.ok()) return absl::OkStatus();
  return FromRocks(status,
                   Cat(what, " ", path_, " (", writer_.FileSize(), " bytes so far, ",
                       FreeBytes(path_.substr(0, path_.find_last_of('/'))), " bytes free)"));
}

absl::Status TableFile::Open() { return Failed(writer_.Open(path_), "creating"); }

absl::Status TableFile::Put(std::string_view key, std::string_view value) {
  return Failed(writer_.Put(ToSlice(key), ToSlice(value)), "writing");
}

absl::Status TableFile::Finish() { return Failed(writer_.Finish(&info_), "finishing"); }

absl::Status Ingest(Rocks& rocks, const std::vector<IngestSet>& sets) {
  std::vector<rocksdb::IngestExternalFileArg> args;
  for (const IngestSet& set : sets) {
    if (set.files.empty()) continue;
    rocksdb::IngestExternalFileArg arg;
    arg.column_family = set.family;
    arg.options.move_files = true;
    arg.options.failed_move_fall_back_to_copy = false;
    arg.options.snapshot_consistency = false;
    arg.options.write_global_seqno = false;
    arg.options.verify_file_checksum = false;  // just computed while writing
    // The next two refuse a file that overlaps what is there: a key is written once.
    arg.options.allow_global_seqno = false;
    arg.options.fail_if_not_bottommost_level = true;
    for (const rocksdb::ExternalSstFileInfo& file : set.files) {
      arg.external_files.push_back(file.file_path);
      if (file.file_checksum.empty()) continue;  // an adopted file: RocksDB computes it
      arg.files_checksums.push_back(file.file_checksum);
      arg.files_checksum_func_names.push_back(file.file_checksum_func_name);
    }
    args.push_back(std::move(arg));
  }
  if (args.empty()) return absl::OkStatus();
  return FromRocks(rocks.db->IngestExternalFiles(args),
                   Cat("ingesting ", args[0].external_files[0]));
}

absl::Status DropFiles(Rocks& rocks, rocksdb::ColumnFamilyHandle* family, std::string_view begin,
                       std::string_view end) {
  const rocksdb::Slice first = ToSlice(begin), last = ToSlice(end);
  const rocksdb::RangePtr range(&first, end.empty() ? nullptr : &last);
  return FromRocks(rocksdb::DeleteFilesInRanges(rocks.db.get(), family, &range, 1, true),
                   Cat("dropping files of ", rocks.db->GetName()));
}

}  // namespace holdfast::storage
