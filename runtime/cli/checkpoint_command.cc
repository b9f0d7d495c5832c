// holdfast checkpoint list and verify. Stores are opened as secondaries: a run may write meanwhile,
// nothing is changed.
#include <cstdio>
#include <filesystem>

#include "runtime/base/digest.h"
#include "runtime/base/log.h"
#include "runtime/cli/commands.h"
#include "runtime/session/checkpoint_reader.h"
#include "runtime/supervisor/report.h"
#include "storage/catalog.h"

namespace holdfast {
namespace {

ExitCode Fail(std::string_view command, std::string_view text, ExitCode code) {
  std::fprintf(stderr, "holdfast checkpoint %s: %s\n", std::string(command).c_str(),
               std::string(text).c_str());
  return code;
}

// Checkpoints name their writers by machine: chunks of another machine are not missing here.
std::string MachineOf(const std::string& dir) {
  const auto name = ReadSmallFile(Cat(dir, "/machine"), 4096);
  return name.ok() ? name->substr(0, name->find('\n')) : "";
}

absl::Status OpenCatalog(const std::string& dir, storage::Catalog* catalog) {
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error))
    return absl::NotFoundError(Cat("--dir ", dir, ": there is no such directory"));
  if (storage::SlotsIn(dir).empty())
    return absl::NotFoundError(Cat("--dir ", dir, ": holds no checkpoints (no slots/)"));
  return catalog->AddSlots(dir);
}

Json RowJson(const storage::CheckpointRow& row, const std::string& digest,
             const BestCheckpoint& best) {
  return {{"branch", row.id.branch},
          {"step", row.id.step},
          {"generation", row.id.generation},
          {"run", row.run},
          {"world_size", row.world_size},
          {"bytes", row.bytes},
          {"chunks", row.chunks},
          {"here", row.here},
          {"elsewhere", row.elsewhere},
          {"finished", row.finished},
          {"complete", row.complete},
          {"damaged", row.damaged},
          {"regions_digest", digest},
          {"best", best.known && best.id == row.id},
          {"note", row.note}};
}

std::string DigestOf(const std::vector<storage::Manifest>& manifests,
                     const storage::CheckpointId& id) {
  for (const storage::Manifest& manifest : manifests) {
    if (manifest.id == id) return Hex64(manifest.state_digest);
  }
  return "";
}

}  // namespace

ExitCode CheckpointListCommand(const CommandLine& line) {
  SetLogLevel(LogLevel::kWarning);
  storage::CatalogOptions options;
  options.machine = MachineOf(line.dir);
  storage::Catalog catalog(options);
  const absl::Status status = OpenCatalog(line.dir, &catalog);
  if (!status.ok()) return Fail("list", StdView(status.message()), ExitCode::kUsage);
  const std::vector<storage::CheckpointRow> rows = catalog.List();
  const std::vector<storage::Manifest> manifests = catalog.Offered();
  const BestCheckpoint best = BestIn(catalog);
  if (line.json) {
    Json json = {{"checkpoints", Json::array()}, {"problems", catalog.problems()}};
    if (best.known) json["best"] = {{"step", best.id.step}, {"eval_loss", best.loss}};
    for (const auto& row : rows)
      json["checkpoints"].push_back(RowJson(row, DigestOf(manifests, row.id), best));
    std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    for (const auto& row : rows) {
      const std::string digest = DigestOf(manifests, row.id);
      std::printf("%s%s%s\n", storage::ToString(row).c_str(),
                  digest.empty() ? "" : Cat(", digest of its regions ", digest).c_str(),
                  best.known && best.id == row.id
                      ? Cat(", best so far: held-out loss ", best.loss).c_str()
                      : "");
    }
    for (const std::string& problem : catalog.problems())
      std::printf("problem: %s\n", problem.c_str());
    if (rows.empty()) std::printf("no checkpoint has been written yet\n");
  }
  return ExitCode::kOk;
}

ExitCode CheckpointVerifyCommand(const CommandLine& line) {
  SetLogLevel(LogLevel::kWarning);
  storage::CatalogOptions options;
  options.machine = MachineOf(line.dir);
  storage::Catalog catalog(options);
  absl::Status status = OpenCatalog(line.dir, &catalog);
  if (!status.ok()) return Fail("verify", StdView(status.message()), ExitCode::kUsage);
  int count = 0;
  status = catalog.Verify([&](const storage::CheckpointRow& row) {
    ++count;
    std::printf("%s\n", storage::ToString(row).c_str());
  });
  for (const std::string& problem : catalog.problems())
    std::printf("problem: %s\n", problem.c_str());
  if (!status.ok()) return Fail("verify", StdView(status.message()), ExitCode::kCheckpoint);
  std::printf(count == 0 ? "no checkpoint has been written yet\n"
                         : "every finished checkpoint is complete and undamaged\n");
  return ExitCode::kOk;
}

}  // namespace holdfast
